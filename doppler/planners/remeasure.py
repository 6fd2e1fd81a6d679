"""Which plan is best where values carry noise: the last candidates are measured again.

The best of many noisy values is a lucky one. So a part of the budget is kept for the end, and
candidates (the best plans so far, plans handed over and cold samples of the policies) are measured
anew in rounds: those with the smaller sums go on and are measured more often (successive halving).

Source: Karnin et al. 2013 (sequential halving); Jamieson and Talwalkar 2016.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from doppler.core.errors import ConfigError
from doppler.core.plan import Plan
from doppler.core.runtime import Scorer
from doppler.planners.learned_run import AnytimeEvaluator, LearnedRun
from doppler.policies.assignment import Ints
from doppler.policies.sampling import Temperature

COLD = Temperature(select=0.1, place=0.1)
"""Of the policies' samples among the candidates."""

# (placements_BV, priorities_BV) -> value in ns per plan with fresh noise, int64[B]
Measure = Callable[[Ints, Ints], Ints]


@runtime_checkable
class NoisyScorer(Protocol):
    """A scorer that declares noise: an equal plan may get another value the next time.

    Attributes:
        is_noisy: Whether it does.
    """

    is_noisy: bool


def is_noisy(scorer: Scorer) -> bool:
    """True if a scorer declares noise."""
    return isinstance(scorer, NoisyScorer) and scorer.is_noisy


@dataclass(frozen=True, slots=True)
class Halving:
    """Rounds of measuring again.

    Attributes:
        rounds: (candidates that are left, times that each of them is measured) per round.
    """

    rounds: tuple[tuple[int, int], ...] = ((64, 4), (16, 16), (6, 48))

    def __post_init__(self) -> None:
        counts = [count for count, _ in self.rounds]
        ordered = bool(counts) and counts == sorted(counts, reverse=True)
        if not ordered or any(number < 1 for row in self.rounds for number in row):
            raise ConfigError(
                f"rounds have at least 1 candidate and 1 measurement each, never more candidates "
                f"than before, and they are {self.rounds}"
            )

    @property
    def calls(self) -> int:
        """Plans scored by all rounds, at most."""
        return sum(count * times for count, times in self.rounds)

    def within(self, calls: int) -> "Halving | None":
        """Returns it with fewer candidates where all rounds may score `calls` plans, None for 0."""
        part = min(1.0, calls / self.calls)
        rounds = tuple((max(1, int(count * part)), times) for count, times in self.rounds)
        while rounds and Halving(rounds).calls > calls:
            rounds = rounds[1:]
        return Halving(rounds) if rounds else None


def in_time(evaluator: AnytimeEvaluator, halving: Halving, seconds: float | None) -> Halving | None:
    """Returns the rounds that what is left of `seconds` pays for at the run's rate."""
    if seconds is None:
        return halving
    rate = evaluator.simulations / max(1e-3, evaluator.elapsed)
    return halving.within(round(rate * max(0.0, seconds - evaluator.elapsed)))


def best_on_average(
    measure: Measure, placements_BV: Ints, priorities_BV: Ints, halving: Halving
) -> tuple[int, int]:
    """Returns (row of the plan with the smallest mean, that mean in ns).

    Args:
        measure: Scores plans, with fresh noise each time.
        placements_BV: The candidates; the first ones count, if there are too many.
        priorities_BV: Theirs.
        halving: Rounds.
    """
    rows = np.arange(len(placements_BV))[: halving.rounds[0][0]]
    sums, measured = np.zeros(len(placements_BV)), 0
    for count, times in halving.rounds:  # those that are left have been measured equally often
        rows = rows[np.argsort(sums[rows], kind="stable")[:count]]
        for _ in range(times):
            sums[rows] += measure(placements_BV[rows], priorities_BV[rows])
        measured += times
    best = int(rows[int(sums[rows].argmin())])
    return best, round(sums[best] / measured)


def settle(
    run: LearnedRun, measure: Measure, halving: Halving | None, plans: tuple[Plan, ...] = ()
) -> None:
    """Replaces the best plan of a run, a lucky one, by the candidate that is best on average.

    Without rounds, where no plan may be scored any more, the lucky one stays.

    Args:
        run: The run.
        measure: Scores plans, with fresh noise each time.
        halving: Rounds.
        plans: Candidates beside the best plan, the elites and samples of the policies.
    """
    if halving is None:
        return
    placements, priorities = run.linked(*_candidates(run, halving.rounds[0][0], plans))
    if len(placements):
        best, mean_ns = best_on_average(measure, placements, priorities, halving)
        run.evaluator.replace(mean_ns, placements[best], priorities[best])


def _candidates(run: LearnedRun, count: int, plans: tuple[Plan, ...]) -> tuple[Ints, Ints]:
    """Returns (placements_BV, priorities_BV): known plans, each once, and then cold samples.

    The best plan of a search or of the list rules need not be an elite, nor a plan handed over.
    """
    evaluator, learner, assignment = run.evaluator, run.learner, run.learner.inputs.assignment
    known = [np.array([plan.placement, plan.priority], dtype=np.int64) for plan in plans]
    if evaluator.best_placement_V is not None and evaluator.best_priority_V is not None:
        known.insert(0, np.stack([evaluator.best_placement_V, evaluator.best_priority_V]))
    if len(learner.elites):
        episodes = learner.elites.episodes(learner.elites.elites)
        known.extend(np.stack(assignment.plan_arrays(*episodes), axis=1))
    distinct = {pair.tobytes(): pair for pair in known}
    cold = learner.policy.sample(
        learner.inputs,
        max(1, count - len(distinct)),
        learner.rng,
        temperature=COLD,
        threads=learner.threads,
    )
    samples = np.stack(assignment.plan_arrays(cold.orders, cold.devices), axis=1)
    both = np.stack([*distinct.values(), *samples])  # int64[B, 2, V]
    return both[:, 0], both[:, 1]
