"""JSON files of hardware, layouts, clusters, graphs, plans, costs and traces.

Every document holds `"type"` and `"schema_version"`. Unknown versions, unknown or missing keys,
wrong types and foreign digests are refused in one sentence; nothing is guessed or repaired.
Plans, costs and traces speak in names of ops and devices, so they need their problem.
"""

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from doppler.core.cluster import Cluster
from doppler.core.codecs import costs as costs_codec
from doppler.core.codecs import graph as graph_codec
from doppler.core.codecs import plan as plan_codec
from doppler.core.codecs import trace as trace_codec
from doppler.core.codecs.fields import decode_dataclass, encode, expect_keys, expect_object
from doppler.core.codecs.plan import PlanNames
from doppler.core.codecs.text import format_json
from doppler.core.costs import Costs
from doppler.core.errors import DopplerError, FormatError, nearest
from doppler.core.graph import DataflowGraph
from doppler.core.hardware import Hardware
from doppler.core.layout import Layout
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.trace import Trace

SCHEMA_VERSION = 1
HEADER_KEYS = ("type", "schema_version")

Document = dict[str, Any]
Value = Hardware | Layout | Cluster | DataflowGraph | Plan | Costs | Trace

KINDS: dict[str, type] = {
    "hardware": Hardware,
    "layout": Layout,
    "cluster": Cluster,
    "graph": DataflowGraph,
    "plan": Plan,
    "costs": Costs,
    "trace": Trace,
}
_NEED_PROBLEM: dict[str, tuple[tuple[str, ...], Callable[..., Document], Callable[..., Any]]] = {
    "plan": (plan_codec.KEYS, plan_codec.encode_plan, plan_codec.decode_plan),
    "costs": (costs_codec.KEYS, costs_codec.encode_costs, costs_codec.decode_costs),
    "trace": (trace_codec.KEYS, trace_codec.encode_trace, trace_codec.decode_trace),
}


def to_json(value: Value, problem: Problem | None = None) -> Document:
    """Returns the document of a value.

    Args:
        value: Hardware, layout, cluster, graph, plan, costs or trace.
        problem: What a plan, costs or a trace belongs to; gives the names.

    Raises:
        FormatError: If the value has no document, or its problem is missing.
    """
    kind = next((kind for kind, cls in KINDS.items() if type(value) is cls), None)
    if kind is None:
        raise FormatError(
            f"{', '.join(KINDS)} have a document, and {type(value).__name__} has none"
        )
    header: Document = {"type": kind, "schema_version": SCHEMA_VERSION}
    if kind in _NEED_PROBLEM:
        return header | _NEED_PROBLEM[kind][1](value, _required(problem, kind))
    if isinstance(value, DataflowGraph):
        return header | graph_codec.encode_graph(value)
    return header | cast(Document, encode(value))


def from_json(
    document: Any, kind: str, problem: Problem | None = None, where: str = "document"
) -> Value:
    """Returns the value of a document.

    Args:
        document: What a JSON parser gave.
        kind: What it must hold: a key of `KINDS`.
        problem: What a plan, costs or a trace must belong to.
        where: Name of the file, for messages.

    Raises:
        FormatError: If type, version, a key or a value is not what this version writes.
        PlanError: If a digest is foreign or a plan breaks a rule.
        GraphError, ClusterError: If what was read breaks a rule of its type.
    """
    if kind not in KINDS:
        raise FormatError(f"a document of type {kind!r} is unknown; {nearest(kind, KINDS)}")
    body = _check_header(document, kind, where)
    if kind in _NEED_PROBLEM:
        keys, _, decoder = _NEED_PROBLEM[kind]
        expect_keys(body, keys, where)
        return cast(Value, decoder(body, _required(problem, kind), where))
    try:
        if kind == "graph":
            expect_keys(body, graph_codec.KEYS, where)
            return graph_codec.decode_graph(body, where)
        return cast(Value, decode_dataclass(KINDS[kind], body, where))
    except FormatError:
        raise
    except DopplerError as error:
        raise type(error)(f"{where}: {error}") from error


def save(value: Value, path: str | Path, problem: Problem | None = None) -> None:
    """Writes the document of a value: the file is either the old one or the whole new one.

    Raises:
        FormatError: If the value has no document, or its problem is missing.
    """
    write_atomic(Path(path), format_json(to_json(value, problem)))


def load_hardware(path: str | Path) -> Hardware:
    """Returns the hardware of a file; raises `FormatError` or `ClusterError`."""
    return cast(Hardware, _load(path, "hardware"))


def load_layout(path: str | Path) -> Layout:
    """Returns the layout of a file; raises `FormatError` or `ClusterError`."""
    return cast(Layout, _load(path, "layout"))


def load_cluster(path: str | Path) -> Cluster:
    """Returns the cluster of a file; raises `FormatError` or `ClusterError`."""
    return cast(Cluster, _load(path, "cluster"))


def load_graph(path: str | Path) -> DataflowGraph:
    """Returns the graph of a file; raises `FormatError` or `GraphError`."""
    return cast(DataflowGraph, _load(path, "graph"))


def load_plan(path: str | Path, problem: Problem) -> Plan:
    """Returns the plan of a file, checked against `problem`; raises `FormatError`, `PlanError`."""
    return cast(Plan, _load(path, "plan", problem))


def load_plan_names(path: str | Path) -> PlanNames:
    """Returns what a plan file says of whatever graph it is a plan of; raises `FormatError`."""
    where = str(path)
    body = _check_header(read_json(Path(path)), "plan", where)
    return plan_codec.decode_names(expect_keys(body, plan_codec.KEYS, where), where)


def load_costs(path: str | Path, problem: Problem) -> Costs:
    """Returns the costs of a file; raises `FormatError`, `PlanError` or `GraphError`."""
    return cast(Costs, _load(path, "costs", problem))


def load_trace(path: str | Path, problem: Problem) -> Trace:
    """Returns the trace of a file; raises `FormatError` or `PlanError`."""
    return cast(Trace, _load(path, "trace", problem))


def write_atomic(path: Path, text: str) -> None:
    """Writes `text` beside `path` and moves it there in one step."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_json(path: Path) -> Any:
    """Returns what a JSON file holds; repeated keys, NaN and infinity are refused.

    Raises:
        FormatError: If the file is not there, not UTF-8 or not JSON.
    """
    try:
        return json.loads(
            path.read_text(encoding="utf-8"),
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
        )
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise FormatError(f"{path} is nested too deeply to be a document") from error
    except ValueError as error:
        raise FormatError(f"{path} is no valid JSON: {error}") from error


def _load(path: str | Path, kind: str, problem: Problem | None = None) -> Value:
    return from_json(read_json(Path(path)), kind, problem, where=str(path))


def _required(problem: Problem | None, kind: str) -> Problem:
    if problem is None:
        raise FormatError(f"a document of type {kind!r} names ops and devices: give its problem")
    return problem


def _check_header(document: Any, kind: str, where: str) -> Mapping[str, Any]:
    body = dict(expect_object(document, where))
    for key in HEADER_KEYS:
        if key not in body:
            raise FormatError(f"{where} lacks the key {key!r}")
    found, version = body.pop("type"), body.pop("schema_version")
    if found != kind:
        raise FormatError(f"{where}: type is {kind!r} here, and the document has {found!r}")
    if version != SCHEMA_VERSION or isinstance(version, bool) or not isinstance(version, int):
        raise FormatError(
            f"{where}: schema_version {SCHEMA_VERSION} is what this release reads, and the "
            f"document has {version!r}"
        )
    return body


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key!r} stands twice in one object")
        result[key] = value
    return result


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
