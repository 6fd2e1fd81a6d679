"""Simulated annealing over explicit devices and priority keys, scored by the runtime's own rule.

Many starts walk a little, the better ones go on, the best one walks longest: which basin is good
shows early, and within a basin one long walk reaches more than several short ones. A move is
accepted iff value <= current - T ln u with u drawn before scoring, so the scorer may stop a
hopeless run early.

Source: Kirkpatrick et al. 1983; moves and cooling as in the project's portfolio study.
"""

from dataclasses import dataclass

import numpy as np

from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import INFEASIBLE_NS, Scorer
from doppler.planners.anneal_chains import Walk
from doppler.planners.anneal_core import MoveTables, make_move_tables
from doppler.planners.anneal_orders import walk_orders
from doppler.planners.base import Budget
from doppler.planners.evaluator import Evaluator
from doppler.planners.list_schedule import Fit, ListScheduler, make_list_scheduler
from doppler.planners.mask import Ints
from doppler.planners.round_robin import deal

PLACEMENT = "annealing_placement"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnealingSettings:
    """How the budget is spent.

    Attributes:
        hot, cold: First and last temperature, as parts of the best value.
        orders: Part of the budget for a walk over orders that HEFT places (`anneal_orders`).
        rounds: (chains, part of the rest) one after the other; each round goes on from the best
            plans of those before, while the temperature falls on.
        calls_per_chain: A round has no more chains than its calls pay for.
    """

    hot: float = 0.005
    cold: float = 0.0003
    orders: float = 0.25
    rounds: tuple[tuple[int, float], ...] = ((8, 0.3), (3, 0.3), (1, 0.4))
    calls_per_chain: int = 500


DEFAULT_SETTINGS = AnnealingSettings()


def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the best plan of an annealing run that starts from HEFT and round robin.

    Raises:
        CapacityError: If no plan that was scored fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    return anneal(problem, scorer, budget, rng, DEFAULT_SETTINGS)


def plan_placement(
    problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator
) -> Plan:
    """Returns the best plan of an annealing run over devices and keys alone, none over orders.

    Raises:
        CapacityError: If no plan that was scored fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    settings = AnnealingSettings(orders=0.0)
    return anneal(problem, scorer, budget, rng, settings, source=PLACEMENT)


def anneal(
    problem: Problem,
    scorer: Scorer,
    budget: Budget,
    rng: np.random.Generator,
    settings: AnnealingSettings = DEFAULT_SETTINGS,
    seeds: tuple[Plan, ...] = (),
    source: str = "annealing",
) -> Plan:
    """Returns the best plan of an annealing run.

    Args:
        problem: What is placed.
        scorer: Scores plans.
        budget: Plans that may be scored, starts included.
        rng: The only source of randomness.
        settings: How the budget is spent.
        seeds: Plans to start from beside HEFT and round robin (their holds are not kept).
        source: Name of the planner in the plan.

    Raises:
        CapacityError: If no plan that was scored fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    lists = make_list_scheduler(problem, scorer.costs)
    evaluator = Evaluator(problem, scorer, budget, source)
    starts = Starts(lists, evaluator)
    starts.add(seeds)
    starts.walk_orders(rng, settings, round(budget.calls * settings.orders))
    if evaluator.best_ns >= INFEASIBLE_NS or evaluator.remaining <= 0:
        return evaluator.plan()
    walk_rounds(make_move_tables(lists.mask), starts, evaluator, rng, settings)
    return evaluator.plan()


def walk_rounds(
    tables: MoveTables,
    starts: "Starts",
    evaluator: Evaluator,
    rng: np.random.Generator,
    settings: AnnealingSettings,
) -> None:
    """Spends what is left of the evaluator's budget on the rounds of the settings."""
    total, scale = evaluator.remaining, float(max(1, evaluator.best_ns))
    hot, ratio = settings.hot * scale, settings.cold / settings.hot
    before = 0.0
    for index, (most, share) in enumerate(settings.rounds):
        last = index == len(settings.rounds) - 1
        calls = evaluator.remaining if last else min(evaluator.remaining, round(total * share))
        chains = starts.best(max(1, min(most, calls // settings.calls_per_chain)))
        after = 1.0 if last else before + share
        walk = Walk(tables, evaluator, rng, chains)
        walk.run(-(-calls // len(chains)), hot * ratio**before, hot * ratio**after)
        starts.take(walk)
        before = after


class Starts:
    """A pool of distinct plans with their values; the best ones start the chains."""

    def __init__(self, lists: ListScheduler, evaluator: Evaluator) -> None:
        self._lists = lists
        self._evaluator = evaluator
        self._pool: list[tuple[int, Ints, Ints]] = []

    def add(self, seeds: tuple[Plan, ...]) -> None:
        """Scores the given plans, HEFT, round robin, and every device alone."""
        lists = self._lists
        first = lists.heft()
        rows = [
            (lists.mask.devices_of(seed.placement), np.asarray(seed.priority)) for seed in seeds
        ]
        rows += [(first.devices_U, first.priority_V)]
        rows += [(deal(lists.mask), first.priority_V)]
        append = lists.heft(insertion=False)
        rows += [(append.devices_U, append.priority_V)]
        for device in range(lists.mask.num_devices):
            devices_U = lists.mask.complete(lists.mask.prefer_device(device))
            rows.append((devices_U, first.priority_V))
        self._score(rows)
        if self._evaluator.best_ns >= INFEASIBLE_NS:
            roomy = [
                rule(fit=fit) for fit in (Fit.live, Fit.all) for rule in (lists.etf, lists.heft)
            ]
            self._score([(schedule.devices_U, schedule.priority_V) for schedule in roomy])

    def walk_orders(
        self, rng: np.random.Generator, settings: AnnealingSettings, calls: int
    ) -> None:
        """Spends `calls` on orders placed by HEFT; adds the best plan that it meets."""
        if self._evaluator.best_ns >= INFEASIBLE_NS:
            return
        best = walk_orders(self._lists, self._evaluator, rng, calls, settings.hot, settings.cold)
        if best is not None:
            self._insert(*best)

    def take(self, walk: Walk) -> None:
        """Adds what the chains ended with, and the best of all."""
        for chain, value in enumerate(walk.values_C.tolist()):
            self._insert(value, walk.devices_CU[chain].copy(), walk.keys_CV[chain].copy())
        best = self._evaluator
        if best.best_placement_V is not None and best.best_priority_V is not None:
            devices_U = self._lists.mask.devices_of(best.best_placement_V)
            self._insert(best.best_ns, devices_U, best.best_priority_V.copy())

    def best(self, count: int) -> list[tuple[int, Ints, Ints]]:
        """The `count` best distinct plans, fewer where there are fewer."""
        return sorted(self._pool, key=lambda row: row[0])[:count]

    def _score(self, rows: list[tuple[Ints, Ints]]) -> None:
        if not rows or self._evaluator.remaining <= 0:
            return
        devices_BU = np.stack([row[0] for row in rows])
        keys_BV = np.stack([row[1] for row in rows])
        values_B = self._evaluator.score(self._lists.mask.placement(devices_BU), keys_BV)
        for value, devices_U, keys_V in zip(values_B.tolist(), devices_BU, keys_BV, strict=False):
            self._insert(value, devices_U, keys_V)

    def _insert(self, value: int, devices_U: Ints, keys_V: Ints) -> None:
        if value >= INFEASIBLE_NS:
            return
        for known, devices, keys in self._pool:
            if known == value and (devices == devices_U).all() and (keys == keys_V).all():
                return
        self._pool.append((value, devices_U, keys_V))
