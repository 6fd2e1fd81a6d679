"""JSON of a graph: edges name their ops."""

from collections.abc import Mapping
from typing import Any

from doppler.core.codecs.fields import (
    decode,
    decode_dataclass,
    decode_scalar,
    encode,
    expect_keys,
    expect_list,
    look_up,
)
from doppler.core.errors import FormatError
from doppler.core.graph import DataflowGraph, Edge, EdgeMode, Group, InputResidency, Op

KEYS = ("name", "window", "inputs", "groups", "ops", "edges")
EDGE_KEYS = ("src", "output", "dst", "distance", "mode")


def encode_graph(graph: DataflowGraph) -> dict[str, Any]:
    """Returns the body of a graph document."""
    names = [op.name for op in graph.ops]
    return {
        "name": graph.name,
        "window": graph.window,
        "inputs": graph.inputs.value,
        "groups": [encode(group) for group in graph.groups],
        "ops": [encode(op) for op in graph.ops],
        "edges": [
            {
                "src": names[edge.src],
                "output": edge.output,
                "dst": names[edge.dst],
                "distance": edge.distance,
                "mode": edge.mode.value,
            }
            for edge in graph.edges
        ],
    }


def decode_graph(document: Mapping[str, Any], where: str) -> DataflowGraph:
    """Returns the graph of a document.

    Raises:
        FormatError: If a key or a type is wrong, or an edge names an op that is not there.
        GraphError: If the graph breaks a rule.
    """
    ops = tuple(
        decode_dataclass(Op, row, f"{where}: ops[{index}]")
        for index, row in enumerate(expect_list(document["ops"], f"{where}: ops"))
    )
    ids: dict[str, int] = {}
    for index, op in enumerate(ops):
        if op.name in ids:
            raise FormatError(f"{where}: ops[{index}] repeats the op name {op.name!r}")
        ids[op.name] = index
    edges = tuple(
        _decode_edge(row, ids, f"{where}: edges[{index}]")
        for index, row in enumerate(expect_list(document["edges"], f"{where}: edges"))
    )
    return DataflowGraph(
        name=decode_scalar(str, document["name"], f"{where}: name"),
        ops=ops,
        edges=edges,
        groups=decode(tuple[Group, ...], document["groups"], f"{where}: groups"),
        window=decode_scalar(int, document["window"], f"{where}: window"),
        inputs=decode(InputResidency, document["inputs"], f"{where}: inputs"),
    )


def _decode_edge(row: Any, ids: Mapping[str, int], where: str) -> Edge:
    edge = expect_keys(row, EDGE_KEYS, where)
    return Edge(
        look_up(ids, edge["src"], "op", f"{where}.src"),
        decode_scalar(int, edge["output"], f"{where}.output"),
        look_up(ids, edge["dst"], "op", f"{where}.dst"),
        decode_scalar(int, edge["distance"], f"{where}.distance"),
        decode(EdgeMode, edge["mode"], f"{where}.mode"),
    )
