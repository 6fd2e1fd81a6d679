"""How far the simulator's times are from the measured ones, per op kind and per op."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from doppler.core.errors import FormatError
from doppler.core.graph import DataflowGraph
from doppler.core.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class KindError:
    """Simulated against measured durations of all ops of one kind.

    Attributes:
        kind: Op kind.
        simulated_count, measured_count: Spans of each trace.
        simulated_ns, measured_ns: Median duration, rounded down; None without a span.
    """

    kind: str
    simulated_count: int
    measured_count: int
    simulated_ns: int | None
    measured_ns: int | None

    @property
    def relative_error(self) -> float | None:
        """(simulated - measured) / measured; None where that has no value."""
        return relative_error(self.simulated_ns, self.measured_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpError:
    """Median simulated and measured duration of one op on its device (medians over iterations)."""

    name: str
    kind: str
    device: str
    simulated_ns: int
    measured_ns: int


def relative_error(simulated_ns: int | None, measured_ns: int | None) -> float | None:
    """Returns (simulated - measured) / measured; None without both or for a measured zero."""
    if simulated_ns is None or not measured_ns:
        return None
    return (simulated_ns - measured_ns) / measured_ns


def kind_errors(graph: DataflowGraph, simulated: Trace, measured: Trace) -> tuple[KindError, ...]:
    """Returns one row per op kind that either trace has, largest measured total first.

    Raises:
        FormatError: If a trace is of another graph.
    """
    ours, theirs = _by_kind(graph, simulated), _by_kind(graph, measured)
    kinds = sorted(ours.keys() | theirs.keys(), key=lambda kind: (-sum(theirs.get(kind, [])), kind))
    return tuple(
        KindError(
            kind=kind,
            simulated_count=len(ours.get(kind, [])),
            measured_count=len(theirs.get(kind, [])),
            simulated_ns=_median(ours.get(kind, [])),
            measured_ns=_median(theirs.get(kind, [])),
        )
        for kind in kinds
    )


def op_errors(
    graph: DataflowGraph, device_names: tuple[str, ...], simulated: Trace, measured: Trace
) -> tuple[OpError, ...]:
    """Returns one point per (op, device) that both traces have, by op, then device.

    Raises:
        FormatError: If a trace is of another graph.
    """
    ours, theirs = _by_op(graph, simulated), _by_op(graph, measured)
    return tuple(
        OpError(
            name=graph.ops[op].name,
            kind=graph.ops[op].kind,
            device=device_names[device],
            simulated_ns=int(statistics.median(ours[op, device])),
            measured_ns=int(statistics.median(theirs[op, device])),
        )
        for op, device in sorted(ours.keys() & theirs.keys())
    )


def median_absolute_error(errors: Iterable[KindError]) -> float | None:
    """Returns the median of |relative error| over the kinds that have one."""
    values = [abs(row.relative_error) for row in errors if row.relative_error is not None]
    return statistics.median(values) if values else None


def _by_kind(graph: DataflowGraph, trace: Trace) -> dict[str, list[int]]:
    _check_graph(graph, trace)
    durations: dict[str, list[int]] = {}
    for span in trace.op_spans:
        durations.setdefault(graph.ops[span.op].kind, []).append(span.end_ns - span.start_ns)
    return durations


def _by_op(graph: DataflowGraph, trace: Trace) -> dict[tuple[int, int], list[int]]:
    _check_graph(graph, trace)
    durations: dict[tuple[int, int], list[int]] = {}
    for span in trace.op_spans:
        durations.setdefault((span.op, span.device), []).append(span.end_ns - span.start_ns)
    return durations


def _median(durations: list[int]) -> int | None:
    return int(statistics.median(durations)) if durations else None


def _check_graph(graph: DataflowGraph, trace: Trace) -> None:
    if trace.graph_digest != graph.digest:
        raise FormatError(
            f"traces are compared on the graph that they ran, and the {trace.runtime} trace ran "
            f"graph {trace.graph_digest}, not {graph.digest}"
        )
