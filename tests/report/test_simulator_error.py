"""Simulator errors: medians, counts and the formula, by hand."""

import dataclasses

import pytest

from doppler.core.errors import FormatError
from doppler.core.graph import DataflowGraph, Op
from doppler.core.trace import OpSpan, Trace
from doppler.report.simulator_error import (
    kind_errors,
    median_absolute_error,
    op_errors,
    relative_error,
)

GRAPH = DataflowGraph(
    name="kinds",
    ops=(Op(kind="a", name="a0"), Op(kind="a", name="a1"), Op(kind="b", name="b0")),
)


def _trace(durations):
    spans = tuple(OpSpan(op, it, 0, 0, 0, 100, 100 + ns) for op, it, ns in durations)
    return Trace(
        graph_digest=GRAPH.digest,
        cluster_digest="",
        source="",
        runtime="executor",
        iterations=3,
        op_spans=spans,
        transfers=(),
        peak_bytes=(0,),
    )


def test_rows_are_medians_with_counts_largest_measured_total_first():
    simulated = _trace([(0, 0, 11), (1, 0, 11)])
    measured = _trace([(0, 0, 9), (0, 1, 10), (1, 0, 30), (2, 0, 50)])
    b, a = kind_errors(GRAPH, simulated, measured)
    assert (b.kind, b.simulated_count, b.measured_count) == ("b", 0, 1)
    assert (b.simulated_ns, b.measured_ns, b.relative_error) == (None, 50, None)
    assert (a.kind, a.simulated_ns, a.measured_ns) == ("a", 11, 10)
    assert a.relative_error == pytest.approx(0.1)
    assert median_absolute_error((a, b)) == pytest.approx(0.1)
    assert median_absolute_error((b,)) is None


def test_points_are_per_op_and_device():
    simulated = _trace([(0, 0, 11), (1, 0, 11)])
    measured = _trace([(0, 0, 9), (0, 1, 10), (0, 2, 20), (2, 0, 50)])
    (point,) = op_errors(GRAPH, ("core0",), simulated, measured)
    assert (point.name, point.device, point.simulated_ns, point.measured_ns) == (
        "a0",
        "core0",
        11,
        10,
    )


@pytest.mark.parametrize(("simulated", "measured"), [(None, 5), (5, None), (5, 0)])
def test_no_error_without_both_times(simulated, measured):
    assert relative_error(simulated, measured) is None


def test_a_foreign_trace_is_refused():
    foreign = dataclasses.replace(_trace([]), graph_digest="beef")
    with pytest.raises(FormatError, match="executor trace ran graph beef"):
        kind_errors(GRAPH, _trace([]), foreign)
