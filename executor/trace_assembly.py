"""Puts what the workers have seen together into one trace."""

from collections.abc import Mapping

from doppler.core.plan import Plan, resident_bytes
from doppler.core.problem import Problem
from doppler.core.trace import OpSpan, Trace, TransferSpan, sort_spans
from executor.messages import SegmentDone


def assemble_trace(
    problem: Problem,
    plan: Plan,
    iterations: int,
    start_ns: int,
    segments: Mapping[int, SegmentDone],
) -> Trace:
    """Returns the trace of a segment, times from `start_ns`, which is before every event.

    Args:
        problem: Graph and cluster.
        plan: The plan that ran.
        iterations: Iterations that ran.
        start_ns: The segment's start on the host's monotonic clock.
        segments: What each device has seen, on the same clock.
    """
    op_spans: list[OpSpan] = []
    for device, segment in segments.items():
        versions = segment.versions or ((),) * len(segment.spans)
        for row, read in zip(segment.spans.tolist(), versions, strict=True):
            op, iteration, stream, ready, start, end = row
            op_spans.append(
                OpSpan(
                    op,
                    iteration,
                    device,
                    stream,
                    ready - start_ns,
                    start - start_ns,
                    end - start_ns,
                    read,
                )
            )
    spans, transfers = sort_spans(op_spans, _transfers(segments, start_ns))
    return Trace(
        graph_digest=problem.graph.digest,
        cluster_digest=problem.cluster.digest,
        source=plan.source,
        runtime="executor",
        iterations=iterations,
        op_spans=spans,
        transfers=transfers,
        peak_bytes=_peak_bytes(problem, plan, segments),
    )


def _transfers(segments: Mapping[int, SegmentDone], start_ns: int) -> list[TransferSpan]:
    """Joins sends and arrivals; nothing is copied, so a send is released as soon as it starts."""
    arrivals = {
        (op, output, iteration, device): arrival
        for device, segment in segments.items()
        for op, output, iteration, arrival in segment.arrivals.tolist()
    }
    return [
        TransferSpan(
            op,
            output,
            iteration,
            device,
            destination,
            request - start_ns,
            start - start_ns,
            start - start_ns,
            arrivals[op, output, iteration, destination] - start_ns,
        )
        for device, segment in segments.items()
        for op, output, iteration, destination, request, start in segment.sends.tolist()
    ]


def _peak_bytes(
    problem: Problem, plan: Plan, segments: Mapping[int, SegmentDone]
) -> tuple[int, ...]:
    """Tensors alive at once, and what lies there from the start."""
    resident = resident_bytes(problem, plan)
    return tuple(segments[device].peak_bytes + size for device, size in enumerate(resident))
