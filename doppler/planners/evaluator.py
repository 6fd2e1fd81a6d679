"""Scores plans within a budget and keeps the best one that was ever seen."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from doppler.core.errors import CapacityError
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Problem
from doppler.core.runtime import INFEASIBLE_NS, Scorer
from doppler.planners.base import Budget

Ints = NDArray[np.int64]


class Evaluator:
    """What a planner scores with; the best plan is what it returns, never the last.

    Attributes:
        best_ns: Value of the best plan so far, `INFEASIBLE_NS` before the first that fits.
        best_placement_V, best_priority_V: That plan.
    """

    def __init__(self, problem: Problem, scorer: Scorer, budget: Budget, source: str) -> None:
        self._problem = problem
        self._scorer = scorer
        self._last_call = scorer.num_calls + budget.calls
        self._source = source
        self.best_ns = INFEASIBLE_NS
        self.best_placement_V: Ints | None = None
        self.best_priority_V: Ints | None = None

    @property
    def remaining(self) -> int:
        """Plans that may still be scored."""
        return self._last_call - self._scorer.num_calls

    def score(
        self,
        placements_BV: Ints,
        priorities_BV: Ints,
        bounds_B: Ints | Sequence[int] | None = None,
    ) -> Ints:
        """Returns the value of each plan, in ns; of the first ones only where the budget ends.

        Args:
            placements_BV: Legal placements.
            priorities_BV: Priorities.
            bounds_B: A plan above its bound may get any value above the bound.
        """
        count = min(len(placements_BV), self.remaining)
        if count <= 0:
            return np.zeros(0, dtype=np.int64)
        bounds = None if bounds_B is None else np.asarray(bounds_B[:count], dtype=np.int64)
        values_B = np.asarray(
            self._scorer.score(placements_BV[:count], priorities_BV[:count], bounds),  # type: ignore[arg-type]
            dtype=np.int64,
        )
        best = int(values_B.argmin())
        within = bounds is None or values_B[best] <= bounds[best]
        if values_B[best] < self.best_ns and within:
            self.best_ns = int(values_B[best])
            self.best_placement_V = placements_BV[best].copy()
            self.best_priority_V = priorities_BV[best].copy()
        return values_B

    def plan(self) -> Plan:
        """Returns the best plan.

        Raises:
            CapacityError: If no plan that was scored fits in memory.
        """
        if self.best_placement_V is None or self.best_priority_V is None:
            raise CapacityError(
                f"planner {self._source!r} found no plan of graph {self._problem.graph.name!r} "
                f"that fits in the memory of cluster {self._problem.cluster.name!r}"
            )
        return make_plan(
            self._problem,
            tuple(self.best_placement_V.tolist()),
            tuple(self.best_priority_V.tolist()),
            self._source,
        )
