"""CPoP: the ops of the critical path share one device, the rest finish early."""

import numpy as np

from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import Scorer
from doppler.planners.base import Budget
from doppler.planners.list_planner import plan_by_rules
from doppler.planners.list_schedule import ListScheduler


def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the rule's plan (see `ListScheduler.cpop` and `plan_by_rules`).

    Source: Topcuoglu et al. 2002.
    """
    del rng
    return plan_by_rules(problem, scorer, budget, "cpop", [ListScheduler.cpop])
