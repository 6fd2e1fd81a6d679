"""The portfolio: every kind of search takes a share of the budget, the leader gets the rest.

No search wins everywhere: orders that HEFT places (BRKGA, annealing on keys) are strong on layered
graphs and while transfers are short; explicit devices reach what no order leads to (a join whose
sources should share a device). So all of them run first, and what is left goes on from the best
plan: over orders and then over devices if orders lead, else over devices alone.
"""

from dataclasses import dataclass, replace

import numpy as np

from doppler.core.errors import CapacityError
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import Scorer
from doppler.planners import anneal_orders, annealing, brkga, heft
from doppler.planners.annealing import AnnealingSettings, anneal
from doppler.planners.base import Budget, Planner

EXPLORE = AnnealingSettings(orders=0.0)
POLISH = AnnealingSettings(orders=0.0, hot=0.003)
POLISHED = "polish"


@dataclass(frozen=True, slots=True, kw_only=True)
class PortfolioSettings:
    """Parts of the budget; what they leave goes to the polish, which starts from all their plans.

    Attributes:
        heft: Perturbed HEFT.
        keys: Annealing on keys.
        brkga: BRKGA.
        placement: Annealing on devices, from list schedules.
        again: Annealing on keys from the best plan, where an order made it.
    """

    heft: float = 0.02
    keys: float = 0.15
    brkga: float = 0.2
    placement: float = 0.18
    again: float = 0.25


DEFAULT_SETTINGS = PortfolioSettings()


def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the best plan of all members; its source is `portfolio:` and its maker's name.

    Raises:
        CapacityError: If no plan that was scored fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    return search(problem, scorer, budget, rng, DEFAULT_SETTINGS)


def search(
    problem: Problem,
    scorer: Scorer,
    budget: Budget,
    rng: np.random.Generator,
    settings: PortfolioSettings = DEFAULT_SETTINGS,
) -> Plan:
    """Returns the best plan of all members; see `plan`.

    Args:
        problem: What is placed.
        scorer: Scores plans.
        budget: Plans that may be scored by all members together.
        rng: The only source of randomness.
        settings: How the budget is split.
    """
    members: tuple[tuple[Planner, float], ...] = (
        (annealing.plan_placement, settings.placement),
        (heft.perturbed, settings.heft),
        (anneal_orders.plan, settings.keys),
        (brkga.plan, settings.brkga),
    )
    last_call = scorer.num_calls + budget.calls
    seeds: list[Plan] = []
    for member, share in members:
        calls = round(budget.calls * share)
        if calls < 1:
            continue
        try:
            seeds.append(member(problem, scorer, Budget(calls), rng))
        except CapacityError:  # the last walk starts from m-ETF too and has the last word
            continue
    seeds, by_order = _best_first(scorer, seeds, last_call - scorer.num_calls)
    calls = round(budget.calls * settings.again)
    if by_order and calls >= 1:
        seeds.insert(0, anneal_orders.anneal_from(problem, scorer, Budget(calls), rng, seeds[0]))
    left = Budget(last_call - scorer.num_calls)
    how = POLISH if by_order else EXPLORE
    best = anneal(problem, scorer, left, rng, how, tuple(seeds), POLISHED)
    makers = [
        seed.source
        for seed in seeds
        if (seed.placement, seed.priority) == (best.placement, best.priority)
    ]
    return replace(best, source=f"portfolio:{(makers or [POLISHED])[0]}")


def _best_first(scorer: Scorer, seeds: list[Plan], calls: int) -> tuple[list[Plan], bool]:
    """The plans by value, and True if an order made the best one; as they are without calls."""
    if len(seeds) < 2 or calls <= len(seeds):
        return seeds, False
    values = scorer.score([seed.placement for seed in seeds], [seed.priority for seed in seeds])
    ranked = [seeds[row] for row in np.argsort(values, kind="stable")]
    return ranked, ranked[0].source != "annealing_placement"
