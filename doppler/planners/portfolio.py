"""The portfolio: every kind of search takes a share of the budget, the best plan wins.

No search wins everywhere: orders that HEFT places (BRKGA, annealing on keys) are strong on layered
graphs and while transfers are short; explicit devices reach what no order leads to (a join whose
sources should share a device). The last share anneals explicit devices from the best plans so far.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from doppler.core.errors import CapacityError
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import Scorer
from doppler.planners import anneal_orders, brkga, heft
from doppler.planners.annealing import AnnealingSettings, anneal
from doppler.planners.base import Budget

POLISHED = "polish"
EXPLORE = AnnealingSettings(orders=0.0, hot=0.03)
POLISH = AnnealingSettings(orders=0.0, hot=0.005)

_Member = Callable[[Problem, Scorer, Budget, np.random.Generator], Plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class PortfolioSettings:
    """Parts of the budget; what they leave goes to the polish, which starts from all their plans.

    Attributes:
        heft: Perturbed HEFT.
        keys: Annealing on keys.
        brkga: BRKGA.
        placement: Annealing on devices, from list schedules.
        explore: How `placement` anneals.
        polish: How the polish anneals.
    """

    heft: float = 0.02
    keys: float = 0.12
    brkga: float = 0.26
    placement: float = 0.3
    explore: AnnealingSettings = EXPLORE
    polish: AnnealingSettings = POLISH


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

    def placement(
        problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator
    ) -> Plan:
        source = "annealing_placement"
        return anneal(problem, scorer, budget, rng, settings.explore, source=source)

    members: tuple[tuple[_Member, float], ...] = (
        (heft.perturbed, settings.heft),
        (anneal_orders.plan, settings.keys),
        (brkga.plan, settings.brkga),
        (placement, settings.placement),
    )
    last_call = scorer.num_calls + budget.calls
    seeds: list[Plan] = []
    for member, share in members:
        calls = round(budget.calls * share)
        if calls < 1:
            continue
        try:
            seeds.append(member(problem, scorer, Budget(calls), rng))
        except CapacityError:  # the polish starts from m-ETF too and has the last word
            continue
    left = Budget(last_call - scorer.num_calls)
    best = anneal(problem, scorer, left, rng, settings.polish, tuple(seeds), POLISHED)
    makers = [
        seed.source
        for seed in seeds
        if (seed.placement, seed.priority) == (best.placement, best.priority)
    ]
    return replace(best, source=f"portfolio:{(makers or [POLISHED])[0]}")
