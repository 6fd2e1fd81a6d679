"""Protocols between the packages: who runs plans, who scores them, who knows times."""

from typing import Any, Protocol

from doppler.core.costs import Costs
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.trace import Trace


class Runtime(Protocol):
    """Runs a plan, simulated or real."""

    def run(self, problem: Problem, plan: Plan, iterations: int) -> Trace:
        """Returns the trace of `iterations` iterations.

        Raises:
            PlanError: If the plan does not fit the problem.
            DeadlockError: If nothing is in flight and work is left.
            ExecutionError: If a real job fails.
        """
        ...


class Scorer(Protocol):
    """Scores many plans of one problem; its count of calls is every search's budget.

    Attributes:
        problem: The problem that it scores.
        costs: The times that it scores with.
        num_calls: Plans scored so far.
    """

    problem: Problem
    costs: Costs
    num_calls: int

    def score(
        self,
        placements_BV: Any,
        priorities_BV: Any,
        bounds_B: Any = None,
    ) -> Any:
        """Returns the objective in ns per plan, int64[B]; arguments are integer arrays of numpy.

        They are typed `Any` because this package knows the standard library only.

        The objective is the makespan, or the period rounded up. With bounds, a plan whose value
        exceeds its bound may return any value above the bound. A plan that does not fit in memory
        scores `INFEASIBLE_NS`.
        """
        ...


class CostModel(Protocol):
    """Knows how long ops take."""

    def costs(self, problem: Problem) -> Costs:
        """Returns the times of every op on every device."""
        ...


INFEASIBLE_NS = 1 << 62
