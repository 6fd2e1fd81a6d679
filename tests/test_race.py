"""Races: the fastest wins, windows are counted, drift of the machine changes nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler.core.errors import DopplerError
from doppler.race import fewest_windows, num_rounds, race, race_size, rank


class Track:
    """Windows of candidates with given periods on a machine whose speed changes.

    Attributes:
        calls: Candidates in the order in which they were measured.
    """

    def __init__(self, periods, slowness=lambda window: 1.0):
        self.periods, self.slowness = periods, slowness
        self.calls = []

    def measure(self, candidate):
        self.calls.append(candidate)
        return self.periods[candidate] * self.slowness(len(self.calls) - 1)


@given(
    periods=st.lists(st.integers(1, 10**9), min_size=1, max_size=20, unique=True),
    spare=st.integers(0, 100),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_fastest_wins_within_the_windows(periods, spare, seed):
    track = Track(periods)
    windows = fewest_windows(len(periods)) + spare
    found = race(track.measure, len(periods), windows, np.random.default_rng(seed))
    assert periods[found.winner] == min(periods)
    assert sorted(found.ranking) == list(range(len(periods)))
    assert len(track.calls) <= windows
    assert [len(row) for row in found.periods] == [
        track.calls.count(candidate) for candidate in range(len(periods))
    ]
    lasted = [len(found.periods[candidate]) for candidate in found.ranking]
    assert lasted == sorted(lasted, reverse=True)


def test_every_round_has_its_share_and_halves_the_field():
    track = Track([6, 5, 4, 3, 2, 1])
    found = race(track.measure, 6, 54, np.random.default_rng(0))
    # 18 windows a round: 3 turns of 6, 6 turns of 3, 9 turns of 2.
    assert [len(row) for row in found.periods] == [3, 3, 3, 9, 18, 18]
    assert found.ranking == (5, 4, 3, 2, 1, 0)


def test_a_round_has_a_turn_even_if_that_is_more_than_its_share():
    track = Track(range(1, 12))
    found = race(track.measure, 11, 29, np.random.default_rng(0))
    # 11 for the first round, and the 18 that are left for rounds of 6, 3 and 2.
    assert [len(row) for row in found.periods] == [7, 7, 4, 2, 2, 2, 1, 1, 1, 1, 1]
    assert fewest_windows(11) == 11 + 6 + 3 + 2
    assert race(track.measure, 11, 22, np.random.default_rng(0)).winner == 0


def test_neighbours_in_time_are_compared():
    # The second has the smaller median, and yet two of three times it loses to its neighbour.
    assert rank([0, 1], [[10.0, 1.0, 30.0], [9.0, 1.1, 33.0]]) == [0, 1]
    assert rank([1, 0], [[10.0, 1.2, 30.0], [9.0, 1.1, 33.0]]) == [1, 0]


def test_one_disturbed_window_puts_nobody_out():
    track = Track([1.0, 1.2], lambda window: 9.0 if window == 0 else 1.0)
    assert race(track.measure, 2, 10, np.random.default_rng(1)).winner == 0


def test_a_race_has_room_for_what_its_size_says():
    for windows in range(200):
        size = race_size(windows)
        assert size * num_rounds(size) <= windows
        assert (size + 1) * num_rounds(size + 1) > windows


def test_what_cannot_be_raced_is_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(DopplerError, match="at least 1 candidate, and it has 0"):
        race(lambda candidate: 1.0, 0, 10, rng)
    with pytest.raises(DopplerError, match=r"race of 3 needs at least 5 windows.*has 4"):
        race(lambda candidate: 1.0, 3, 4, rng)
