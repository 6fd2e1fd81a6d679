"""A trace in the Chrome trace event format, which Perfetto and chrome://tracing open.

One process per device, one thread per stream. Transfers lie in rows of the destination's process,
as many as overlap. Arrows go from the producer to the transfer and from there to each consumer.

Source: "Trace Event Format", Google, 2016 (events X, M, i, s, f).
"""

import heapq
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from doppler.core.cluster import Cluster
from doppler.core.errors import FormatError
from doppler.core.graph import DataflowGraph
from doppler.core.trace import OpSpan, Trace, TransferSpan

_TRANSFER_ROW = 1000
_NS_PER_US = 1000

_Event = dict[str, Any]


def chrome_trace(graph: DataflowGraph, cluster: Cluster, trace: Trace) -> dict[str, Any]:
    """Returns the JSON document; `ts` and `dur` are µs with three decimals, exact to the ns.

    Raises:
        FormatError: If the trace is of another graph or cluster.
    """
    for label, found, expected in (
        ("graph", trace.graph_digest, graph.digest),
        ("cluster", trace.cluster_digest, cluster.digest),
    ):
        if found != expected:
            raise FormatError(
                f"a trace is shown with the {label} that it ran, and it ran {label} {found}, "
                f"not {expected}"
            )
    rows = _transfer_rows(trace)
    events: list[_Event] = list(_names(cluster, rows))
    events += [_op_event(graph, span) for span in trace.op_spans]
    events += [
        _transfer_event(graph, cluster, span, row)
        for span, row in zip(trace.transfers, rows, strict=True)
    ]
    events += list(_arrows(graph, trace, rows))
    events += [
        {
            "ph": "i",
            "s": "g",
            "cat": "iteration",
            "name": f"end of iteration {iteration}",
            "pid": 0,
            "tid": 0,
            "ts": _us(end),
        }
        for iteration, end in enumerate(trace.iteration_ends_ns())
    ]
    return {
        "displayTimeUnit": "ns",
        "otherData": {
            "graph": graph.name,
            "graph_digest": trace.graph_digest,
            "cluster": cluster.name,
            "cluster_digest": trace.cluster_digest,
            "source": trace.source,
            "runtime": trace.runtime,
            "iterations": trace.iterations,
        },
        "traceEvents": events,
    }


def write_chrome_trace(path: Path, graph: DataflowGraph, cluster: Cluster, trace: Trace) -> None:
    """Writes `chrome_trace` as a file."""
    document = chrome_trace(graph, cluster, trace)
    path.write_text(json.dumps(document, allow_nan=False, separators=(",", ":")), "utf-8")


def _us(time_ns: int) -> float:
    return time_ns / _NS_PER_US


def _names(cluster: Cluster, rows: list[int]) -> Iterator[_Event]:
    for pid, device in enumerate(cluster.devices):
        yield _name("process_name", pid, 0, f"{device.name} ({device.kind})")
        yield {
            "ph": "M",
            "name": "process_sort_index",
            "pid": pid,
            "tid": 0,
            "args": {"sort_index": pid},
        }
        for stream in range(device.num_streams):
            yield _name("thread_name", pid, stream, f"stream {stream}")
        for row in range(max(rows, default=-1) + 1):
            yield _name("thread_name", pid, _TRANSFER_ROW + row, f"tensors arriving, row {row}")


def _name(what: str, pid: int, tid: int, name: str) -> _Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _op_event(graph: DataflowGraph, span: OpSpan) -> _Event:
    op = graph.ops[span.op]
    return {
        "ph": "X",
        "cat": op.kind,
        "name": op.name,
        "pid": span.device,
        "tid": span.stream,
        "ts": _us(span.start_ns),
        "dur": _us(span.end_ns - span.start_ns),
        "args": {
            "kind": op.kind,
            "op": span.op,
            "iteration": span.iteration,
            "ready_us": _us(span.ready_ns),
            "wait_us": _us(span.start_ns - span.ready_ns),
            "versions": list(span.versions),
        },
    }


def _transfer_rows(trace: Trace) -> list[int]:
    """Returns the row of each transfer: the lowest that is free at its destination."""
    order = sorted(
        range(len(trace.transfers)), key=lambda index: (trace.transfers[index].start_ns, index)
    )
    rows = [0] * len(trace.transfers)
    free: dict[int, list[int]] = {}
    busy: dict[int, list[tuple[int, int]]] = {}
    for index in order:
        span = trace.transfers[index]
        free_rows = free.setdefault(span.dst, [])
        busy_rows = busy.setdefault(span.dst, [])
        while busy_rows and busy_rows[0][0] <= span.start_ns:
            heapq.heappush(free_rows, heapq.heappop(busy_rows)[1])
        rows[index] = heapq.heappop(free_rows) if free_rows else len(busy_rows)
        heapq.heappush(busy_rows, (span.arrival_ns, rows[index]))
    return rows


def _transfer_event(graph: DataflowGraph, cluster: Cluster, span: TransferSpan, row: int) -> _Event:
    op = graph.ops[span.op]
    return {
        "ph": "X",
        "cat": "transfer",
        "name": f"{op.name}:{span.output}",
        "pid": span.dst,
        "tid": _TRANSFER_ROW + row,
        "ts": _us(span.start_ns),
        "dur": _us(span.arrival_ns - span.start_ns),
        "args": {
            "iteration": span.iteration,
            "from": cluster.devices[span.src].name,
            "to": cluster.devices[span.dst].name,
            "bytes": op.outputs[span.output],
            "request_us": _us(span.request_ns),
            "queue_us": _us(span.start_ns - span.request_ns),
            "release_us": _us(span.release_ns),
        },
    }


def _arrows(graph: DataflowGraph, trace: Trace, rows: list[int]) -> Iterator[_Event]:
    spans = {(span.op, span.iteration): span for span in trace.op_spans}
    next_id = 0
    for transfer, row in zip(trace.transfers, rows, strict=True):
        here = (transfer.dst, _TRANSFER_ROW + row)
        producer = spans.get((transfer.op, transfer.iteration))
        if producer is not None:
            # An arrow binds to the slice that holds its time stamp, and a slice excludes its end.
            leave = max(producer.start_ns, producer.end_ns - 1)
            there = (producer.device, producer.stream)
            yield from _arrow(next_id, there, leave, here, transfer.start_ns)
            next_id += 1
        for edge_id in graph.out_edges[transfer.op]:
            edge = graph.edges[edge_id]
            consumer = spans.get((edge.dst, transfer.iteration + edge.distance))
            if edge.output != transfer.output or consumer is None:
                continue
            if consumer.device == transfer.dst and consumer.start_ns >= transfer.arrival_ns:
                leave = max(transfer.start_ns, transfer.arrival_ns - 1)
                there = (consumer.device, consumer.stream)
                yield from _arrow(next_id, here, leave, there, consumer.start_ns)
                next_id += 1


def _arrow(
    arrow_id: int, src: tuple[int, int], leave_ns: int, dst: tuple[int, int], land_ns: int
) -> Iterator[_Event]:
    shared = {"cat": "dependency", "name": "tensor", "id": arrow_id}
    yield {"ph": "s", **shared, "pid": src[0], "tid": src[1], "ts": _us(leave_ns)}
    yield {"ph": "f", "bp": "e", **shared, "pid": dst[0], "tid": dst[1], "ts": _us(land_ns)}
