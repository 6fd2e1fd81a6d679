"""Best of many uniform random plans: the floor of every comparison."""

import numpy as np

from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import Scorer
from doppler.planners.base import Budget
from doppler.planners.evaluator import Evaluator
from doppler.planners.mask import make_mask

BATCH = 256


def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the best of `budget` plans with random devices and random priorities.

    Raises:
        CapacityError: If no plan fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    mask = make_mask(problem)
    evaluator = Evaluator(problem, scorer, budget, "random_best")
    num_ops = problem.graph.num_ops
    while evaluator.remaining > 0:
        count = min(BATCH, evaluator.remaining)
        devices_BU = np.stack([mask.complete(mask.prefer_random(rng)) for _ in range(count)])
        priorities_BV = rng.permuted(np.tile(np.arange(num_ops), (count, 1)), axis=1)
        evaluator.score(mask.placement(devices_BU), priorities_BV)
    return evaluator.plan()
