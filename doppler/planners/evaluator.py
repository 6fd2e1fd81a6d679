"""Scores plans within a budget and keeps the best one that was ever seen."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from doppler.core.errors import CapacityError
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Problem
from doppler.core.runtime import INFEASIBLE_NS, Scorer
from doppler.planners.base import Budget
from simulator.engine.lanes import Kernel

Ints = NDArray[np.int64]


@runtime_checkable
class KernelScorer(Protocol):
    """A scorer whose plans a compiled search may run itself (`simulator.scorer.CompiledScorer`)."""

    def kernel(self) -> Kernel | None:
        """Returns the kernel, None if what lies behind the scorer has none."""
        ...


@runtime_checkable
class Watcher(Protocol):
    """A scorer that wants to know the best plan of such a search."""

    def keep(self, value_ns: int, placement_V: Ints, priority_V: Ints) -> None:
        """Takes a plan and its value."""
        ...


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
        if within:
            self.keep(int(values_B[best]), placements_BV[best], priorities_BV[best])
        return values_B

    def kernel(self) -> Kernel | None:
        """Returns what a compiled search may run plans with; it tells `walked` what it did."""
        return self._scorer.kernel() if isinstance(self._scorer, KernelScorer) else None

    def walked(self, calls: int, value_ns: int, placement_V: Ints, priority_V: Ints) -> None:
        """Counts the plans of a compiled search and takes its best one."""
        self._scorer.num_calls += calls
        self.keep(value_ns, placement_V, priority_V)
        if isinstance(self._scorer, Watcher):
            self._scorer.keep(value_ns, placement_V, priority_V)

    def keep(self, value_ns: int, placement_V: Ints, priority_V: Ints) -> None:
        """Remembers a plan if it is the best one so far."""
        if value_ns < self.best_ns:
            self.best_ns = value_ns
            self.best_placement_V = placement_V.copy()
            self.best_priority_V = priority_V.copy()

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
