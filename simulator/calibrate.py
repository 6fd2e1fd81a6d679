"""Calibration: what measured traces say about op times, interference, dispatch and latency."""

import bisect
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from doppler.core.errors import DopplerError
from doppler.core.graph import Op
from doppler.core.problem import Problem
from doppler.core.trace import OpSpan, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One measured execution of an op, with what else went on when it started.

    Attributes:
        kind: Kind of the op.
        flop: Its size, as `op_size` has it.
        device: Name of the device that ran it.
        device_kind: Kind of that device.
        cores: Cores of that device (0 where it has none).
        busy: Sibling devices that were running an op when it started.
        siblings: Devices cut from the same parent, the own one left out.
        overlap: Part of its duration during which siblings ran an op, added over them: 0 to
            `siblings`.
        duration_ns: Kernel entry to return.
        share: Part of its parent that the device owns.
    """

    kind: str
    flop: int
    device: str
    device_kind: str
    cores: int
    busy: int
    siblings: int
    overlap: float
    duration_ns: int
    share: float = 1.0


def op_size(op: Op) -> int:
    """Returns what tells ops of one kind apart: flop, or bytes moved where an op only moves them.

    Copies, concatenations and sums of one operand do no arithmetic, and yet large ones take longer.
    """
    return op.flop or op.bytes_moved


class _Timeline:
    """Busy intervals of one device, merged over its streams, for point and overlap queries."""

    def __init__(self, spans: Sequence[OpSpan]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._before: list[int] = [0]
        for span in sorted(spans, key=lambda s: s.start_ns):
            if self._ends and span.start_ns <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], span.end_ns)
            else:
                self._starts.append(span.start_ns)
                self._ends.append(span.end_ns)
        for start, end in zip(self._starts, self._ends, strict=True):
            self._before.append(self._before[-1] + end - start)

    def is_busy(self, time_ns: int) -> bool:
        """True if an op runs at `time_ns`."""
        index = bisect.bisect_right(self._starts, time_ns) - 1
        return index >= 0 and time_ns < self._ends[index]

    def busy_until(self, time_ns: int) -> int:
        """Busy nanoseconds before `time_ns`."""
        index = bisect.bisect_right(self._starts, time_ns) - 1
        if index < 0:
            return 0
        return self._before[index] + min(time_ns, self._ends[index]) - self._starts[index]

    def is_idle_between(self, start_ns: int, end_ns: int) -> bool:
        """True if no op runs at any moment of the interval."""
        return self.busy_until(end_ns) == self.busy_until(start_ns) and not self.is_busy(start_ns)


def _timelines(problem: Problem, trace: Trace) -> list[_Timeline]:
    spans: list[list[OpSpan]] = [[] for _ in problem.cluster.devices]
    for span in trace.op_spans:
        spans[span.device].append(span)
    return [_Timeline(rows) for rows in spans]


def observe(problem: Problem, trace: Trace, skip_iterations: int = 0) -> list[Observation]:
    """Returns one observation per op span of the iterations from `skip_iterations` on."""
    timelines = _timelines(problem, trace)
    observations: list[Observation] = []
    for span in trace.op_spans:
        if span.iteration < skip_iterations:
            continue
        op = problem.graph.ops[span.op]
        device = problem.cluster.devices[span.device]
        duration = span.end_ns - span.start_ns
        siblings = [timelines[s] for s in problem.cluster.siblings[span.device]]
        together = sum(t.busy_until(span.end_ns) - t.busy_until(span.start_ns) for t in siblings)
        observations.append(
            Observation(
                kind=op.kind,
                flop=op_size(op),
                device=device.name,
                device_kind=device.kind,
                cores=len(device.cores),
                busy=sum(t.is_busy(span.start_ns) for t in siblings),
                siblings=len(siblings),
                overlap=together / duration if duration else 0.0,
                duration_ns=duration,
                share=device.share,
            )
        )
    return observations


def fit_dispatch_ns(trace: Trace, skip_iterations: int = 0) -> int:
    """Returns the median gap between consecutive ops of a run on one device with one stream.

    Nothing waits for another device there, so a gap is the runtime's own cost per op: posting what
    happened, deciding, starting.

    Raises:
        DopplerError: If the trace has more than one device or stream, or fewer than two ops.
    """
    spans = sorted(trace.op_spans, key=lambda span: span.start_ns)
    places = {(span.device, span.stream) for span in spans}
    if len(places) > 1:
        raise DopplerError(
            f"dispatch cost is fitted from a run on one stream, and the trace has {len(places)}"
        )
    gaps = [
        after.start_ns - before.end_ns
        for before, after in itertools.pairwise(spans)
        if after.iteration >= skip_iterations
    ]
    if not gaps:
        raise DopplerError("dispatch cost is fitted from two ops or more, and the trace has fewer")
    return round(statistics.median(gaps))


def fit_latency_ns(problem: Problem, trace: Trace, skip_iterations: int = 0) -> int | None:
    """Returns the median time from a producer's end to the arrival at an idle device.

    Arrivals at a busy device are left out: they are noticed only when its op has ended. None if
    the trace has no transfer to an idle device.
    """
    timelines = _timelines(problem, trace)
    times = [
        transfer.arrival_ns - transfer.request_ns
        for transfer in trace.transfers
        if transfer.iteration >= skip_iterations
        and timelines[transfer.dst].is_idle_between(transfer.request_ns, transfer.arrival_ns)
    ]
    return round(statistics.median(times)) if times else None
