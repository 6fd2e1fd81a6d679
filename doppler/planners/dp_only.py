"""GMI-DRL's DP-only mapping as a planner."""

import numpy as np

from doppler.coordinator.templates import dp_only_devices
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import Scorer
from doppler.graphs.levels import priorities_of, upward_ranks
from doppler.planners.base import Budget
from doppler.planners.evaluator import Evaluator
from doppler.planners.mask import make_mask


def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the plan with one copy of environment, agent and trainer per device (one is scored).

    Raises:
        PlanError: If the graph is no deep-RL job, or the mapping needs a missing link.
        CapacityError: If the plan does not fit in memory: a template is never bent to fit.
    """
    del rng
    mask = make_mask(problem)
    evaluator = Evaluator(problem, scorer, budget, "dp_only")
    placement_V = mask.placement(dp_only_devices(mask))
    priority_V = priorities_of(upward_ranks(problem, scorer.costs), problem.graph)
    evaluator.score(placement_V[None], priority_V[None])
    return evaluator.plan()
