"""A stretch of a trace as a Gantt chart shows it: names instead of ids, times from its begin."""

from dataclasses import dataclass

from doppler.core.cluster import Cluster
from doppler.core.errors import DopplerError
from doppler.core.graph import DataflowGraph
from doppler.core.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One op span; times from the timeline's begin, negative before it.

    Attributes:
        name, kind: Of the op.
        device: Row of the chart, index into `Timeline.devices`.
    """

    name: str
    kind: str
    iteration: int
    device: int
    stream: int
    ready_ns: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One transfer, shown in the row of its destination.

    Attributes:
        name: "gradient[0]:0", op and output.
        src, dst: Indices into `Timeline.devices`.
    """

    name: str
    iteration: int
    src: int
    dst: int
    num_bytes: int
    request_ns: int
    start_ns: int
    arrival_ns: int


@dataclass(frozen=True, slots=True)
class IterationEnd:
    """The latest end of any op of iterations <= `iteration`, from the timeline's begin."""

    iteration: int
    time_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A stretch of a trace.

    Attributes:
        title: "Simulated" or "Measured", and the plan.
        devices: Device names, rows of the chart.
        num_streams: Streams per device.
        length_ns: The stretch is [0, length_ns).
        bars, moves: Whatever overlaps it.
        iteration_ends: Of every iteration that ends in it, ascending.
    """

    title: str
    devices: tuple[str, ...]
    num_streams: tuple[int, ...]
    length_ns: int
    bars: tuple[Bar, ...]
    moves: tuple[Move, ...]
    iteration_ends: tuple[IterationEnd, ...]


def timeline(
    title: str,
    graph: DataflowGraph,
    cluster: Cluster,
    trace: Trace,
    first: int,
    iterations: int = 2,
) -> Timeline:
    """Returns the stretch from the end of iteration `first` - 1 to that of the last one shown.

    Args:
        title: What is shown.
        graph: What ran.
        cluster: Where it ran.
        trace: The whole trace.
        first: First iteration whose end is shown; 0 begins at the trace's first start.
        iterations: Ends of iterations shown.

    Raises:
        DopplerError: If the trace lacks one of the iterations.
    """
    if first < 0 or iterations < 1 or first + iterations > trace.iterations:
        raise DopplerError(
            f"a timeline shows iterations of its trace (0 to {trace.iterations - 1}), "
            f"and {first} to {first + iterations - 1} were asked for"
        )
    ends = trace.iteration_ends_ns()
    begin = ends[first - 1] if first else min((s.start_ns for s in trace.op_spans), default=0)
    end = ends[first + iterations - 1]
    return Timeline(
        title=title,
        devices=tuple(device.name for device in cluster.devices),
        num_streams=tuple(device.num_streams for device in cluster.devices),
        length_ns=end - begin,
        bars=tuple(
            Bar(
                name=graph.ops[span.op].name,
                kind=graph.ops[span.op].kind,
                iteration=span.iteration,
                device=span.device,
                stream=span.stream,
                ready_ns=span.ready_ns - begin,
                start_ns=span.start_ns - begin,
                end_ns=span.end_ns - begin,
            )
            for span in trace.op_spans
            if span.end_ns > begin and span.start_ns < end
        ),
        moves=tuple(
            Move(
                name=f"{graph.ops[span.op].name}:{span.output}",
                iteration=span.iteration,
                src=span.src,
                dst=span.dst,
                num_bytes=graph.ops[span.op].outputs[span.output],
                request_ns=span.request_ns - begin,
                start_ns=span.start_ns - begin,
                arrival_ns=span.arrival_ns - begin,
            )
            for span in trace.transfers
            if span.arrival_ns > begin and span.request_ns < end
        ),
        iteration_ends=tuple(
            IterationEnd(index, ends[index] - begin) for index in range(first, first + iterations)
        ),
    )
