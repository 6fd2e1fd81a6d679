"""HEFT: upward ranks, earliest finish, insertion and append; the better one by score."""

from functools import partial

import numpy as np

from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import INFEASIBLE_NS, Scorer
from doppler.planners.base import Budget
from doppler.planners.evaluator import Evaluator
from doppler.planners.list_planner import plan_by_rules, score_schedules
from doppler.planners.list_schedule import Fit, ListScheduler, Schedule, make_list_scheduler

SPREAD = 0.3
BATCH = 64


def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the better of HEFT with insertion and HEFT with append; see `plan_by_rules`.

    Source: Topcuoglu et al. 2002.
    """
    del rng
    rules = [partial(_heft, insertion=insertion) for insertion in (True, False)]
    return plan_by_rules(problem, scorer, budget, "heft", rules)


def perturbed(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the best of `budget` HEFT runs with ranks times 1 + 0.3 N(0, 1); the first has none.

    Raises:
        CapacityError: If no run fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    lists = make_list_scheduler(problem, scorer.costs)
    evaluator = Evaluator(problem, scorer, budget, "perturbed_heft")
    score_schedules(evaluator, lists, [lists.heft()])
    fit = Fit.none
    while evaluator.remaining > 0:
        if evaluator.best_ns >= INFEASIBLE_NS:
            fit = Fit.live if fit is not Fit.live else Fit.all
        batch = [
            lists.heft(
                lists.ranks_V * (1.0 + SPREAD * rng.standard_normal(len(lists.ranks_V))), fit=fit
            )
            for _ in range(min(BATCH if fit is Fit.none else BATCH // 8, evaluator.remaining))
        ]
        score_schedules(evaluator, lists, batch)
    return evaluator.plan()


def _heft(lists: ListScheduler, fit: Fit, *, insertion: bool) -> Schedule:
    return lists.heft(insertion=insertion, fit=fit)
