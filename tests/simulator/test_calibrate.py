"""Calibration from hand-written traces: who was busy, for how long, and what the runtime costs."""

import pytest

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.errors import DopplerError
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.problem import Problem
from doppler.core.trace import OpSpan, Trace, TransferSpan, sort_spans
from simulator.calibrate import fit_dispatch_ns, fit_latency_ns, observe


def problem_of(num_devices: int, num_streams: int = 1, parents: str = "cpu") -> Problem:
    """Two ops of different size, on sibling cores; `parents` names one parent per device."""
    owners = [parents] * num_devices if parents == "cpu" else list(parents)
    names = [f"core{index}" for index in range(num_devices)]
    return Problem(
        graph=DataflowGraph(
            name="pair",
            ops=(
                Op(kind="walk", name="a", outputs=(8,), flop=100),
                Op(kind="learn", name="b", outputs=(8,), flop=200),
            ),
            edges=(Edge(0, 0, 1),),
        ),
        cluster=Cluster(
            name="cores",
            devices=tuple(
                Device(
                    name=name,
                    kind="cpu",
                    parent=owner,
                    num_streams=num_streams,
                    cores=(index,),
                    copy_engines=0,
                )
                for index, (name, owner) in enumerate(zip(names, owners, strict=True))
            ),
            links=tuple(Link(src=a, dst=b) for a in names for b in names if a != b),
        ),
    )


def span(device: int, start: int, end: int, **fields: int) -> OpSpan:
    """A span of op 0 that was ready when it started, unless `fields` say otherwise."""
    return OpSpan(
        op=fields.get("op", 0),
        iteration=fields.get("iteration", 0),
        device=device,
        stream=fields.get("stream", 0),
        ready_ns=fields.get("ready", start),
        start_ns=start,
        end_ns=end,
    )


def transfer(request: int, arrival: int, src: int = 0, dst: int = 1, it: int = 0) -> TransferSpan:
    return TransferSpan(
        op=0,
        output=0,
        iteration=it,
        src=src,
        dst=dst,
        request_ns=request,
        start_ns=request,
        release_ns=request,
        arrival_ns=arrival,
    )


def trace_of(*spans: OpSpan, transfers: tuple[TransferSpan, ...] = ()) -> Trace:
    ops, moves = sort_spans(spans, transfers)
    return Trace(
        graph_digest="",
        cluster_digest="",
        source="hand",
        runtime="executor",
        iterations=1 + max((s.iteration for s in spans), default=0),
        op_spans=ops,
        transfers=moves,
        peak_bytes=(),
    )


def test_an_observation_carries_op_device_and_duration() -> None:
    seen = observe(problem_of(2), trace_of(span(1, 10, 60, op=1)))
    assert len(seen) == 1
    assert (seen[0].kind, seen[0].flop, seen[0].device) == ("learn", 200, "core1")
    assert (seen[0].device_kind, seen[0].cores, seen[0].duration_ns) == ("cpu", 1, 50)


@pytest.mark.parametrize(
    ("start", "end", "busy"),
    [
        (100, 300, 1),  # both start together
        (150, 300, 1),  # inside
        (199, 300, 1),  # the last nanosecond
        (200, 300, 0),  # the sibling has just ended
        (50, 300, 0),  # the sibling starts later
    ],
)
def test_busy_counts_siblings_that_run_at_the_start(start: int, end: int, busy: int) -> None:
    seen = observe(problem_of(2), trace_of(span(0, start, end), span(1, 100, 200)))
    assert next(s.busy for s in seen if s.device == "core0") == busy


def test_busy_counts_every_sibling_once() -> None:
    trace = trace_of(span(0, 100, 200), span(1, 50, 150), span(2, 0, 101), span(3, 150, 200))
    seen = {s.device: s for s in observe(problem_of(4), trace)}
    assert (seen["core0"].busy, seen["core0"].siblings) == (2, 3)


def test_overlap_is_the_part_of_the_duration_beside_siblings() -> None:
    # core0 runs 100..200; core1 120..150 and 180..260: 30 + 20 of 100.
    trace = trace_of(span(0, 100, 200), span(1, 120, 150), span(1, 180, 260))
    seen = {(s.device, s.duration_ns): s for s in observe(problem_of(2), trace)}
    assert seen["core0", 100].overlap == pytest.approx(0.5)
    assert seen["core1", 30].overlap == pytest.approx(1.0)
    assert seen["core1", 80].overlap == pytest.approx(20 / 80)


def test_overlap_adds_up_over_siblings() -> None:
    trace = trace_of(span(0, 0, 100), span(1, 0, 100), span(2, 50, 100), span(3, 75, 175))
    seen = {s.device: s for s in observe(problem_of(4), trace)}
    assert seen["core0"].overlap == pytest.approx(1.0 + 0.5 + 0.25)


