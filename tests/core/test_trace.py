"""Traces in numbers: makespan, ends of iterations, and the period of the second half."""

import pytest

from doppler.core.errors import DopplerError
from doppler.core.trace import OpSpan, Period, Trace, TransferSpan, half_period, sort_spans


def span(op, iteration, start_ns, end_ns):
    return OpSpan(op, iteration, 0, 0, start_ns, start_ns, end_ns)


def trace(iterations, *spans):
    ops, transfers = sort_spans(spans, ())
    return Trace(
        graph_digest="g",
        cluster_digest="c",
        source="hand",
        runtime="simpy",
        iterations=iterations,
        op_spans=ops,
        transfers=transfers,
        peak_bytes=(0,),
    )


def test_a_makespan_is_from_the_first_start_to_the_last_end():
    assert trace(1, span(0, 0, 5, 9), span(1, 0, 3, 7)).makespan_ns == 6
    assert trace(1).makespan_ns == 0


def test_an_iteration_ends_with_the_last_op_of_it_and_of_all_before():
    """Iteration 1 is over at 8, when an op of iteration 0 still runs."""
    found = trace(3, span(0, 0, 0, 4), span(1, 0, 4, 12), span(0, 1, 4, 8), span(0, 2, 8, 15))
    assert found.iteration_ends_ns() == (12, 12, 15)


@pytest.mark.parametrize("iterations", [20, 21])
def test_a_period_without_recurrence_drops_the_first_half(iterations):
    """Iterations take 100 ns up to the middle (of 0 to 19 it is 9) and 7 ns after it."""
    middle = (iterations - 1) // 2
    ends = [100 * i if i <= middle else 100 * middle + 7 * (i - middle) for i in range(iterations)]
    count = iterations - 1 - middle
    assert half_period(ends) == Period(7 * count, count, exact=False)
    assert half_period(ends).ns == 7.0


def test_too_few_iterations_have_no_period():
    with pytest.raises(DopplerError, match="at least 20 iterations, and the trace has 19"):
        half_period(range(19))


def test_spans_are_sorted_by_time_then_place():
    late, early = span(0, 0, 5, 9), span(1, 0, 3, 7)
    twin = OpSpan(2, 0, 0, 1, 5, 5, 9)
    second = TransferSpan(1, 0, 0, 0, 1, 3, 3, 4, 4)
    first = TransferSpan(0, 1, 0, 0, 1, 3, 9, 9, 9)
    assert sort_spans((twin, late, early), (second, first)) == (
        (early, late, twin),
        (first, second),
    )
