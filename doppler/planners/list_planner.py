"""What all planners that wrap a list schedule share: scoring, and looking for one that fits."""

from collections.abc import Callable, Sequence

import numpy as np

from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import INFEASIBLE_NS, Scorer
from doppler.planners.base import Budget
from doppler.planners.evaluator import Evaluator
from doppler.planners.list_schedule import Fit, ListScheduler, Schedule, make_list_scheduler
from doppler.planners.mask import Ints

Rule = Callable[[ListScheduler, Fit], Schedule]


def plan_by_rules(
    problem: Problem,
    scorer: Scorer,
    budget: Budget,
    source: str,
    rules: Sequence[Rule],
    fits: Sequence[Fit] = tuple(Fit),
) -> Plan:
    """Returns the best plan of the rules; at most one per rule and way to fit is scored.

    Where no plan fits in memory, the rules are asked again, for devices with room: with `Fit.live`
    for the tensors that are still needed, then with `Fit.all` for all tensors.

    Raises:
        CapacityError: If no plan fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    lists = make_list_scheduler(problem, scorer.costs)
    evaluator = Evaluator(problem, scorer, budget, source)
    for fit in fits:
        score_schedules(evaluator, lists, [rule(lists, fit) for rule in rules])
        if evaluator.best_ns < INFEASIBLE_NS or evaluator.remaining <= 0:
            break
    return evaluator.plan()


def score_schedules(
    evaluator: Evaluator, lists: ListScheduler, schedules: Sequence[Schedule]
) -> Ints:
    """Scores list schedules in one batch; returns their values in ns."""
    devices_BU = np.stack([schedule.devices_U for schedule in schedules])
    priorities_BV = np.stack([schedule.priority_V for schedule in schedules])
    return evaluator.score(lists.mask.placement(devices_BU), priorities_BV)
