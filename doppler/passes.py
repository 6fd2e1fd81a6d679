"""Passes that run one after the other, as one trace: its period is the mean makespan of a pass."""

import dataclasses
from collections.abc import Sequence

from doppler.core.trace import OpSpan, Trace, TransferSpan, sort_spans


def back_to_back(passes: Sequence[Trace]) -> Trace:
    """Returns one trace of single iterations, each beginning where the one before it ends.

    What lies between two passes (getting ready, saying go) belongs to none of them and is left out.

    Args:
        passes: Traces of one iteration each of the same plan, at least one.
    """
    op_spans: list[OpSpan] = []
    transfers: list[TransferSpan] = []
    end_ns = min(span.start_ns for span in passes[0].op_spans)
    for iteration, trace in enumerate(passes):
        shift = end_ns - min(span.start_ns for span in trace.op_spans)
        op_spans += [_moved_op(span, iteration, shift) for span in trace.op_spans]
        transfers += [_moved_transfer(span, iteration, shift) for span in trace.transfers]
        end_ns += trace.makespan_ns
    spans, sends = sort_spans(op_spans, transfers)
    return dataclasses.replace(
        passes[0],
        iterations=len(passes),
        op_spans=spans,
        transfers=sends,
        peak_bytes=tuple(map(max, zip(*(trace.peak_bytes for trace in passes), strict=True))),
    )


def _moved_op(span: OpSpan, iteration: int, shift_ns: int) -> OpSpan:
    return dataclasses.replace(
        span,
        iteration=iteration,
        ready_ns=span.ready_ns + shift_ns,
        start_ns=span.start_ns + shift_ns,
        end_ns=span.end_ns + shift_ns,
    )


def _moved_transfer(span: TransferSpan, iteration: int, shift_ns: int) -> TransferSpan:
    return dataclasses.replace(
        span,
        iteration=iteration,
        request_ns=span.request_ns + shift_ns,
        start_ns=span.start_ns + shift_ns,
        release_ns=span.release_ns + shift_ns,
        arrival_ns=span.arrival_ns + shift_ns,
    )
