"""Cheap planners: all built-in ones that make their plans by a rule, not by a search.

What they cost is a handful of scored plans whatever the budget is, so whoever wants many different
plans of a problem can have them all.
"""

import numpy as np

from doppler.core.errors import CapacityError, ConfigError, PlanError
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import Scorer
from doppler.planners.base import Budget
from doppler.planners.registry import get_planner

CHEAP = (
    "cpop",
    "dmdas",
    "dp_only",
    "earliest_start",
    "etf",
    "m_etf",
    "peft",
    "round_robin",
    "enumopt",
    "heft",
    "single_device",
    "metis",
    "critical_path",
)
"""Their names, the most frugal first."""


def cheap_plans(problem: Problem, scorer: Scorer, calls: int, seed: int) -> tuple[Plan, ...]:
    """Returns the plan of every cheap planner as far as `calls` scored plans pay for them.

    Each may use an equal part of what those before it have left. Where that is all that it wants,
    its plan is the one that `doppler.api.plan_problem` has from it with this seed. Planners that
    have no plan for the problem are left out: no room in memory, no deep-RL job, no pymetis.

    Args:
        problem: What is placed.
        scorer: Scores plans; holds the costs.
        calls: Plans that may be scored by all together.
        seed: Seed of each planner that draws numbers.
    """
    last_call, plans = scorer.num_calls + calls, []
    for position, name in enumerate(CHEAP):
        left = last_call - scorer.num_calls
        if left < 1:
            break
        budget = Budget(max(1, left // (len(CHEAP) - position)))
        try:
            plans.append(get_planner(name)(problem, scorer, budget, np.random.default_rng(seed)))
        except (CapacityError, ConfigError, PlanError):
            continue
    return tuple(plans)
