"""All placements with all priority orders: the oracle for tiny problems."""

import itertools
import math

import numpy as np

from doppler.core.errors import PlanError
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import Scorer
from doppler.planners.base import Budget
from doppler.planners.evaluator import Evaluator
from doppler.planners.mask import Ints, make_mask

BATCH = 1024


def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the best work-conserving plan without holds.

    Raises:
        PlanError: If there are more plans than the budget allows; nothing is left out silently.
        CapacityError: If no plan fits in memory.
    """
    del rng
    mask = make_mask(problem)
    evaluator = Evaluator(problem, scorer, budget, "exhaustive")
    ops = problem.graph.placeable
    options = [np.flatnonzero(row).tolist() for row in mask.allowed_UD]
    total = math.factorial(len(ops)) * math.prod(len(devices) for devices in options)
    if total > budget.calls:
        raise PlanError(
            f"planner 'exhaustive' scores all {total} plans of graph {problem.graph.name!r} or "
            f"none, and the budget allows {budget.calls}"
        )
    priorities_BV = _orders(problem)
    for choice in itertools.product(*options):
        devices_U = np.asarray(choice, dtype=np.int64)
        if not mask.is_legal(devices_U):
            continue
        for first in range(0, len(priorities_BV), BATCH):
            batch_BV = priorities_BV[first : first + BATCH]
            placements_BV = np.tile(mask.placement(devices_U), (len(batch_BV), 1))
            evaluator.score(placements_BV, batch_BV)
    return evaluator.plan()


def _orders(problem: Problem) -> Ints:
    """Every permutation of the priorities of the placed ops, int64[P, V]."""
    ops = list(problem.graph.placeable)
    orders = list(itertools.permutations(range(1, len(ops) + 1)))
    priorities_BV = np.zeros((len(orders), problem.graph.num_ops), dtype=np.int64)
    priorities_BV[:, ops] = np.asarray(orders, dtype=np.int64).reshape(len(orders), -1)
    return priorities_BV
