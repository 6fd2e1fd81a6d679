"""Ablations of the learned planner: stages I and II from nothing with other policies, no search.

What they cost and what they lose against both policies: docs/ablation.md.

Source: DOPPLER, dual-policy ablation (SEL-only, PLC-only) and message passing once per episode.
"""

from dataclasses import replace

import numpy as np

from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import Scorer
from doppler.planners.base import Budget
from doppler.planners.learned import LearnedPlanner
from doppler.policies.config import Learned, PolicyConfig
from doppler.training.config import LearnedMode


def select_only(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the best plan of a learned SEL with devices of the earliest start.

    Raises:
        CapacityError: If no plan that was scored fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    return _plan(Learned.select_only, problem, scorer, budget, rng)


def place_only(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the best plan of a learned PLC on ops in the order of their b-levels.

    Raises:
        CapacityError: If no plan that was scored fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    return _plan(Learned.place_only, problem, scorer, budget, rng)


def joint(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the best plan of one softmax over all (candidate, device) pairs.

    Raises:
        CapacityError: If no plan that was scored fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    return _plan(Learned.joint, problem, scorer, budget, rng)


def per_step(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the best plan of both policies with message passing at every step; slow.

    Raises:
        CapacityError: If no plan that was scored fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    return _plan(Learned.per_step, problem, scorer, budget, rng)


def _plan(
    learned: Learned, problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator
) -> Plan:
    planner = LearnedPlanner(mode=LearnedMode.tune, policy_config=PolicyConfig(learned=learned))
    plan = planner(problem, scorer, budget, rng)
    return replace(plan, source=f"learned_{learned.value}")
