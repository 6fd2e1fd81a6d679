"""One run of the learned planner: scoring within a budget, samples, search, elites, progress."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from doppler.core.costs import Costs
from doppler.core.errors import CapacityError
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Problem
from doppler.core.runtime import INFEASIBLE_NS, Scorer
from doppler.planners.annealing import anneal
from doppler.planners.base import Budget
from doppler.planners.evaluator import Evaluator
from doppler.policies.assignment import Bools, Ints
from doppler.policies.sampling import Rollouts, SampleMode, Temperature, plan_arrays
from doppler.training.learner import Learner

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

    def calls_within(self, share: float) -> int:
        """Returns how many plans a share of what is left pays for.

        Under a deadline the rate so far is what counts; a part that is begun is ended.
        """
        left = self.remaining
        if self._seconds is not None:
            spent = max(1e-3, time.monotonic() - self._start)
            rate = max(1, self.simulations) / spent
            left = min(left, round(rate * max(0.0, self._seconds - spent)))
        return round(share * left)

    def score(
        self,
        placements_BV: Ints,
        priorities_BV: Ints,
        bounds_B: Ints | Sequence[int] | None = None,
    ) -> Ints:
        """Scores as `Evaluator` does; reports when the best value falls."""
        before = self.best_ns
        values_B = super().score(placements_BV, priorities_BV, bounds_B)
        if self._on_progress is not None and self.best_ns < before:
            gap = self.best_ns / self._bound_ns - 1.0 if self._bound_ns else 0.0
            self._on_progress(
                PlanProgress(
                    part=self.part, simulations=self.simulations, best_ns=self.best_ns, gap=gap
                )
            )
        return values_B


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

    def search(self, calls: int, seeds: tuple[Plan, ...], source: str) -> None:
        """Anneals with `calls` plans from seeds; what it finds becomes an elite."""
        calls = min(calls, self.evaluator.remaining)
        if calls < 1:
            return
        watched = _WatchedScorer(self._problem, self._scorer.costs, self.evaluator)
        try:
            found = anneal(
                self._problem, watched, Budget(calls), self._rng, seeds=seeds, source=source
            )
        except CapacityError:  # nothing fits yet; the run ends with that error if it stays so
            return
        self.learner.elites.add_plans(
            np.array([found.placement], dtype=np.int64),
            np.array([found.priority], dtype=np.int64),
            np.array([watched.best_ns], dtype=np.int64),
        )

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
