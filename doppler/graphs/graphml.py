"""GraphML: our own graphs, written and read without loss, and weighted task graphs of others.

In our own files the attributes of nodes and edges are those of `networkx_import`; lists are JSON
text, because GraphML has scalars only. A file in which no node has a `kind` is read as a task
graph: `weight` of a node is its run time, `weight` of an edge its data, both in units that the
file does not state. Attributes that are neither are counted and left out.
"""

import json
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.parsers import expat

import networkx as nx

from doppler.core.errors import DopplerError, FormatError
from doppler.core.graph import DataflowGraph
from doppler.core.serialize import write_atomic
from doppler.graphs.imported import (
    ImportedGraph,
    WeightedEdge,
    WeightedNode,
    count_in,
    read_text,
    read_weight,
    weighted_graph,
)
from doppler.graphs.networkx_import import (
    EDGE_DEFAULTS,
    GRAPH_KEYS,
    NODE_DEFAULTS,
    from_networkx,
    to_networkx,
)

LIST_KEYS = ("outputs", "device_kinds", "groups")
WEIGHT = "weight"


def write_graphml(graph: DataflowGraph, path: str | Path) -> None:
    """Writes a graph as GraphML; `read_graphml` gives it back."""
    source = to_networkx(graph)
    result = nx.MultiDiGraph(**_scalars(source.graph))
    for node, attributes in source.nodes(data=True):
        result.add_node(node, **_scalars(attributes))
    result.add_edges_from(source.edges(data=True))
    write_atomic(Path(path), "\n".join(nx.generate_graphml(result)) + "\n")


def read_graphml(
    path: str | Path, ns_per_unit: float | None = None, bytes_per_unit: float | None = None
) -> ImportedGraph:
    """Returns the graph of a GraphML file.

    Args:
        path: The file.
        ns_per_unit: Nanoseconds of one unit of a node's weight; needed for a weighted task graph.
        bytes_per_unit: Bytes of one unit of an edge's weight; needed where edges have one.

    Raises:
        FormatError: If the file is no GraphML, an attribute is missing or of a wrong type, or a
            scale is needed; names file and line.
        GraphError: If the graph is undirected or breaks a rule of `DataflowGraph`.
    """
    where = str(path)
    text = read_text(path, "GraphML")
    lines = _Lines(text, where)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source = nx.parse_graphml(text, node_type=str, force_multigraph=True)
    except (nx.NetworkXError, ElementTree.ParseError, KeyError, ValueError) as error:
        raise FormatError(f"{where} is no GraphML that can be read: {error}") from error
    if not source.is_directed():
        raise FormatError(f"{where}, line {lines.graph}: a dataflow graph is directed")
    if any("kind" in attributes for _, attributes in source.nodes(data=True)):
        return _own(source, lines, Path(path).stem, where)
    return _weighted(source, lines, Path(path).stem, where, ns_per_unit, bytes_per_unit)


class _Lines:
    """Lines of the elements, from a pass of its own: networkx keeps none.

    Attributes:
        graph: Line of the (last) graph element.
        nodes: Node id -> line.
        edges: (source, target) -> lines, in order.
    """

    def __init__(self, text: str, where: str) -> None:
        self.graph = 1
        self.nodes: dict[str, int] = {}
        self.edges: dict[tuple[str, str], list[int]] = {}
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._start
        try:
            self._parser.Parse(text.encode(), True)
        except expat.ExpatError as error:
            reason = expat.errors.messages[error.code]
            raise FormatError(f"{where}, line {error.lineno}: {reason}") from error
        except LookupError as error:
            raise FormatError(f"{where} names an encoding that Python lacks: {error}") from error
        for (src, dst), found in self.edges.items():
            for end in (src, dst):
                if end not in self.nodes:
                    raise FormatError(
                        f"{where}, line {found[0]}: an edge joins nodes of the file, and "
                        f"{end!r} is none"
                    )

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        line, tag = self._parser.CurrentLineNumber, name.rpartition(":")[2]
        if tag == "graph":
            self.graph = line
        elif tag == "node":
            self.nodes[attributes.get("id", "")] = line
        elif tag == "edge":
            key = (attributes.get("source", ""), attributes.get("target", ""))
            self.edges.setdefault(key, []).append(line)


