"""Stage III: the policies learn on the running job, measured periods are their reward.

Two feedback paths, kept apart: measured spans correct the cost table, on which the policy plans
again; measured periods are the reward of the same policy gradient as in stage II. The plan that
comes out has won a race on the job: by successive halving among the learned planner's plans, those
of all cheap planners and the same placements in depth-first order. A job of short iterations has
more windows for it, and a larger field, than one of long iterations.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from doppler.adapt import RunPlan
from doppler.api import make_scorer
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Problem
from doppler.core.trace import Trace
from doppler.field import Field, is_same, make_field
from doppler.measure import NO_MARGINS, Margins, measured_period_ns
from doppler.planners.base import Budget
from doppler.planners.learned import SOURCE, LearnedPlanner
from doppler.planners.learned_run import elite_plans
from doppler.policies.assignment import Ints
from doppler.race import fewest_windows, race, race_size
from doppler.training.config import ReinforceConfig, Schedule, Stage
from doppler.training.elites import EliteBuffer
from doppler.training.metrics import OnRecord
from doppler.training.reinforce import reinforce
from simulator.calibrate import observe
from simulator.costs.measured import CostTable
from simulator.costs.reuse import Reuse, ReuseSample, fit_reuse, reuse_samples

BATCH = 4
MIN_RACE_WINDOWS, MAX_RACE_WINDOWS = 16, 128
"""Of a race for which there is next to no time, and of one for which there is much; a field that
needs more windows than the least (`doppler.race.fewest_windows`) has them."""
RACE_SECONDS = 8.0
REPLAN_PARTS = 6
"""Parts of the simulations: planning again takes one, twice; choosing the field the rest."""
NUM_ELITES = 4
"""Best plans of stages I and II beside the very best that a race has room for."""

SYSTEM_REINFORCE = ReinforceConfig(
    batch=BATCH,
    learning_rate=Schedule(5e-4, 2e-4),
    entropy_weight=Schedule(1e-3, 1e-3),
    temperature=Schedule(0.6, 0.4),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemWindow:
    """One measured window of stage III.

    Attributes:
        iteration: Iterations of stage III before it.
        period_ns: Measured period.
        purpose: "incumbent", "replanned", "sample" or "race".
        is_incumbent: True if the plan was the one that stage III began with.
    """

    iteration: int
    period_ns: float
    purpose: str
    is_incumbent: bool


@dataclass(frozen=True, kw_only=True)
class SystemResult:
    """What stage III gave and what it cost the job.

    Attributes:
        plan: The plan that won the race.
        ranking: All that were in the race, the winner first; the rest by how long they lasted.
        race_windows: Windows of the race.
        table: The cost table as the running job corrected it.
        reuse: What operands cost that have left the caches, None where nothing says that they cost.
        windows: Every window.
        iterations: Iterations run.
        worse_iterations: Of those, under other plans in windows slower than the median window of
            the plan it began with.
        extra_ns: Time lost in them against that median.
        learning_seconds: Time between windows.
        simulations: Plans scored while planning again and choosing the field of the race.
    """

    plan: Plan
    ranking: tuple[Plan, ...]
    race_windows: int
    table: CostTable
    reuse: Reuse | None
    windows: tuple[SystemWindow, ...]
    iterations: int
    worse_iterations: int
    extra_ns: int
    learning_seconds: float
    simulations: int


def tune_on_job(
    run: RunPlan,
    problem: Problem,
    table: CostTable,
    planner: LearnedPlanner,
    plan: Plan,
    *,
    num_windows: int,
    window_iterations: int,
    replan_budget: int,
    rng: np.random.Generator,
    seed: int = 0,
    race_seconds: float = RACE_SECONDS,
    margins: Margins = NO_MARGINS,
    on_record: OnRecord | None = None,
    on_window: Callable[[SystemWindow], None] | None = None,
) -> SystemResult:
    """Learns on the running job.

    Args:
        run: Runs the job on under a plan.
        problem: Graph and cluster of the job.
        table: Cost table that the policies were trained with.
        planner: The learned planner after stages I and II.
        plan: Its plan.
        num_windows: Windows that sample the policy; rounded down to whole updates.
        window_iterations: Iterations per window beside its margins.
        replan_budget: Simulations for planning again on corrected costs, and for choosing the
            field of the race.
        rng: Source of randomness.
        seed: Seed of the cheap planners in the race: with that of a comparison, and simulations
            enough, their plans are those of the comparison.
        race_seconds: Time that the job may run under raced plans; it buys `MIN_RACE_WINDOWS` at
            least, or what the field needs, and `MAX_RACE_WINDOWS` at most.
        margins: Iterations that a window runs besides, and leaves out.
        on_record: Called after every policy update.
        on_window: Called after every window.
    """
    session = _Session(run, problem, table, plan, window_iterations, margins, on_window)
    elites = (
        () if planner.learner is None else elite_plans(problem, planner.learner, NUM_ELITES, SOURCE)
    )
    reference_ns = session.measure(plan, "incumbent")
    part = replan_budget // REPLAN_PARTS
    candidates = [plan, session.replan(planner, part, rng)]
    learner = planner.learner
    if learner is not None and num_windows >= BATCH:
        learner.elites = EliteBuffer(learner.inputs.assignment, SYSTEM_REINFORCE.num_elites)
        start = time.perf_counter()
        learned, measured = session.learning_seconds, session.measuring_seconds
        reinforce(
            learner,
            session.evaluate,
            SYSTEM_REINFORCE,
            num_windows // BATCH * BATCH,
            stage=Stage.system,
            reference_ns=round(reference_ns),
            on_record=on_record,
        )
        spent = time.perf_counter() - start
        session.learning_seconds = learned + spent - (session.measuring_seconds - measured)
    sampled = session.best_sample()
    if sampled is not None:
        candidates.append(sampled)
    candidates.append(session.replan(planner, part, rng))
    length = race_length(race_seconds, reference_ns * session.length)
    start = time.perf_counter()
    field = make_field(
        problem,
        table.costs(problem),
        session.table.costs(problem),
        candidates,
        elites,
        size=race_size(length),
        calls=replan_budget - session.simulations,
        seed=seed,
    )
    session.learning_seconds += time.perf_counter() - start
    return session.race(field, max(length, fewest_windows(len(field.plans))), rng)


def race_length(seconds: float, window_ns: float) -> int:
    """Returns how many windows of a race fit into a time, within its limits."""
    fitting = int(seconds * 1e9 / window_ns)
    return min(max(fitting, MIN_RACE_WINDOWS), MAX_RACE_WINDOWS)


class _Session:
    """Runs plans on the job and keeps what was measured."""

    def __init__(
        self,
        run: RunPlan,
        problem: Problem,
        table: CostTable,
        incumbent: Plan,
        window_iterations: int,
        margins: Margins,
        on_window: Callable[[SystemWindow], None] | None,
    ) -> None:
        self.table = table
        self.simulations = 0
        self.learning_seconds = 0.0
        self.measuring_seconds = 0.0
        self._run = run
        self._problem = problem
        self._incumbent = incumbent
        self._margins = margins
        self.length = window_iterations + margins.num_iterations
        self._on_window = on_window
        self._windows: list[SystemWindow] = []
        self._reuse: list[list[ReuseSample]] = []
        self._samples: list[tuple[float, Plan]] = []

    def measure(self, plan: Plan, purpose: str) -> float:
        """Returns the measured period of one window; its spans correct the cost table."""
        start = time.perf_counter()
        trace: Trace = self._run(plan, self.length)
        measured = time.perf_counter()
        self.measuring_seconds += measured - start
        self.table = self.table.corrected(observe(self._problem, trace, 1))
        self._reuse.append(reuse_samples(self._problem, trace, 1))
        period_ns = measured_period_ns(trace, self._margins)
        window = SystemWindow(
            iteration=len(self._windows) * self.length,
            period_ns=period_ns,
            purpose=purpose,
            is_incumbent=is_same(plan, self._incumbent),
        )
        self._windows.append(window)
        self.learning_seconds += time.perf_counter() - measured
        if self._on_window is not None:
            self._on_window(window)
        return period_ns

    def replan(self, planner: LearnedPlanner, budget: int, rng: np.random.Generator) -> Plan:
        """Plans again on the costs as corrected so far, from the policy as it is; measures it."""
        start = time.perf_counter()
        scorer = make_scorer(self._problem, self.table.costs(self._problem))
        plan = planner(self._problem, scorer, Budget(max(1, budget)), rng)
        self.simulations += scorer.num_calls
        self.learning_seconds += time.perf_counter() - start
        self.measure(plan, "replanned")
        return plan

    def evaluate(self, placements_BV: Ints, priorities_BV: Ints) -> Ints:
        """The reward of stage III: one measured window per plan."""
        values: list[int] = []
        for placement, priority in zip(placements_BV.tolist(), priorities_BV.tolist(), strict=True):
            plan = make_plan(self._problem, tuple(placement), tuple(priority), SOURCE)
            period_ns = self.measure(plan, "sample")
            self._samples.append((period_ns, plan))
            values.append(round(period_ns))
        return np.array(values, dtype=np.int64)

    def best_sample(self) -> Plan | None:
        """The sampled plan with the smallest measured period."""
        return min(self._samples, key=lambda pair: pair[0])[1] if self._samples else None

    def race(self, field: Field, num_windows: int, rng: np.random.Generator) -> SystemResult:
        """Races the field and puts together what stage III gave."""
        plans = field.plans
        before = len(self._windows)
        found = race(lambda i: self.measure(plans[i], "race"), len(plans), num_windows, rng)
        self.simulations += field.simulations
        ranking = tuple(plans[index] for index in found.ranking)
        own = [window.period_ns for window in self._windows if window.is_incumbent]
        reference_ns = statistics.median(own)
        worse = [w for w in self._windows if not w.is_incumbent and w.period_ns > reference_ns]
        return SystemResult(
            plan=ranking[0],
            ranking=ranking,
            race_windows=len(self._windows) - before,
            table=self.table,
            reuse=fit_reuse(self._reuse),
            windows=tuple(self._windows),
            iterations=len(self._windows) * self.length,
            worse_iterations=len(worse) * self.length,
            extra_ns=round(sum((w.period_ns - reference_ns) * self.length for w in worse)),
            learning_seconds=self.learning_seconds,
            simulations=self.simulations,
        )
