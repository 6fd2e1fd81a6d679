"""CRITICAL PATH: the ready op with the largest b-level on the device with the earliest start."""

from dataclasses import dataclass, field

import numpy as np

from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import Scorer
from doppler.planners.base import Budget
from doppler.planners.evaluator import Evaluator
from doppler.planners.list_planner import score_schedules
from doppler.planners.list_schedule import make_list_scheduler

NUM_RUNS = 50


def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the best of 50 runs (of fewer where the budget ends), ties drawn among the tied.

    Raises:
        CapacityError: If no run fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.

    Source: Kwok and Ahmad 1999; 50 runs as in DOPPLER (arXiv 2505.23131).
    """
    return CriticalPathPlanner()(problem, scorer, budget, rng)


@dataclass(slots=True, kw_only=True)
class CriticalPathPlanner:
    """The planner, which keeps what its runs were worth.

    Attributes:
        values_ns: After a call, the value of every run; `INFEASIBLE_NS` where it does not fit.
    """

    values_ns: list[int] = field(default_factory=list)

    def __call__(
        self, problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator
    ) -> Plan:
        """Returns the best of its runs; see `plan`."""
        lists = make_list_scheduler(problem, scorer.costs)
        evaluator = Evaluator(problem, scorer, budget, "critical_path")
        runs = [lists.critical_path(rng) for _ in range(min(NUM_RUNS, budget.calls))]
        self.values_ns = score_schedules(evaluator, lists, runs).tolist()
        return evaluator.plan()
