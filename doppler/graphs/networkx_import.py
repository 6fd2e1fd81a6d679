"""Graphs from and to `networkx.DiGraph`.

Node attributes are the fields of `Op` (`name` is the node itself, as text); edge attributes are
`output`, `distance`, `mode` and `position` (edges, and so a consumer's inputs, are ordered by it).
Several edges between one pair need a `MultiDiGraph`.
"""

from collections.abc import Hashable, Mapping
from typing import Any

import networkx as nx

from doppler.core.codecs.fields import decode, encode
from doppler.core.errors import GraphError, nearest
from doppler.core.graph import (
    DEFAULT_WINDOW,
    DataflowGraph,
    Edge,
    EdgeMode,
    Group,
    InputResidency,
    Op,
)

NODE_DEFAULTS: dict[str, tuple[Any, Any]] = {
    "kind": (str, None),
    "outputs": (tuple[int, ...], ()),
    "flop": (int, 0),
    "bytes_moved": (int, 0),
    "group": (str | None, None),
    "meta_op": (str | None, None),
    "device_kinds": (tuple[str, ...], ()),
}
EDGE_DEFAULTS: dict[str, tuple[Any, Any]] = {
    "output": (int, 0),
    "distance": (int, 0),
    "mode": (EdgeMode, "token"),
    "position": (int, 0),
}
GRAPH_KEYS = ("name", "window", "inputs", "groups")


def from_networkx(source: Any, name: str | None = None) -> DataflowGraph:
    """Returns the graph of a networkx `DiGraph` or `MultiDiGraph`.

    Every node needs `kind`; the rest has defaults. Graph attributes: `name`, `window`, `inputs`,
    `groups` (group name -> state bytes). Op ids follow the order of the nodes.

    Args:
        source: The networkx graph.
        name: Name of the graph; None = its attribute `name`, or "imported".

    Raises:
        GraphError: If the graph is undirected, an attribute is missing, unknown or of a wrong
            type, two nodes have one text, or a rule of `DataflowGraph` is broken.
        FormatError: If an attribute has a wrong type.
    """
    if not source.is_directed():
        raise GraphError("a dataflow graph is directed, and the networkx graph is not")
    for key in source.graph:
        if key not in GRAPH_KEYS:
            raise GraphError(f"unknown graph attribute {key!r}; {nearest(str(key), GRAPH_KEYS)}")
    ids: dict[Hashable, int] = {node: index for index, node in enumerate(source.nodes)}
    ops = tuple(_op(node, attributes) for node, attributes in source.nodes(data=True))
    edges: list[tuple[int, int, int, Edge]] = []
    for order, (src, dst, attributes) in enumerate(source.edges(data=True)):
        values = _values(attributes, EDGE_DEFAULTS, f"edge {src!r} -> {dst!r}")
        edge = Edge(ids[src], values["output"], ids[dst], values["distance"], values["mode"])
        edges.append((values["position"], ids[dst], order, edge))
    edges.sort(key=lambda row: row[:3])
    groups = decode_groups(source.graph.get("groups", {}), ops)
    return DataflowGraph(
        name=name or source.graph.get("name") or "imported",
        ops=ops,
        edges=tuple(row[3] for row in edges),
        groups=groups,
        window=decode(int, source.graph.get("window", DEFAULT_WINDOW), "graph attribute window"),
        inputs=decode(
            InputResidency, source.graph.get("inputs", "everywhere"), "graph attribute inputs"
        ),
    )


def to_networkx(graph: DataflowGraph) -> Any:
    """Returns a `networkx.MultiDiGraph` that `from_networkx` reads back to an equal digest."""
    result = nx.MultiDiGraph(
        name=graph.name,
        window=graph.window,
        inputs=graph.inputs.value,
        groups={group.name: group.state_bytes for group in graph.groups},
    )
    for op in graph.ops:
        attributes = encode(op)
        result.add_node(attributes.pop("name"), **attributes)
    for position, edge in enumerate(graph.edges):
        result.add_edge(
            graph.ops[edge.src].name,
            graph.ops[edge.dst].name,
            output=edge.output,
            distance=edge.distance,
            mode=edge.mode.value,
            position=position,
        )
    return result


def decode_groups(sizes: Mapping[str, int], ops: tuple[Op, ...]) -> tuple[Group, ...]:
    """Returns the groups: those with a size, then those that only ops name (without state)."""
    names = list(sizes)
    names += [op.group for op in ops if op.group is not None and op.group not in sizes]
    return tuple(
        Group(name, decode(int, sizes.get(name, 0), f"state bytes of group {name!r}"))
        for name in dict.fromkeys(names)
    )


def _op(node: Hashable, attributes: Mapping[str, Any]) -> Op:
    where = f"node {node!r}"
    if "kind" not in attributes:
        raise GraphError(f"every node has an attribute 'kind', and {where} has none")
    return Op(name=str(node), **_values(attributes, NODE_DEFAULTS, where))


def _values(
    attributes: Mapping[str, Any], defaults: Mapping[str, tuple[Any, Any]], where: str
) -> dict[str, Any]:
    for key in attributes:
        if key not in defaults:
            raise GraphError(f"unknown attribute {key!r} of {where}; {nearest(str(key), defaults)}")
    result: dict[str, Any] = {}
    for key, (hint, default) in defaults.items():
        value = attributes.get(key, default)
        plain = list(value) if isinstance(value, tuple) else value
        plain = plain.value if isinstance(plain, EdgeMode) else plain
        result[key] = decode(hint, plain, f"attribute {key!r} of {where}")
    return result
