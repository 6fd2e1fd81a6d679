"""HEFT: upward ranks, earliest finish, insertion and append; the better one by score."""

import numpy as np

from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import INFEASIBLE_NS, Scorer
from doppler.planners.base import Budget
from doppler.planners.evaluator import Evaluator
from doppler.planners.list_schedule import ListScheduler, Schedule, make_list_scheduler

SPREAD = 0.3


def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the better of HEFT with insertion and HEFT with append (at most 4 plans scored).

    Where neither fits in memory, both are tried again with room for all tensors of a device.

    Raises:
        CapacityError: If no variant fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.

    Source: Topcuoglu et al. 2002.
    """
    del rng
    lists = make_list_scheduler(problem, scorer.costs)
    evaluator = Evaluator(problem, scorer, budget, "heft")
    for fit_tensors in (False, True):
        variants = [lists.heft(insertion=i, fit_tensors=fit_tensors) for i in (True, False)]
        score_schedules(evaluator, lists, variants)
        if evaluator.best_ns < INFEASIBLE_NS:
            break
    return evaluator.plan()


def perturbed(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the best of `budget` HEFT runs with ranks times 1 + 0.3 N(0, 1); the first has none.

    Raises:
        CapacityError: If no run fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    lists = make_list_scheduler(problem, scorer.costs)
    evaluator = Evaluator(problem, scorer, budget, "perturbed_heft")
    score_schedules(evaluator, lists, [lists.heft()])
    fit_tensors = evaluator.best_ns >= INFEASIBLE_NS
    while evaluator.remaining > 0:
        batch = [
            lists.heft(
                lists.ranks_V * (1.0 + SPREAD * rng.standard_normal(len(lists.ranks_V))),
                fit_tensors=fit_tensors,
            )
            for _ in range(min(64, evaluator.remaining))
        ]
        score_schedules(evaluator, lists, batch)
    return evaluator.plan()


def score_schedules(evaluator: Evaluator, lists: ListScheduler, schedules: list[Schedule]) -> None:
    """Scores list schedules in one batch."""
    devices_BU = np.stack([schedule.devices_U for schedule in schedules])
    priorities_BV = np.stack([schedule.priority_V for schedule in schedules])
    evaluator.score(lists.mask.placement(devices_BU), priorities_BV)
