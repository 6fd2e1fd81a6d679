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

    Its time begins when it is made.

    Attributes:
        part: What the planner does now, for the progress.
        bound_ns: The lower bound that progress measures the gap to, 0 for none.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(problem, scorer, budget, source)
        self.part = "greedy"
        self._first_call = scorer.num_calls
        self._clock, self._start = clock, clock()
        self._part_call, self._part_start = self._first_call, 0.0
        self._seconds = seconds
        self.bound_ns = bound_ns
        self._on_progress = on_progress

    @property
    def is_over(self) -> bool:
        """True when no plan may be scored any more, or the deadline has passed."""
        return self.seconds_left == 0.0 or self.remaining <= 0

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return self._clock() - self._start

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the deadline, None without one."""
        return None if self._seconds is None else max(0.0, self._seconds - self.elapsed)

    @property
    def simulations(self) -> int:
        """Plans scored so far."""
        return self._scorer.num_calls - self._first_call

    def begin(self, part: str) -> None:
        """Begins a part of the run: its plans have a rate of their own."""
        self.part = part
        self._part_call, self._part_start = self._scorer.num_calls, self.elapsed

    def go_on(self, calls: int, seconds: float, part: str) -> None:
        """Goes on in a part; plans and time that a run before this one has spent count."""
        self._scorer.num_calls += calls
        self._start -= seconds
        self.begin(part)

    def allow(self, calls: int, share: float) -> "Allowance":
        """Returns a part of the run: `calls` plans at most, and a share of the time left."""
        seconds = self.seconds_left
        return Allowance(
            self, min(calls, self.remaining), None if seconds is None else share * seconds
        )

    def calls_within(self, share: float) -> int:
        """Returns how many plans a share of what is left pays for, for a search that is then ended.

        Under a deadline the rate of this part counts, that of the whole run while the part is new.
        """
        left, seconds = self.remaining, self.seconds_left
        if seconds is not None:
            calls, since = self._scorer.num_calls - self._part_call, self._part_start
            if calls < PART_CALLS:
                calls, since = self.simulations, 0.0
            rate = max(1, calls) / max(1e-3, self.elapsed - since)
            left = min(left, round(rate * seconds))
        return round(share * left)

    def replace(self, value_ns: int, placement_V: Ints, priority_V: Ints) -> None:
        """Takes a plan in place of the best one, whose value was a lucky one."""
        self.best_ns = INFEASIBLE_NS
        Evaluator.keep(self, value_ns, placement_V, priority_V)

    def keep(self, value_ns: int, placement_V: Ints, priority_V: Ints) -> None:
        """Remembers as `Evaluator` does; reports when the best value falls."""
        before = self.best_ns
        super().keep(value_ns, placement_V, priority_V)
        if self._on_progress is not None and self.best_ns < before:
            gap = self.best_ns / self.bound_ns - 1.0 if self.bound_ns else 0.0
            self._on_progress(
                PlanProgress(
                    part=self.part, simulations=self.simulations, best_ns=self.best_ns, gap=gap
                )
            )


class Allowance:
    """A part of a run: plans and, under a deadline, time; it ends with either, or with the run.

    Attributes:
        calls: Plans at its beginning.
    """

    def __init__(self, evaluator: AnytimeEvaluator, calls: int, seconds: float | None) -> None:
        self.calls = max(0, calls)
        self._evaluator, self._seconds = evaluator, seconds
        self._first, self._start = evaluator.simulations, evaluator.elapsed

    @property
    def remaining(self) -> int:
        """Plans that may still be scored, 0 once the time is over."""
        left = self.calls - (self._evaluator.simulations - self._first)
        return 0 if self._evaluator.is_over or self.time_spent() >= 1.0 else max(0, left)

    def time_spent(self) -> float:
        """Part of its time that has passed, 0 without a deadline."""
        if self._seconds is None:
            return 0.0
        passed = self._evaluator.elapsed - self._start
        return min(1.0, passed / self._seconds) if self._seconds > 0.0 else 1.0

    def part(self, calls: int, share: float) -> "Allowance":
        """Returns a part of it: `calls` plans at most, and a share of the time left."""
        seconds = None
        if self._seconds is not None:
            seconds = share * self._seconds * (1.0 - self.time_spent())
        return Allowance(self._evaluator, min(calls, self.remaining), seconds)


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
        self.rng = rng

    def evaluate(self, placements_BV: Ints, priorities_BV: Ints) -> Ints:
        """Values of plans; plans that use a missing link are infeasible and cost nothing."""
        values = np.full(len(placements_BV), INFEASIBLE_NS, dtype=np.int64)
        legal = np.flatnonzero(self._legal(placements_BV))
        if len(legal):
            found = self.evaluator.score(placements_BV[legal], priorities_BV[legal])
            values[legal[: len(found)]] = found
        return values

    def linked(self, placements_BV: Ints, priorities_BV: Ints) -> tuple[Ints, Ints]:
        """Returns the plans that use no missing link."""
        legal = self._legal(placements_BV)
        return placements_BV[legal], priorities_BV[legal]

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

    def sample(self, allowance: Allowance, temperature: Temperature = SAMPLE_TEMPERATURE) -> float:
        """Scores episodes of the policy; returns their mean value, infinite for none."""
        learner, values, count = self.learner, [], allowance.calls
        while count > 0 and allowance.remaining:
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

        run_within(from_seeds, self._problem, self._scorer, evaluator, calls, self.rng)
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
        return portfolio.rule_plans(self._problem, watched, self.evaluator.remaining, self.rng)

    def seeds(self, count: int, source: str) -> tuple[Plan, ...]:
        """The best plans so far."""
        return elite_plans(self._problem, self.learner, count, source)

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


def elite_plans(problem: Problem, learner: Learner, count: int, source: str) -> tuple[Plan, ...]:
    """Returns the best `count` plans that a learner has met, the best first."""
    elites = learner.elites
    if not len(elites):
        return ()
    orders, devices = elites.episodes(elites.elites[:count])
    placements, priorities = learner.inputs.assignment.plan_arrays(orders, devices)
    return tuple(
        make_plan(problem, tuple(placement), tuple(priority), source)
        for placement, priority in zip(placements.tolist(), priorities.tolist(), strict=True)
    )
