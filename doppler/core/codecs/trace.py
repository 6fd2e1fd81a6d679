"""JSON of a trace: one row per span, ops and devices by name."""

from collections.abc import Mapping, Sequence
from typing import Any

from doppler.core.codecs.digests import check_digests
from doppler.core.codecs.fields import decode, decode_scalar, expect_keys, expect_list, look_up
from doppler.core.errors import FormatError
from doppler.core.problem import Problem
from doppler.core.trace import OpSpan, Trace, TransferSpan

KEYS = (
    "graph_digest",
    "cluster_digest",
    "source",
    "runtime",
    "iterations",
    "peak_bytes",
    "op_spans",
    "transfers",
)
OP_COLUMNS = (
    "op",
    "iteration",
    "device",
    "stream",
    "ready_ns",
    "start_ns",
    "end_ns",
    "versions",
)
TRANSFER_COLUMNS = (
    "op",
    "output",
    "iteration",
    "src",
    "dst",
    "request_ns",
    "start_ns",
    "release_ns",
    "arrival_ns",
)


def encode_trace(trace: Trace, problem: Problem) -> dict[str, Any]:
    """Returns the body of a trace document."""
    ops = [op.name for op in problem.graph.ops]
    devices = [device.name for device in problem.cluster.devices]
    op_rows = [
        [
            ops[s.op],
            s.iteration,
            devices[s.device],
            s.stream,
            s.ready_ns,
            s.start_ns,
            s.end_ns,
            list(s.versions),
        ]
        for s in trace.op_spans
    ]
    transfer_rows = [
        [
            ops[s.op],
            s.output,
            s.iteration,
            devices[s.src],
            devices[s.dst],
            s.request_ns,
            s.start_ns,
            s.release_ns,
            s.arrival_ns,
        ]
        for s in trace.transfers
    ]
    return {
        "graph_digest": trace.graph_digest,
        "cluster_digest": trace.cluster_digest,
        "source": trace.source,
        "runtime": trace.runtime,
        "iterations": trace.iterations,
        "peak_bytes": dict(zip(devices, trace.peak_bytes, strict=True)),
        "op_spans": {"columns": list(OP_COLUMNS), "rows": op_rows},
        "transfers": {"columns": list(TRANSFER_COLUMNS), "rows": transfer_rows},
    }


def decode_trace(document: Mapping[str, Any], problem: Problem, where: str) -> Trace:
    """Returns the trace of a document.

    Raises:
        FormatError: If a key, a column, a name or a type is wrong.
        PlanError: If the trace is of another graph or cluster.
    """
    check_digests(document, problem, "trace", where)
    devices = [device.name for device in problem.cluster.devices]
    peaks = expect_keys(document["peak_bytes"], devices, f"{where}: peak_bytes")
    return Trace(
        graph_digest=problem.graph.digest,
        cluster_digest=problem.cluster.digest,
        source=decode_scalar(str, document["source"], f"{where}: source"),
        runtime=decode_scalar(str, document["runtime"], f"{where}: runtime"),
        iterations=decode_scalar(int, document["iterations"], f"{where}: iterations"),
        op_spans=tuple(
            _op_span(row, problem, path)
            for path, row in _rows(document, "op_spans", OP_COLUMNS, where)
        ),
        transfers=tuple(
            _transfer(row, problem, path)
            for path, row in _rows(document, "transfers", TRANSFER_COLUMNS, where)
        ),
        peak_bytes=tuple(
            decode_scalar(int, peaks[name], f"{where}: peak_bytes.{name}") for name in devices
        ),
    )


def _rows(
    document: Mapping[str, Any], key: str, columns: Sequence[str], where: str
) -> list[tuple[str, Sequence[Any]]]:
    table = expect_keys(document[key], ("columns", "rows"), f"{where}: {key}")
    if table["columns"] != list(columns):
        raise FormatError(
            f"{where}: {key}.columns is {', '.join(columns)}, and the document has "
            f"{table['columns']!r}"
        )
    result: list[tuple[str, Sequence[Any]]] = []
    for index, row in enumerate(expect_list(table["rows"], f"{where}: {key}.rows")):
        path = f"{where}: {key}.rows[{index}]"
        if len(expect_list(row, path)) != len(columns):
            raise FormatError(f"{path} has {len(columns)} columns, and the document has {len(row)}")
        result.append((path, row))
    return result


def _integers(row: Sequence[Any], columns: Sequence[str], where: str) -> list[int]:
    return [
        decode_scalar(int, value, f"{where}.{column}")
        for value, column in zip(row, columns, strict=True)
    ]


def _op_span(row: Sequence[Any], problem: Problem, where: str) -> OpSpan:
    op = look_up(problem.graph.op_ids, row[0], "op", f"{where}.op")
    device = look_up(problem.cluster.device_ids, row[2], "device", f"{where}.device")
    (iteration,) = _integers(row[1:2], OP_COLUMNS[1:2], where)
    stream, ready, start, end = _integers(row[3:7], OP_COLUMNS[3:7], where)
    versions = decode(tuple[int, ...], row[7], f"{where}.versions")
    return OpSpan(op, iteration, device, stream, ready, start, end, versions)


def _transfer(row: Sequence[Any], problem: Problem, where: str) -> TransferSpan:
    op = look_up(problem.graph.op_ids, row[0], "op", f"{where}.op")
    src, dst = (
        look_up(problem.cluster.device_ids, name, "device", f"{where}.{end}")
        for name, end in zip(row[3:5], ("src", "dst"), strict=True)
    )
    output, iteration = _integers(row[1:3], TRANSFER_COLUMNS[1:3], where)
    request, start, release, arrival = _integers(row[5:], TRANSFER_COLUMNS[5:], where)
    return TransferSpan(op, output, iteration, src, dst, request, start, release, arrival)