def _own(source: Any, lines: _Lines, name: str, where: str) -> ImportedGraph:
    ignored: dict[str, int] = {}
    result = nx.MultiDiGraph()
    for key, value in source.graph.items():
        if key in GRAPH_KEYS:
            result.graph[key] = _value(key, value, f"{where}, line {lines.graph}")
        elif key not in ("node_default", "edge_default"):
            count_in(ignored, f"graph attribute {key!r}")
    for node, attributes in source.nodes(data=True):
        place = f"{where}, line {lines.nodes[node]}"
        known = _known(attributes, NODE_DEFAULTS, "node", ignored)
        result.add_node(node, **{key: _value(key, known[key], place) for key in known})
    for src, dst, attributes in source.edges(data=True):
        result.add_edge(src, dst, **_known(attributes, EDGE_DEFAULTS, "edge", ignored))
    try:
        graph = from_networkx(result, result.graph.get("name", name))
    except DopplerError as error:
        raise type(error)(f"{where}{_place(str(error), lines)}: {error}") from error
    return ImportedGraph(graph=graph, ignored=ignored)


def _place(message: str, lines: _Lines) -> str:
    """`, line n` for a message of `from_networkx` that names a node."""
    for node, line in lines.nodes.items():
        if f"node {node!r}" in message:
            return f", line {line}"
    for (src, dst), found in lines.edges.items():
        if f"edge {src!r} -> {dst!r}" in message:
            return f", line {found[0]}"
    return f", line {lines.graph}"


def _weighted(
    source: Any,
    lines: _Lines,
    name: str,
    where: str,
    ns_per_unit: float | None,
    bytes_per_unit: float | None,
) -> ImportedGraph:
    if ns_per_unit is None or bytes_per_unit is None:
        raise FormatError(
            f"{where} holds weights without a unit: say ns_per_unit and bytes_per_unit"
        )
    ignored: dict[str, int] = {}
    for key in source.graph:
        if key not in ("node_default", "edge_default"):
            count_in(ignored, f"graph attribute {key!r}")
    nodes: list[WeightedNode] = []
    for node, attributes in source.nodes(data=True):
        line = lines.nodes[node]
        weight = _weight(attributes, "node", ignored, f"{where}, line {line}")
        if weight is None:
            raise FormatError(
                f"{where}, line {line}: every node has a kind or a weight, and node {node!r} has "
                f"neither"
            )
        nodes.append(WeightedNode(name=node, weight=weight, line=line))
    edges: list[WeightedEdge] = []
    for src, dst, attributes in source.edges(data=True):
        line = lines.edges[src, dst].pop(0)
        weight = _weight(attributes, "edge", ignored, f"{where}, line {line}")
        edges.append(WeightedEdge(src=src, dst=dst, weight=weight or Fraction(0), line=line))
    return weighted_graph(
        name,
        nodes,
        edges,
        ns_per_unit=ns_per_unit,
        bytes_per_unit=bytes_per_unit,
        ignored=ignored,
        where=where,
    )


def _weight(
    attributes: dict[str, Any], what: str, ignored: dict[str, int], where: str
) -> Fraction | None:
    """The weight, whatever the case of its name; the format's own ids are no attributes."""
    own = {key: value for key, value in attributes.items() if key != "id"}
    names = [key for key in own if key.lower() == WEIGHT]
    return read_weight(own, names, what, ignored, where)


def _known(
    attributes: dict[str, Any], defaults: dict[str, Any], what: str, ignored: dict[str, int]
) -> dict[str, Any]:
    for key in attributes:
        if key not in defaults and key != "id":
            count_in(ignored, f"{what} attribute {key!r}")
    return {key: value for key, value in attributes.items() if key in defaults}


def _scalars(attributes: dict[str, Any]) -> dict[str, Any]:
    return {key: _text(value) for key, value in attributes.items() if value is not None}


def _text(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def _value(key: str, value: Any, place: str) -> Any:
    if key not in LIST_KEYS:
        return value
    try:
        return json.loads(value)
    except (TypeError, ValueError) as error:
        raise FormatError(f"{place}: {key} is JSON text, and it is {value!r:.60}") from error
