"""Measured periods, intervals, interleaving."""

import numpy as np
import pytest

from doppler.core.errors import DopplerError
from doppler.core.plan import Plan
from doppler.core.trace import OpSpan, Trace
from doppler.measure import (
    Margins,
    compare_interleaved,
    in_turns,
    keep_or_leave,
    measured_period_ns,
    median_interval,
    ratio_interval,
)


def trace(ends):
    spans = tuple(OpSpan(0, i, 0, 0, 0, end - 1, end) for i, end in enumerate(ends))
    return Trace(
        graph_digest="g",
        cluster_digest="c",
        source="s",
        runtime="executor",
        iterations=len(ends),
        op_spans=spans,
        transfers=(),
        peak_bytes=(0,),
    )


def plan(name):
    return Plan(graph_digest="g", cluster_digest="c", placement=(), priority=(), source=name)


def test_the_first_iteration_fills_the_pipeline_and_is_left_out():
    assert measured_period_ns(trace([50, 60, 75, 86])) == 12


def test_alternating_iterations_count_with_their_mean():
    assert measured_period_ns(trace([0, 80, 200, 280, 400])) == 100


def test_a_late_end_of_an_early_iteration_counts_for_all_later_ones():
    # iteration 0 ends after iteration 1: E_1 = E_0 = 90
    assert measured_period_ns(trace([90, 60, 100])) == 5


def test_a_window_that_is_too_short_is_refused():
    with pytest.raises(DopplerError, match="at least 3 iterations, and the trace has 2"):
        measured_period_ns(trace([1, 2]))


def test_margins_leave_out_where_less_is_done_ahead():
    """Iterations take 12 in the middle, 9 while nothing was done ahead and 10, 8 at the end."""
    ends = [20, 29, 41, 53, 65, 75, 83]
    assert measured_period_ns(trace(ends), Margins(head=2, tail=2)) == 12
    assert measured_period_ns(trace(ends), Margins(head=2)) == 54 / 5
    assert measured_period_ns(trace(ends), Margins(tail=2)) == 45 / 4
    assert measured_period_ns(trace(ends)) == 63 / 6
    with pytest.raises(DopplerError, match=r"3 iterations beside its margins of 5, and .* has 7"):
        measured_period_ns(trace(ends), Margins(head=3, tail=3))


def test_ratio_interval_of_six_ratios_is_all_that_was_seen():
    result = ratio_interval([1.5, 1.1, 1.2, 1.3, 1.4, 1.0])
    assert (result.low, result.high) == (1.0, 1.5)  # 2 x 0.5^6 = 3.1 % lie outside
    assert result.value == pytest.approx(1.25)


@pytest.mark.parametrize(("count", "rank"), [(8, 1), (9, 2), (12, 3), (15, 4), (20, 6), (24, 7)])
def test_ratio_interval_uses_the_table_of_the_sign_test(count, rank):
    """Ranks of the 95 % interval of a median, from the published binomial tables."""
    ratios = np.random.default_rng(count).lognormal(size=count).tolist()
    result = ratio_interval(ratios)
    assert (result.low, result.high) == (sorted(ratios)[rank - 1], sorted(ratios)[-rank])


def test_intervals_of_many_ratios_are_those_of_the_normal_approximation():
    """Rank of the lower end: n / 2 - 1.96 sqrt(n) / 2, half a rank of continuity."""
    for count in (400, 2000):
        result = ratio_interval(list(range(count)))
        expected = count / 2 - 1.96 * count**0.5 / 2 - 0.5
        assert result.low == pytest.approx(expected - 0.5, abs=1.0)
        assert result.low + result.high == count - 1


def test_all_take_turns_forwards_and_backwards_and_the_first_turn_warms_up():
    turns = list(in_turns(3, 2))
    assert [index for index, _ in turns] == [0, 1, 2, 2, 1, 0, 0, 1, 2]
    assert [counts for _, counts in turns] == [False] * 3 + [True] * 6


def test_a_few_disturbed_windows_do_not_move_a_ratio():
    quiet = [1.0 + 0.001 * k for k in range(24)]
    disturbed = [*quiet[:20], 20.0, 30.0, 40.0, 50.0]
    assert ratio_interval(disturbed) == ratio_interval(quiet)


def test_swapping_the_two_sides_inverts_the_interval():
    ratios = [0.9, 1.3, 1.1, 2.0, 1.05, 0.7, 1.2]  # an odd number: the median is one of them
    one, other = ratio_interval(ratios), ratio_interval([1 / ratio for ratio in ratios])
    assert (other.value, other.low, other.high) == pytest.approx(
        (1 / one.value, 1 / one.high, 1 / one.low)
    )


def test_five_ratios_have_no_interval():
    with pytest.raises(DopplerError, match="at least 6 ratios, and there are 5"):
        ratio_interval([1.0] * 5)


def test_median_interval_brackets_the_median():
    result = median_interval(list(range(101)), np.random.default_rng(0))
    assert result.low < result.value == 50 < result.high


def test_blocks_go_a_b_b_a_until_the_interval_is_narrow():
    order = []

    def run(which, iterations):
        order.append(which.source)
        step = 20 if which.source == "a" else 10
        return trace([step * (i + 1) for i in range(iterations)])

    result = compare_interleaved(
        run,
        plan("a"),
        plan("b"),
        iterations=4,
        min_blocks=3,
        max_blocks=5,
        half_width=0.03,
        rng=np.random.default_rng(0),
    )
    assert order == ["a", "b", "b", "a"] * 3
    assert result.ratio.value == pytest.approx(2.0)
    assert result.blocks == 3
    assert (result.first_ns.value, result.second_ns.value) == (20, 10)


def test_a_noisy_comparison_stops_at_the_most_blocks():
    steps = iter([10, 11, 30, 12, 17] * 20)

    def run(which, iterations):
        step = next(steps) + (5 if which.source == "a" else 0)
        return trace([step * (i + 1) for i in range(iterations)])

    result = compare_interleaved(
        run,
        plan("a"),
        plan("b"),
        iterations=3,
        min_blocks=3,
        max_blocks=4,
        half_width=1e-9,
        rng=np.random.default_rng(0),
    )
    assert result.blocks == 4


def test_a_plan_is_left_only_for_one_that_is_faster_in_every_one_of_six_rounds():
    incumbent = [10.0, 11.0, 12.0, 20.0, 13.0, 10.0]
    faster = [value * 0.97 for value in incumbent]
    much_faster = [value * 0.8 for value in incumbent]
    mostly = [*[value * 0.5 for value in incumbent[:5]], 10.1]
    assert keep_or_leave([incumbent, mostly], 0) == 0
    assert keep_or_leave([incumbent, incumbent], 1) == 1
    assert keep_or_leave([faster, incumbent], 1) == 0
    assert keep_or_leave([faster, incumbent, much_faster], 1) == 2
    with pytest.raises(DopplerError, match="at least 6 ratios"):
        keep_or_leave([incumbent[:5], faster[:5]], 0)
