"""The trace: spans of ops and transfers, the same type from simulator and executor."""

from collections.abc import Sequence
from dataclasses import dataclass

from doppler.core.errors import DopplerError

MIN_PERIOD_ITERATIONS = 20


@dataclass(frozen=True, slots=True)
class OpSpan:
    """One execution of an op.

    Attributes:
        op, iteration, device, stream: What ran where.
        ready_ns: When its last input, credit and previous iteration were there.
        start_ns, end_ns: Kernel entry and return.
        versions: Version read by each `latest` in-edge, in edge order; -1, -2, ... are initial.
    """

    op: int
    iteration: int
    device: int
    stream: int
    ready_ns: int
    start_ns: int
    end_ns: int
    versions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TransferSpan:
    """One tensor on its way to one device.

    Attributes:
        op, output, iteration: The tensor.
        src, dst: Device ids.
        request_ns: When the producer ended.
        start_ns, release_ns: When it took and left its buses (or its sender's stream).
        arrival_ns: When it was complete at the destination.
    """

    op: int
    output: int
    iteration: int
    src: int
    dst: int
    request_ns: int
    start_ns: int
    release_ns: int
    arrival_ns: int


@dataclass(frozen=True, kw_only=True)
class Trace:
    """All that was seen of one run, times from the run's start on one clock.

    Attributes:
        graph_digest, cluster_digest: What ran.
        source: Name of the plan's maker.
        runtime: "simpy", "compiled" or "executor".
        iterations: Iterations run.
        op_spans: Sorted by (start_ns, device, stream, end_ns, op, iteration).
        transfers: Sorted by (request_ns, op, output, iteration, dst).
        peak_bytes: Per device, group state included.
    """

    graph_digest: str
    cluster_digest: str
    source: str
    runtime: str
    iterations: int
    op_spans: tuple[OpSpan, ...]
    transfers: tuple[TransferSpan, ...]
    peak_bytes: tuple[int, ...]

    @property
    def makespan_ns(self) -> int:
        """First start to last end of any op."""
        if not self.op_spans:
            return 0
        return max(s.end_ns for s in self.op_spans) - min(s.start_ns for s in self.op_spans)

    def iteration_ends_ns(self) -> tuple[int, ...]:
        """E_i: the latest end of any op of iterations <= i."""
        ends = [0] * self.iterations
        for span in self.op_spans:
            ends[span.iteration] = max(ends[span.iteration], span.end_ns)
        for iteration in range(1, self.iterations):
            ends[iteration] = max(ends[iteration], ends[iteration - 1])
        return tuple(ends)


@dataclass(frozen=True, slots=True)
class Period:
    """Steady-state time per iteration as two integers: `time_ns` for `iterations` iterations.

    Attributes:
        exact: True if the relative state recurred, so that the value holds for ever.
    """

    time_ns: int
    iterations: int
    exact: bool

    @property
    def ns(self) -> float:
        """Nanoseconds per iteration."""
        return self.time_ns / self.iterations


def half_period(ends_ns: Sequence[int]) -> Period:
    """Returns (E_n - E_w, n - w) with the first half dropped: w = n // 2.

    Args:
        ends_ns: E_i per iteration, at least 20 of them.

    Raises:
        DopplerError: If there are fewer than 20 iterations.
    """
    if len(ends_ns) < MIN_PERIOD_ITERATIONS:
        raise DopplerError(
            f"a period without recurrence needs at least {MIN_PERIOD_ITERATIONS} iterations, "
            f"and the trace has {len(ends_ns)}"
        )
    last, first = len(ends_ns) - 1, (len(ends_ns) - 1) // 2
    return Period(ends_ns[last] - ends_ns[first], last - first, exact=False)


def sort_spans(
    op_spans: Sequence[OpSpan], transfers: Sequence[TransferSpan]
) -> tuple[tuple[OpSpan, ...], tuple[TransferSpan, ...]]:
    """Returns both in the order that `Trace` states, so that equal runs give equal traces."""
    return (
        tuple(
            sorted(
                op_spans,
                key=lambda s: (s.start_ns, s.device, s.stream, s.end_ns, s.op, s.iteration),
            )
        ),
        tuple(sorted(transfers, key=lambda s: (s.request_ns, s.op, s.output, s.iteration, s.dst))),
    )
