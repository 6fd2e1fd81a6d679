"""Round robin: the units in topological order, one device after the other."""

import numpy as np

from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import Scorer
from doppler.graphs.levels import priorities_of, upward_ranks
from doppler.planners.base import Budget
from doppler.planners.evaluator import Evaluator
from doppler.planners.mask import NO_UNIT, Ints, Mask, make_mask


def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the plan that deals units out in turn (one plan is scored).

    A unit that may not sit on the device whose turn it is takes the next one.

    Raises:
        CapacityError: If the plan does not fit in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    del rng
    mask = make_mask(problem)
    evaluator = Evaluator(problem, scorer, budget, "round_robin")
    priority_V = priorities_of(upward_ranks(problem, scorer.costs), problem.graph)
    evaluator.score(mask.placement(deal(mask))[None], priority_V[None])
    return evaluator.plan()


def deal(mask: Mask) -> Ints:
    """Returns the round-robin device per unit, int64[U]."""
    turn_U = np.zeros(mask.num_units, dtype=np.int64)
    seen: set[int] = set()
    for op in mask.problem.graph.topological_order:
        unit = int(mask.unit_V[op])
        if unit != NO_UNIT and unit not in seen:
            turn_U[unit] = len(seen) % mask.num_devices
            seen.add(unit)
    return mask.complete(mask.prefer_devices(turn_U))
