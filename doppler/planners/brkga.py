"""BRKGA: a biased random-key genetic algorithm over orders that HEFT with insertion places.

Source: Goncalves and Resende 2011; parameters as in the project's portfolio study.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import INFEASIBLE_NS, Scorer
from doppler.planners.base import Budget
from doppler.planners.decode import first_fit, score_keys
from doppler.planners.evaluator import Evaluator
from doppler.planners.list_schedule import ListScheduler, make_list_scheduler
from doppler.planners.tables import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class BRKGASettings:
    """Shape of the population.

    Attributes:
        population: Orders per generation.
        elites: Best orders that go on unchanged.
        mutants: New random orders per generation.
        bias: Chance that a child takes a gene from its elite parent.
    """

    population: int = 100
    elites: int = 20
    mutants: int = 20
    bias: float = 0.7


DEFAULT_SETTINGS = BRKGASettings()


def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the best plan of as many generations as the budget allows.

    The first chromosome holds the b-levels, the others are random.

    Raises:
        CapacityError: If no plan that was scored fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    return evolve_from(problem, scorer, budget, rng, ())


def evolve_from(
    problem: Problem,
    scorer: Scorer,
    budget: Budget,
    rng: np.random.Generator,
    seeds: Sequence[Plan],
) -> Plan:
    """Returns the best plan of a population that holds the orders of given plans too."""
    lists = make_list_scheduler(problem, scorer.costs)
    evaluator = Evaluator(problem, scorer, budget, "brkga")
    evolve(lists, evaluator, rng, DEFAULT_SETTINGS, [seed.priority for seed in seeds])
    if evaluator.best_ns >= INFEASIBLE_NS and evaluator.remaining > 0:
        first = lists.heft()
        evaluator.score(lists.mask.placement(first.devices_U)[None], first.priority_V[None])
    return evaluator.plan()


def evolve(
    lists: ListScheduler,
    evaluator: Evaluator,
    rng: np.random.Generator,
    settings: BRKGASettings = DEFAULT_SETTINGS,
    orders: Sequence[Sequence[int]] = (),
) -> None:
    """Spends the evaluator's budget on generations; it keeps the best plan.

    Args:
        lists: Places orders.
        evaluator: Scores.
        rng: The only source of randomness.
        settings: Shape of the population.
        orders: Priorities of plans whose orders are in the first generation.
    """
    num_ops, size = len(lists.levels_V), settings.population
    keys_PV = rng.random((size, num_ops))
    keys_PV[0] = lists.levels_V / max(1.0, float(lists.levels_V.max()))
    for row, priority in enumerate(orders[: size - 1], start=1):
        keys_PV[row] = np.argsort(np.argsort(priority, kind="stable")) / num_ops
    fit, first = first_fit(lists, evaluator, keys_PV[:1])
    values_P = np.full(size, INFEASIBLE_NS)
    values_P[0] = first.values_B[0]
    values_P[1:] = score_keys(lists, evaluator, keys_PV[1:], fit).values_B
    while evaluator.remaining > 0 and values_P.min() < INFEASIBLE_NS:
        order = np.argsort(values_P, kind="stable")
        keys_PV, values_P = keys_PV[order], values_P[order]
        new_PV = np.concatenate(
            [_children(keys_PV, settings, rng), rng.random((settings.mutants, num_ops))]
        )
        keys_PV[settings.elites :] = new_PV
        values_P[settings.elites :] = score_keys(lists, evaluator, new_PV, fit).values_B


def _children(keys_PV: Floats, settings: BRKGASettings, rng: np.random.Generator) -> Floats:
    size, num_ops = keys_PV.shape
    count = size - settings.elites - settings.mutants
    elite_B = rng.integers(settings.elites, size=count)
    other_B = rng.integers(settings.elites, size, size=count)
    from_elite = rng.random((count, num_ops)) < settings.bias
    return np.asarray(np.where(from_elite, keys_PV[elite_B], keys_PV[other_B]))
