"""m-ETF: ETF over the devices whose free memory holds the op; the feasible start of searches."""

import numpy as np

from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import Scorer
from doppler.planners.base import Budget
from doppler.planners.list_planner import plan_by_rules
from doppler.planners.list_schedule import Fit, ListScheduler


def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns m-ETF's plan: room for what is still needed, else for all (at most two are scored).

    Raises:
        CapacityError: If no plan fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.

    Source: Baechi (arXiv 2301.08695).
    """
    del rng
    fits = (Fit.live, Fit.all)
    return plan_by_rules(problem, scorer, budget, "m_etf", [ListScheduler.etf], fits)
