"""A race: which of some plans is the fastest on the running job, by successive halving.

Source: Karnin, Koren and Somekh, "Almost Optimal Exploration in Multi-Armed Bandits", ICML 2013,
section 3 (sequential halving: every round has the same share of the windows, its slower half goes).
Ours is what happens where that share is less than a window for each: the round has a window for
each all the same, and the rounds after it share what is left.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from doppler.core.errors import DopplerError


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """What a race found.

    Attributes:
        ranking: Candidates, the winner first; who was in the race for longer is before the others.
        periods: periods[candidate][turn]; a turn measures all that are still in the race, one after
            the other.
    """

    ranking: tuple[int, ...]
    periods: tuple[tuple[float, ...], ...]

    @property
    def winner(self) -> int:
        """The fastest candidate."""
        return self.ranking[0]


def num_rounds(num_candidates: int) -> int:
    """Returns how often a field is halved until one is left."""
    return math.ceil(math.log2(num_candidates))


def race_size(num_windows: int) -> int:
    """Returns for how many candidates an equal share of `num_windows` is a turn in every round."""
    size = 1
    while (size + 1) * num_rounds(size + 1) <= num_windows:
        size += 1
    return size


def fewest_windows(num_candidates: int) -> int:
    """Returns how many windows a race takes at least: one turn in every round."""
    windows = 0
    while num_candidates > 1:
        windows += num_candidates
        num_candidates = _half(num_candidates)
    return windows


def race(
    measure: Callable[[int], float],
    num_candidates: int,
    num_windows: int,
    rng: np.random.Generator,
) -> Race:
    """Races candidates until one is left.

    In a turn all that are left are measured once, in random order, so that their windows are
    neighbours in time. What counts of a candidate is the median over all turns of its period over
    the geometric mean of those that are left: a turn in which the machine was slow counts as much
    as any other.

    Args:
        measure: Measures one window of a candidate; returns its period, above 0.
        num_candidates: Candidates, at least 1; one alone wins without a window.
        num_windows: Windows at most. More make the choice surer.
        rng: Source of the order within a turn.

    Raises:
        DopplerError: If there is no candidate, or there are fewer than `fewest_windows`.
    """
    if num_candidates < 1:
        raise DopplerError(f"a race has at least 1 candidate, and it has {num_candidates}")
    if num_windows < fewest_windows(num_candidates):
        raise DopplerError(
            f"a race of {num_candidates} needs at least {fewest_windows(num_candidates)} windows, "
            f"one per candidate left in each of {num_rounds(num_candidates)} rounds, and it has "
            f"{num_windows}"
        )
    left = list(range(num_candidates))
    out: list[int] = []
    periods: list[list[float]] = [[] for _ in left]
    while len(left) > 1:
        share = num_windows // num_rounds(len(left))
        turns = max(1, share // len(left))
        num_windows -= turns * len(left)
        for _ in range(turns):
            for candidate in rng.permutation(left).tolist():
                periods[candidate].append(measure(candidate))
        ranked = rank(left, periods)
        left = ranked[: _half(len(left))]
        out = ranked[len(left) :] + out
    return Race(ranking=(*left, *out), periods=tuple(map(tuple, periods)))


def rank(candidates: Sequence[int], periods: Sequence[Sequence[float]]) -> list[int]:
    """Returns candidates, the fastest first; all have been in the same turns."""
    turns = list(zip(*(periods[candidate] for candidate in candidates), strict=True))
    means = [statistics.geometric_mean(turn) for turn in turns]
    scores = {
        candidate: statistics.median(
            period / mean for period, mean in zip(periods[candidate], means, strict=True)
        )
        for candidate in candidates
    }
    return sorted(candidates, key=lambda candidate: scores[candidate])


def _half(num_candidates: int) -> int:
    return -(-num_candidates // 2)
