"""One run of the learned planner: scoring within a budget, samples, search, elites, progress."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from doppler.core.errors import PlanError
from doppler.core.plan import Plan, check_plan, make_plan
from doppler.core.problem import Problem
from doppler.core.runtime import INFEASIBLE_NS, Scorer
from doppler.planners import portfolio
from doppler.planners.base import Budget
from doppler.planners.evaluator import Evaluator
from doppler.planners.list_schedule import ListScheduler, make_list_scheduler
from doppler.planners.watched import WatchedScorer, run_within
from doppler.policies.assignment import Bools, Ints
from doppler.policies.sampling import Rollouts, SampleMode, Temperature, plan_arrays
from doppler.training.learner import Learner

PART_CALLS = 200
SAMPLE_BATCH = 32
SAMPLE_TEMPERATURE = Temperature(select=0.3, place=0.3)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProgress:
    """Where an anytime planner stands.

    Attributes:
        part: What it does now.
        simulations: Plans scored so far.
        best_ns: Value of the best plan so far.
        gap: Its distance to the lower bound, as a part of the bound.
    """

    part: str
    simulations: int
    best_ns: int
    gap: float


class AnytimeEvaluator(Evaluator):
    """An evaluator that knows a deadline too, and tells when the best plan gets better.

    Attributes:
        part: What the planner does now, for the progress.
    """

    def __init__(
        self,
        problem: Problem,
        scorer: Scorer,
        budget: Budget,
        source: str,
        *,
        seconds: float | None = None,
        bound_ns: int = 0,
        on_progress: Callable[[PlanProgress], None] | None = None,
    ) -> None:
        super().__init__(problem, scorer, budget, source)
        self.part = "greedy"
        self._first_call = scorer.num_calls
        self._start = time.monotonic()
        self._part_call, self._part_start = self._first_call, self._start
        self._seconds = seconds
        self._bound_ns = bound_ns
        self._on_progress = on_progress

    @property
    def is_over(self) -> bool:
        """True when no plan may be scored any more, or the deadline has passed."""
        late = self._seconds is not None and time.monotonic() - self._start >= self._seconds
        return late or self.remaining <= 0

    @property
    def simulations(self) -> int:
        """Plans scored so far."""
        return self._scorer.num_calls - self._first_call

    def begin(self, part: str) -> None:
        """Begins a part of the run: its plans have a rate of their own."""
        self.part = part
        self._part_call, self._part_start = self._scorer.num_calls, time.monotonic()

    def calls_within(self, share: float) -> int:
        """Returns how many plans a share of what is left pays for.

        Under a deadline the rate of this part counts, that of the whole run while the part is
        new; a part that is begun is ended.
        """
        left = self.remaining
        if self._seconds is not None:
            now = time.monotonic()
            calls, since = self._scorer.num_calls - self._part_call, self._part_start
            if calls < PART_CALLS:
                calls, since = self.simulations, self._start
            rate = max(1, calls) / max(1e-3, now - since)
            left = min(left, round(rate * max(0.0, self._seconds - (now - self._start))))
        return round(share * left)

    def keep(self, value_ns: int, placement_V: Ints, priority_V: Ints) -> None:
        """Remembers as `Evaluator` does; reports when the best value falls."""
        before = self.best_ns
        super().keep(value_ns, placement_V, priority_V)
        if self._on_progress is not None and self.best_ns < before:
            gap = self.best_ns / self._bound_ns - 1.0 if self._bound_ns else 0.0
            self._on_progress(
                PlanProgress(
                    part=self.part, simulations=self.simulations, best_ns=self.best_ns, gap=gap
                )
            )


class LearnedRun:
    """Scoring within the budget, samples of the policy, search, and elites."""

    def __init__(
        self,
        problem: Problem,
        scorer: Scorer,
        evaluator: AnytimeEvaluator,
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
        self._score(rollouts)

    def score_plans(self, plans: tuple[Plan, ...]) -> None:
        """Scores plans of others, as many as the budget has room for.

        Raises:
            PlanError: If one is not of this problem, or has holds, which a search does not keep.
        """
        for plan in plans:
            check_plan(self._problem, plan)
            if plan.holds:
                raise PlanError(
                    f"a plan to begin from has no holds, and that of {plan.source!r} has "
                    f"{len(plan.holds)}"
                )
        scored = plans[: self.evaluator.remaining]
        if scored and not self.evaluator.is_over:
            self.evaluate(
                np.array([plan.placement for plan in scored], dtype=np.int64),
                np.array([plan.priority for plan in scored], dtype=np.int64),
            )

    def sample(self, count: int, temperature: Temperature = SAMPLE_TEMPERATURE) -> float:
        """Scores `count` episodes of the policy; returns their mean value, infinite for none."""
        learner, values = self.learner, []
        while count > 0 and not self.evaluator.is_over:
            batch = min(count, SAMPLE_BATCH, self.evaluator.remaining)
            rollouts = learner.policy.sample(
                learner.inputs,
                batch,
                learner.rng,
                temperature=temperature,
                threads=learner.threads,
            )
            values.append(self._score(rollouts).astype(np.float64))
            count -= batch
        return float(np.concatenate(values).mean()) if values else np.inf

    def search(self, calls: int, seeds: tuple[Plan, ...]) -> None:
        """Searches as the portfolio does, from seeds; a better plan becomes an elite."""
        evaluator = self.evaluator
        before = evaluator.best_ns

        def from_seeds(
            problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator
        ) -> Plan:
            return portfolio.search(problem, scorer, budget, rng, seeds=seeds)

        run_within(from_seeds, self._problem, self._scorer, evaluator, calls, self._rng)
        if evaluator.best_ns < before and evaluator.best_placement_V is not None:
            assert evaluator.best_priority_V is not None
            self.learner.elites.add_plans(
                evaluator.best_placement_V[None],
                evaluator.best_priority_V[None],
                np.array([evaluator.best_ns], dtype=np.int64),
            )

    def make_lists(self) -> ListScheduler:
        """Returns the list schedules of the problem."""
        return make_list_scheduler(self._problem, self._scorer.costs)

    def score_rules(self) -> tuple[Plan, ...]:
        """Scores what the list rules make; returns their plans."""
        watched = WatchedScorer(self._problem, self._scorer, self.evaluator)
        return portfolio.rule_plans(self._problem, watched, self.evaluator.remaining, self._rng)

    def seeds(self, count: int, source: str) -> tuple[Plan, ...]:
        """The best plans so far."""
        elites = self.learner.elites
        if not len(elites):
            return ()
        orders, devices = elites.episodes(elites.elites[:count])
        placements, priorities = self.learner.inputs.assignment.plan_arrays(orders, devices)
        return tuple(
            make_plan(self._problem, tuple(placement), tuple(priority), source)
            for placement, priority in zip(placements.tolist(), priorities.tolist(), strict=True)
        )

    def _score(self, rollouts: Rollouts) -> Ints:
        values = self.evaluate(*plan_arrays(self.learner.inputs.assignment, rollouts))
        self.learner.elites.add_episodes(rollouts.orders, rollouts.devices, values)
        return values

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
