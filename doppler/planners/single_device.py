"""Everything on one device: the baseline that any placement has to beat."""

import numpy as np

from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import Scorer
from doppler.graphs.levels import priorities_of, upward_ranks
from doppler.planners.base import Budget
from doppler.planners.evaluator import Evaluator
from doppler.planners.mask import make_mask


def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the best of the devices that hold everything (at most one plan each is scored).

    Ops that a device may not run, and group state that it cannot hold, go to the next devices.

    Raises:
        CapacityError: If no device leads to a plan that fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    del rng
    mask = make_mask(problem)
    evaluator = Evaluator(problem, scorer, budget, "single_device")
    priority_V = priorities_of(upward_ranks(problem, scorer.costs), problem.graph)
    devices = range(mask.num_devices)
    devices_BU = np.stack([mask.complete(mask.prefer_device(device)) for device in devices])
    evaluator.score(mask.placement(devices_BU), np.tile(priority_V, (len(devices_BU), 1)))
    return evaluator.plan()
