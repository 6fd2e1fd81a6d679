"""The learned planner: SEL and PLC trained on one problem; search and policy feed each other.

1. Stage I: the policies imitate the critical-path teacher (no plan is scored); policies that
   are handed over trained do not go back to it.
2. A short annealing run; its best plan becomes an elite, which the policies imitate too.
3. Stage II: REINFORCE in the simulator, elites imitated beside it.
4. Annealing from the policy's best plans (the polish).

The best plan ever scored is returned, never the last.

Source: DOPPLER (arXiv 2505.23131) with the changes of docs/design.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from doppler.core.costs import Costs
from doppler.core.errors import CapacityError
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Problem
from doppler.core.runtime import INFEASIBLE_NS, Scorer
from doppler.planners.annealing import anneal
from doppler.planners.base import Budget
from doppler.planners.evaluator import Evaluator
from doppler.policies.assignment import Assignment, Bools, Ints
from doppler.policies.build import build_assignment
from doppler.policies.config import PolicyConfig
from doppler.policies.dual import DualPolicy, policy_inputs
from doppler.policies.sampling import SampleMode, Temperature, plan_arrays
from doppler.training.config import Stage, TrainingConfig
from doppler.training.elites import EliteBuffer
from doppler.training.imitation import imitate, imitate_elites
from doppler.training.learner import Learner, make_optimizer, torch_threads
from doppler.training.metrics import OnRecord
from doppler.training.reinforce import reinforce

SOURCE = "learned"
PROBE = 16
PROBE_TEMPERATURE = Temperature(select=0.5, place=0.5)


def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the best plan of a learned planner with default settings.

    Raises:
        CapacityError: If no plan that was scored fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    return LearnedPlanner()(problem, scorer, budget, rng)


@dataclass(slots=True, kw_only=True)
class LearnedPlanner:
    """A planner that keeps what it learned.

    Attributes:
        policy_config: Shape of the policies.
        training: How the budget is spent.
        on_record: Called after every update of stages I and II.
        policy: Policies to start from; after a call, the trained ones (for stage III).
        learner: After a call, the state of training, elites included.
        values_ns: After a call, the best value at the end of each part.
    """

    policy_config: PolicyConfig = field(default_factory=PolicyConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    on_record: OnRecord | None = None
    policy: DualPolicy | None = None
    learner: Learner | None = None
    values_ns: dict[str, int] = field(default_factory=dict)

    def __call__(
        self, problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator
    ) -> Plan:
        """Returns the best plan; see `doppler.planners.base.Planner`.

        Raises:
            CapacityError: If no plan that was scored fits in memory.
            PlanError: If no placement obeys pins, kinds, groups and links.
        """
        with torch_threads(self.training.threads):
            return self._plan(problem, scorer, budget, rng)

    def _plan(
        self, problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator
    ) -> Plan:
        evaluator = Evaluator(problem, scorer, budget, SOURCE)
        assignment = build_assignment(problem, scorer.costs)
        is_trained = self.policy is not None
        learner = self._learner(assignment, rng)
        run = _Run(problem, scorer, evaluator, learner, rng)
        if not is_trained:
            imitate(learner, self.training.imitation, self.on_record)
        run.score_greedy()
        if evaluator.best_ns >= INFEASIBLE_NS:
            run.search(max(1, evaluator.remaining // 2), ())
        self.values_ns = {"imitation": evaluator.best_ns}
        run.search(round(budget.calls * self.training.search_share), ())
        self.values_ns["search"] = evaluator.best_ns
        self._imitate_elites(run)
        self._reinforce(run, round(budget.calls * self.training.learn_share))
        self.values_ns["policy"] = evaluator.best_ns
        run.search(evaluator.remaining, run.seeds(self.training.num_seeds))
        self.values_ns["polish"] = evaluator.best_ns
        return evaluator.plan()

    def _learner(self, assignment: Assignment, rng: np.random.Generator) -> Learner:
        policy = self.policy
        if policy is None:
            policy = DualPolicy(self.policy_config, seed=int(rng.integers(2**31)))
        elites = EliteBuffer(assignment, self.training.reinforce.num_elites)
        inputs = policy_inputs(assignment, policy.config)
        own = np.random.default_rng(int(rng.integers(2**63)))
        self.policy = policy
        self.learner = Learner(policy, inputs, elites, own, self.training.threads)
        return self.learner

    def _imitate_elites(self, run: "_Run") -> None:
        """Imitates the elites, unless the policy's episodes get worse by it.

        An elite of another basin may be nothing that the features can tell apart.
        """
        learner, config = run.learner, self.training.imitation
        if run.evaluator.remaining < 4 * PROBE or not len(learner.elites):
            return
        before, value = _weights(learner.policy), run.probe()
        imitate_elites(learner, config, self.on_record)
        if run.probe() > value:
            learner.policy.load_state_dict(before)

    def _reinforce(self, run: "_Run", calls: int) -> None:
        """Stage II, `restarts` times from the imitating policy; the best end is kept."""
        config, restarts = self.training.reinforce, self.training.restarts
        calls = min(calls, run.evaluator.remaining)
        per_leg = calls // restarts // config.batch * config.batch
        if per_leg == 0 or run.evaluator.best_ns >= INFEASIBLE_NS:
            return
        learner = run.learner
        reference = run.evaluator.best_ns
        start = _weights(learner.policy)
        best_ns, best_state = INFEASIBLE_NS, start
        for _ in range(restarts):
            learner.policy.load_state_dict(start)
            learner.optimizer = make_optimizer(learner.policy)
            leg = _LegBest(run)
            reinforce(
                learner,
                leg.evaluate,
                config,
                per_leg,
                stage=Stage.simulation,
                reference_ns=reference,
                on_record=self.on_record,
            )
            if leg.best_ns < best_ns:
                best_ns, best_state = leg.best_ns, _weights(learner.policy)
        learner.policy.load_state_dict(best_state)


def _weights(policy: DualPolicy) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in policy.state_dict().items()}


class _Run:
    """One planning run: scoring within the budget, search, and elites."""

    def __init__(
        self,
        problem: Problem,
        scorer: Scorer,
        evaluator: Evaluator,
        learner: Learner,
        rng: np.random.Generator,
    ) -> None:
        self._problem = problem
        self._scorer = scorer
        self.evaluator = evaluator
        self.learner = learner
        self._rng = rng

    def evaluate(self, placements_BV: Ints, priorities_BV: Ints) -> Ints:
        """Values of plans; plans that use a missing link are infeasible and cost nothing."""
        values = np.full(len(placements_BV), INFEASIBLE_NS, dtype=np.int64)
        legal = np.flatnonzero(self._legal(placements_BV))
        if len(legal):
            found = self.evaluator.score(placements_BV[legal], priorities_BV[legal])
            values[legal[: len(found)]] = found
        return values

    def score_greedy(self) -> None:
        """Scores the policy's most likely episode."""
        learner = self.learner
        rollouts = learner.policy.sample(learner.inputs, 1, learner.rng, mode=SampleMode.greedy)
        values = self.evaluate(*plan_arrays(learner.inputs.assignment, rollouts))
        learner.elites.add_episodes(rollouts.orders, rollouts.devices, values)

    def probe(self) -> float:
        """Returns the mean value of a few episodes of the policy; the plans become elites."""
        learner = self.learner
        rollouts = learner.policy.sample(
            learner.inputs, PROBE, learner.rng, temperature=PROBE_TEMPERATURE
        )
        values = self.evaluate(*plan_arrays(learner.inputs.assignment, rollouts))
        learner.elites.add_episodes(rollouts.orders, rollouts.devices, values)
        return float(values.astype(np.float64).mean())

    def search(self, calls: int, seeds: tuple[Plan, ...]) -> None:
        """Anneals with `calls` plans from seeds; what it finds becomes an elite."""
        calls = min(calls, self.evaluator.remaining)
        if calls < 1:
            return
        watched = _WatchedScorer(self._problem, self._scorer.costs, self.evaluator)
        try:
            found = anneal(
                self._problem, watched, Budget(calls), self._rng, seeds=seeds, source=SOURCE
            )
        except CapacityError:  # nothing fits yet; the run ends with that error if it stays so
            return
        self.learner.elites.add_plans(
            np.array([found.placement], dtype=np.int64),
            np.array([found.priority], dtype=np.int64),
            np.array([watched.best_ns], dtype=np.int64),
        )

    def seeds(self, count: int) -> tuple[Plan, ...]:
        """The best plans so far."""
        elites = self.learner.elites
        if not len(elites):
            return ()
        orders, devices = elites.episodes(elites.elites[:count])
        placements, priorities = self.learner.inputs.assignment.plan_arrays(orders, devices)
        return tuple(
            make_plan(self._problem, tuple(placement), tuple(priority), SOURCE)
            for placement, priority in zip(placements.tolist(), priorities.tolist(), strict=True)
        )

    def _legal(self, placements_BV: Ints) -> Bools:
        assignment = self.learner.inputs.assignment
        if assignment.linked.all():
            return np.ones(len(placements_BV), dtype=np.bool_)
        devices_BN = placements_BV[:, assignment.op_ids]
        targets = np.repeat(np.arange(assignment.num_ops), np.diff(assignment.near_ptr))
        producers = ~assignment.near_out
        src = devices_BN[:, assignment.near_op[producers]]
        dst = devices_BN[:, targets[producers]]
        linked: Bools = np.all(assignment.linked[src, dst], axis=1)
        return linked


