"""The portfolio: every kind of search takes a share of the budget, the leader gets the rest.

No search wins everywhere: orders that HEFT places (BRKGA, annealing on keys) are strong on layered
graphs and while transfers are short; explicit devices reach what no order leads to (a join whose
sources should share a device). So list rules, which cost next to nothing, and a short run of each
search come first, and what is left goes on from their best plans: over orders and then over devices
if orders lead, else over devices alone.
"""

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from doppler.core.errors import CapacityError, ConfigError
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import Scorer
from doppler.planners import (
    anneal_orders,
    annealing,
    brkga,
    critical_path,
    dmdas,
    earliest_start,
    enumopt,
    heft,
    metis,
    peft,
)
from doppler.planners.annealing import AnnealingSettings, anneal
from doppler.planners.base import Budget, Planner

_log = logging.getLogger(__name__)

RULES: tuple[Planner, ...] = (
    heft.plan,
    peft.plan,
    dmdas.plan,
    earliest_start.plan,
    enumopt.plan,
    metis.plan,
    critical_path.plan,
)
RULE_CALLS = 8
EXPLORE = AnnealingSettings(orders=0.0, rounds=((8, 0.5), (3, 0.5)))
GO_ON = AnnealingSettings(orders=0.0, rounds=((3, 0.3), (1, 0.7)))
POLISH = AnnealingSettings(orders=0.0, hot=0.003, rounds=((1, 1.0),))
POLISHED = "polish"
NEAR, FAR = 1.05, 1.3


@dataclass(frozen=True, slots=True, kw_only=True)
class PortfolioSettings:
    """Parts of the budget; what they leave goes to the last walk, which starts from all plans.

    Attributes:
        placement: Annealing on devices, from list schedules and the seeds.
        heft: Perturbed HEFT.
        keys: Annealing on keys, unless the perturbed orders are 30 % behind: one of its plans costs
            as much as ten of a walk over devices.
        brkga: BRKGA, unless the orders so far are 5 % behind.
        evolve, again: BRKGA and annealing on keys once more, where an order made the best plan.
    """

    placement: float = 0.2
    heft: float = 0.01
    keys: float = 0.04
    brkga: float = 0.06
    evolve: float = 0.2
    again: float = 0.25


DEFAULT_SETTINGS = PortfolioSettings()


class _Found(NamedTuple):
    """What a member found, and its value."""

    value_ns: int
    plan: Plan

    @property
    def is_order(self) -> bool:
        return self.plan.source != annealing.PLACEMENT


def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the best plan of all members; its source is `portfolio:` and its maker's name.

    Raises:
        CapacityError: If no plan that was scored fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    last_call = scorer.num_calls + budget.calls
    seeds = rule_plans(problem, scorer, budget.calls // 10, rng)
    left = Budget(last_call - scorer.num_calls)
    return search(problem, scorer, left, rng, seeds=seeds)


def rule_plans(
    problem: Problem, scorer: Scorer, calls: int, rng: np.random.Generator
) -> tuple[Plan, ...]:
    """Returns the plans of the list rules as far as `calls` scored plans pay for them.

    Where pymetis is not installed METIS is left out, with one warning per process.
    """
    last_call, plans = scorer.num_calls + calls, []
    for rule in RULES:
        left = min(RULE_CALLS, last_call - scorer.num_calls)
        if left < 1:
            break
        try:
            plans.append(rule(problem, scorer, Budget(left), rng))
        except CapacityError:
            continue
        except ConfigError as error:  # pymetis is not installed
            _warn_once(f"the portfolio goes on without a rule: {error}")
    return tuple(plans)


@functools.cache
def _warn_once(message: str) -> None:
    _log.warning(message)


def search(
    problem: Problem,
    scorer: Scorer,
    budget: Budget,
    rng: np.random.Generator,
    settings: PortfolioSettings = DEFAULT_SETTINGS,
    seeds: Sequence[Plan] = (),
) -> Plan:
    """Returns the best plan of all members; see `plan`.

    Args:
        problem: What is placed.
        scorer: Scores plans.
        budget: Plans that may be scored by all members together.
        rng: The only source of randomness.
        settings: How the budget is split.
        seeds: Plans that the walks over devices start from, beside list schedules.
    """
    last_call = scorer.num_calls + budget.calls
    found: list[_Found] = []

    def add(member: Planner, share: float) -> None:
        # One call is kept for the value of what it finds, and one for the last walk.
        calls = min(round(budget.calls * share), last_call - scorer.num_calls - 2)
        if calls < 1:
            return
        try:
            made = member(problem, scorer, Budget(calls), rng)
        except CapacityError:  # the last walk starts from m-ETF too and has the last word
            return
        found.append(_Found(int(scorer.score([made.placement], [made.priority])[0]), made))

    add(_explore(tuple(seeds)), settings.placement)
    add(heft.perturbed, settings.heft)
    if not _orders_are_far(found):
        add(anneal_orders.plan, settings.keys)
    if _orders_are_near(found):
        add(brkga.plan, settings.brkga)
    ranked = sorted(found, key=lambda row: row.value_ns)
    by_order = len(ranked) > 1 and ranked[0].is_order
    if by_order:
        found = ranked[:1]
        add(_evolve([row.plan for row in ranked]), settings.evolve)
        add(_walk_orders(min(found, key=lambda row: row.value_ns).plan), settings.again)
        ranked = [*reversed(found), *ranked[1:]]
    left = Budget(last_call - scorer.num_calls)
    starts = (*(row.plan for row in ranked), *seeds)
    best_plan = anneal(problem, scorer, left, rng, POLISH if by_order else GO_ON, starts, POLISHED)
    makers = [
        start.source
        for start in starts
        if (start.placement, start.priority) == (best_plan.placement, best_plan.priority)
    ]
    return replace(best_plan, source=f"portfolio:{(makers or [POLISHED])[0]}")


def _explore(seeds: tuple[Plan, ...]) -> Planner:
    def member(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
        return anneal(problem, scorer, budget, rng, EXPLORE, seeds, annealing.PLACEMENT)

    return member


def _evolve(seeds: Sequence[Plan]) -> Planner:
    def member(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
        return brkga.evolve_from(problem, scorer, budget, rng, seeds)

    return member


def _walk_orders(start: Plan) -> Planner:
    def member(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
        return anneal_orders.anneal_from(problem, scorer, budget, rng, start)

    return member


def _orders_are_near(found: Sequence[_Found]) -> bool:
    """True unless the best order so far is behind the best devices, or there are not both."""
    orders = [row.value_ns for row in found if row.is_order]
    best = min((row.value_ns for row in found), default=0)
    return len(found) > 1 and bool(orders) and min(orders) <= NEAR * best


def _orders_are_far(found: Sequence[_Found]) -> bool:
    """True if the best order so far is far behind the best devices."""
    orders = [row.value_ns for row in found if row.is_order]
    return bool(orders) and min(orders) > FAR * min(row.value_ns for row in found)
