"""Choices between ways to communicate, on streams of times made by hand."""

from itertools import count, repeat

import numpy as np
import pytest

from doppler.gmi_duel import Block, duel, judge
from doppler.measure import MIN_RATIOS

MOST = 80
FAST, SHARED = (50.0, 62.0), (155.0, 148.0)
"""What direct and tree took of two members with a core each, and of two on one core, in us."""


def decide(stream, most=MOST):
    """Judges a stream of blocks until it is decided, of `most` blocks at most."""
    blocks, asked = iter(stream), count(1)
    return duel(
        lambda: next(blocks), lambda verdict: verdict.is_decided, lambda: next(asked) >= most
    )


def blocks_of(times, num, rng, granted=1.0, noise=0.02):
    """Blocks round `times`, each candidate with noise of its own."""
    factors = rng.lognormal(sigma=noise, size=(num, len(times)))
    return [Block(medians_ns=tuple(row), granted=granted) for row in np.multiply(factors, times)]


@pytest.fixture(params=range(5))
def rng(request):
    return np.random.default_rng(request.param)


def test_a_clear_winner_is_known_after_the_least_blocks(rng):
    verdict = decide(blocks_of((62.0, 50.0, 70.0), MOST, rng))
    assert (verdict.chosen, verdict.is_decided) == (1, True)
    assert verdict.num_blocks == verdict.num_quiet == MIN_RATIOS


@pytest.mark.parametrize("stretch", [(0, 30), (3, 20), (5, 60)])
def test_a_disturbed_stretch_is_left_out_and_more_is_measured(rng, stretch):
    """While members share a core the other one is faster, in every block."""
    start, length = stretch
    stream = [
        *blocks_of(FAST, start, rng),
        *blocks_of(SHARED, length, rng, granted=0.5),
        *blocks_of(FAST, MOST, rng),
    ]
    verdict = decide(stream)
    assert (verdict.chosen, verdict.is_decided) == (0, True)
    assert (verdict.num_blocks, verdict.num_quiet) == (length + MIN_RATIOS, MIN_RATIOS)
    assert verdict.medians_ns == pytest.approx(FAST, rel=0.05)


def test_what_is_disturbed_to_the_end_is_undecided_and_prediction_decides(rng):
    verdict = decide(blocks_of(SHARED, MOST, rng, granted=0.5))
    assert (verdict.chosen, verdict.is_decided) == (0, False)
    assert (verdict.num_blocks, verdict.num_quiet) == (MOST, 0)
    assert verdict.medians_ns == pytest.approx(SHARED, rel=0.02)  # all that there is
    clear = decide(blocks_of((300.0, 148.0), MOST, rng, granted=0.5))
    assert (clear.chosen, clear.is_decided) == (1, False)  # no disturbance makes twice as slow


def test_few_quiet_blocks_prove_no_small_difference(rng):
    stream = [
        *blocks_of((50.0, 48.0), MIN_RATIOS - 1, rng, noise=0.001),
        *blocks_of(SHARED, MOST, rng, granted=0.5),
    ]
    verdict = decide(stream)
    assert (verdict.chosen, verdict.is_decided) == (0, False)
    assert verdict.num_calls == MIN_RATIOS - 1  # a block here is a call
    assert verdict.medians_ns == pytest.approx((50.0, 48.0), rel=0.01)


def test_a_slow_start_of_all_does_not_count(rng):
    """As the machine starts, all are three times as slow, and the second is ahead."""
    verdict = decide([*blocks_of((150.0, 120.0), 2, rng), *blocks_of((50.0, 60.0), MOST, rng)])
    assert (verdict.chosen, verdict.is_decided) == (0, True)
    assert verdict.num_quiet == MIN_RATIOS == verdict.num_blocks - 2


def test_a_candidate_that_is_slow_in_most_calls_is_slow_though_it_can_be_fast(rng):
    """Its own two speeds are no disturbance: the other one is as fast as ever meanwhile."""
    slow = rng.random((MOST, 10)) < 0.75
    first = np.median(np.where(slow, 100.0, 30.0), axis=1)
    verdict = decide([Block(medians_ns=(time, 50.0)) for time in first])
    assert (verdict.chosen, verdict.is_decided) == (1, True)
    assert verdict.num_quiet == verdict.num_blocks


def test_one_spoiled_block_is_outvoted_by_a_few_more(rng):
    quiet = blocks_of(FAST, MOST, rng)
    stream = [*quiet[:2], Block(medians_ns=(500.0, 60.0)), *quiet[2:]]
    verdict = decide(stream)
    assert (verdict.chosen, verdict.is_decided) == (0, True)
    assert MIN_RATIOS < verdict.num_blocks <= 9  # of nine ratios one may lie beyond


def test_equals_are_not_measured_for_long_and_noise_that_hides_them_leaves_the_first(rng):
    equal = decide(blocks_of((50.0, 50.0), MOST, rng, noise=0.005))
    assert equal.is_decided
    assert equal.num_blocks == MIN_RATIOS
    hidden = decide(blocks_of((50.0, 50.0), 12, rng, noise=0.8), most=12)
    assert (hidden.chosen, hidden.is_decided, hidden.num_blocks) == (0, False, 12)


def test_a_slower_favourite_is_left_though_two_others_are_as_fast_as_each_other():
    rows = [(80.0, 50.0, 48.0), (80.0, 48.0, 50.0)] * 6
    verdict = judge([Block(medians_ns=row) for row in rows])
    assert (verdict.chosen, verdict.is_decided) == (1, False)


def test_what_is_enough_is_asked_only_of_enough_quiet_blocks():
    stream = [Block(medians_ns=FAST, granted=0.5)] * 4 + [Block(medians_ns=FAST)] * MOST
    blocks = iter(stream)
    verdict = duel(lambda: next(blocks), lambda verdict: True, lambda: False)
    assert verdict.num_blocks == 4 + MIN_RATIOS
    one = duel(lambda: Block(medians_ns=FAST), lambda verdict: True, lambda: True)
    assert one.num_blocks == 1


def test_one_candidate_wins():
    verdict = decide(repeat(Block(medians_ns=(7.0,))))
    assert (verdict.chosen, verdict.is_decided, verdict.num_blocks) == (0, True, MIN_RATIOS)