class _WatchedScorer:
    """A `Scorer` whose plans count for the run's evaluator, and whose best value is known."""

    def __init__(self, problem: Problem, costs: Costs, evaluator: Evaluator) -> None:
        self.problem = problem
        self.costs = costs
        self.num_calls = 0
        self.best_ns = INFEASIBLE_NS
        self._evaluator = evaluator

    def score(
        self,
        placements_BV: Sequence[Sequence[int]],
        priorities_BV: Sequence[Sequence[int]],
        bounds_B: Sequence[int] | None = None,
    ) -> Ints:
        placements, priorities = np.asarray(placements_BV), np.asarray(priorities_BV)
        values = self._evaluator.score(placements, priorities, bounds_B)
        self.num_calls += len(values)
        within = values if bounds_B is None else values[values <= np.asarray(bounds_B)]
        self.best_ns = min(self.best_ns, int(within.min(initial=INFEASIBLE_NS)))
        return values


class _LegBest:
    """Evaluates, and remembers the best value of one leg."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self.best_ns = INFEASIBLE_NS

    def evaluate(self, placements_BV: Ints, priorities_BV: Ints) -> Ints:
        values = self._run.evaluate(placements_BV, priorities_BV)
        self.best_ns = min(self.best_ns, int(values.min()))
        return values
