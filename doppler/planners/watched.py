"""Other planners inside a planner: their calls count for its budget, their best plan is kept."""

import numpy as np

from doppler.core.errors import CapacityError
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import Scorer
from doppler.planners.base import Budget, Planner
from doppler.planners.evaluator import Evaluator, KernelScorer
from doppler.planners.mask import Ints
from simulator.engine.lanes import Kernel


class WatchedScorer:
    """A `Scorer` that scores through an evaluator, which keeps the best plan and its value."""

    def __init__(self, problem: Problem, scorer: Scorer, evaluator: Evaluator) -> None:
        self.problem = problem
        self.costs = scorer.costs
        self._scorer, self._evaluator = scorer, evaluator

    @property
    def num_calls(self) -> int:
        """Plans scored so far by the scorer behind it."""
        return self._scorer.num_calls

    @num_calls.setter
    def num_calls(self, value: int) -> None:
        self._scorer.num_calls = value

    def score(self, placements_BV: Ints, priorities_BV: Ints, bounds_B: Ints | None = None) -> Ints:
        """Returns the value of each plan, in ns; see `Evaluator.score`."""
        placements, priorities = np.asarray(placements_BV), np.asarray(priorities_BV)
        return self._evaluator.score(placements, priorities, bounds_B)

    def kernel(self) -> Kernel | None:
        """Returns the kernel of the scorer behind it, None if that has none."""
        return self._scorer.kernel() if isinstance(self._scorer, KernelScorer) else None

    def keep(self, value_ns: int, placement_V: Ints, priority_V: Ints) -> None:
        """Tells the evaluator of a plan that a compiled search scored."""
        self._evaluator.keep(value_ns, placement_V, priority_V)


def run_within(
    planner: Planner,
    problem: Problem,
    scorer: Scorer,
    evaluator: Evaluator,
    calls: int,
    rng: np.random.Generator,
) -> Plan | None:
    """Runs a planner with some calls of an evaluator; returns its plan, None if none fits."""
    calls = min(calls, evaluator.remaining)
    if calls < 1:
        return None
    try:
        return planner(problem, WatchedScorer(problem, scorer, evaluator), Budget(calls), rng)
    except CapacityError:
        return None
