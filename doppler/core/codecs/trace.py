"""JSON of a trace: one row per span, ops and devices by name."""

import itertools
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
        FormatError: If a key, a column, a name or a type is wrong, a number is out of range, or
            times are not in the order of cause and effect.
        PlanError: If the trace is of another graph or cluster.
    """
    check_digests(document, problem, "trace", where)
    iterations = decode_scalar(int, document["iterations"], f"{where}: iterations")
    if iterations < 1:
        raise FormatError(f"{where}: iterations is at least 1, and the document has {iterations}")
    devices = [device.name for device in problem.cluster.devices]
    peaks = expect_keys(document["peak_bytes"], devices, f"{where}: peak_bytes")
    return Trace(
        graph_digest=problem.graph.digest,
        cluster_digest=problem.cluster.digest,
        source=decode_scalar(str, document["source"], f"{where}: source"),
        runtime=decode_scalar(str, document["runtime"], f"{where}: runtime"),
        iterations=iterations,
        op_spans=tuple(
            _op_span(row, problem, iterations, path)
            for path, row in _rows(document, "op_spans", OP_COLUMNS, where)
        ),
        transfers=tuple(
            _transfer(row, problem, iterations, path)
            for path, row in _rows(document, "transfers", TRANSFER_COLUMNS, where)
        ),
        peak_bytes=tuple(
            _in_range(
                decode_scalar(int, peaks[name], f"{where}: peak_bytes.{name}"),
                None,
                f"{where}: peak_bytes.{name}",
            )
            for name in devices
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


def _in_range(value: int, end: int | None, where: str) -> int:
    """Returns a value that lies in 0 to `end` - 1, or is at least 0 where there is no end."""
    if value < 0 or (end is not None and value >= end):
        rule = "at least 0" if end is None else f"0 to {end - 1}"
        raise FormatError(f"{where} is {rule}, and the document has {value}")
    return value


def _in_order(times_ns: Sequence[int], columns: Sequence[str], where: str) -> None:
    """Refuses times before the run's start, or an effect before its cause."""
    if not all(a <= b for a, b in itertools.pairwise((0, *times_ns))):
        raise FormatError(
            f"{where}: 0, {', '.join(columns)} come in this order, and the document has "
            f"{', '.join(map(str, times_ns))}"
        )


def _op_span(row: Sequence[Any], problem: Problem, iterations: int, where: str) -> OpSpan:
    op = look_up(problem.graph.op_ids, row[0], "op", f"{where}.op")
    device = look_up(problem.cluster.device_ids, row[2], "device", f"{where}.device")
    (iteration,) = _integers(row[1:2], OP_COLUMNS[1:2], where)
    stream, ready, start, end = _integers(row[3:7], OP_COLUMNS[3:7], where)
    _in_range(iteration, iterations, f"{where}.iteration")
    _in_range(stream, problem.cluster.devices[device].num_streams, f"{where}.stream")
    _in_order((ready, start, end), OP_COLUMNS[4:7], where)
    versions = decode(tuple[int, ...], row[7], f"{where}.versions")
    return OpSpan(op, iteration, device, stream, ready, start, end, versions)


def _transfer(row: Sequence[Any], problem: Problem, iterations: int, where: str) -> TransferSpan:
    op = look_up(problem.graph.op_ids, row[0], "op", f"{where}.op")
    src, dst = (
        look_up(problem.cluster.device_ids, name, "device", f"{where}.{end}")
        for name, end in zip(row[3:5], ("src", "dst"), strict=True)
    )
    output, iteration = _integers(row[1:3], TRANSFER_COLUMNS[1:3], where)
    request, start, release, arrival = _integers(row[5:], TRANSFER_COLUMNS[5:], where)
    _in_range(output, len(problem.graph.ops[op].outputs), f"{where}.output")
    _in_range(iteration, iterations, f"{where}.iteration")
    _in_order((request, start, release, arrival), TRANSFER_COLUMNS[5:], where)
    return TransferSpan(op, output, iteration, src, dst, request, start, release, arrival)