def test_spans_of_two_streams_of_a_sibling_count_once() -> None:
    # core1 runs 0..60 on one stream and 40..80 on the other: busy for 80, not for 100.
    trace = trace_of(span(0, 0, 100), span(1, 0, 60), span(1, 40, 80, stream=1))
    seen = {(s.device, s.duration_ns): s for s in observe(problem_of(2, num_streams=2), trace)}
    assert seen["core0", 100].overlap == pytest.approx(0.8)
    assert seen["core0", 100].busy == 1


def test_devices_of_another_parent_are_no_siblings() -> None:
    trace = trace_of(span(0, 0, 100), span(1, 0, 100), span(2, 0, 100))
    seen = {s.device: s for s in observe(problem_of(3, parents="xxy"), trace)}
    assert (seen["core0"].busy, seen["core0"].overlap) == (1, 1.0)
    assert (seen["core2"].busy, seen["core2"].overlap) == (0, 0.0)


def test_an_op_without_duration_has_no_overlap() -> None:
    trace = trace_of(span(0, 50, 50), span(1, 0, 100))
    seen = {s.device: s for s in observe(problem_of(2), trace)}
    assert (seen["core0"].overlap, seen["core0"].busy, seen["core0"].duration_ns) == (0.0, 1, 0)


def test_skipped_iterations_give_no_observation_but_keep_siblings_busy() -> None:
    trace = trace_of(span(1, 0, 100), span(0, 50, 150, iteration=1))
    seen = observe(problem_of(2), trace, skip_iterations=1)
    assert [(s.device, s.busy, s.overlap) for s in seen] == [("core0", 1, 0.5)]


def test_dispatch_is_the_median_gap_of_a_run_on_one_stream() -> None:
    spans = (span(0, 41, 50), span(0, 0, 10), span(0, 25, 30), span(0, 13, 20))  # gaps 3, 5, 11
    assert fit_dispatch_ns(trace_of(*spans)) == 5


@pytest.mark.parametrize("other", [span(1, 14, 20), span(0, 14, 20, stream=1)])
def test_dispatch_refuses_a_run_on_two_devices_or_streams(other: OpSpan) -> None:
    with pytest.raises(DopplerError, match="a run on one stream, and the trace has 2"):
        fit_dispatch_ns(trace_of(span(0, 0, 10), span(0, 12, 20), other))


def test_dispatch_leaves_out_skipped_iterations() -> None:
    spans = (span(0, 0, 10), span(0, 90, 100), span(0, 104, 110, iteration=1))
    assert fit_dispatch_ns(trace_of(*spans), skip_iterations=1) == 4


def test_dispatch_needs_two_ops() -> None:
    for trace, skip in ((trace_of(), 0), (trace_of(span(0, 0, 10)), 0)):
        with pytest.raises(DopplerError, match="two ops or more, and the trace has fewer"):
            fit_dispatch_ns(trace, skip)
    with pytest.raises(DopplerError, match="two ops or more"):
        fit_dispatch_ns(trace_of(span(0, 0, 10), span(0, 12, 20)), skip_iterations=1)


def test_latency_is_the_median_over_transfers_to_idle_devices() -> None:
    moves = (transfer(10, 13), transfer(20, 25), transfer(30, 41))
    assert fit_latency_ns(problem_of(2), trace_of(span(0, 0, 10), transfers=moves)) == 5


def test_latency_leaves_out_arrivals_at_a_busy_device() -> None:
    # core1 runs 20..40: busy at the request, during the flight, and at the arrival.
    moves = (transfer(30, 90), transfer(15, 60), transfer(10, 25), transfer(40, 47))
    moves += (transfer(30, 30), transfer(20, 20))
    trace = trace_of(span(0, 0, 10), span(1, 20, 40), transfers=moves)
    assert fit_latency_ns(problem_of(2), trace) == 7


def test_latency_is_none_where_every_destination_was_busy() -> None:
    trace = trace_of(span(1, 0, 100), transfers=(transfer(10, 20),))
    assert fit_latency_ns(problem_of(2), trace) is None
    assert fit_latency_ns(problem_of(2), trace_of(span(0, 0, 10))) is None


def test_latency_leaves_out_skipped_iterations() -> None:
    moves = (transfer(10, 99), transfer(120, 126, it=1))
    trace = trace_of(span(0, 0, 10), span(0, 110, 120, iteration=1), transfers=moves)
    assert fit_latency_ns(problem_of(2), trace, skip_iterations=1) == 6
