"""What the reader of a foreign file returns, and what all such readers share.

Times and sizes of most formats have arbitrary units: the reader is told how many nanoseconds or
bytes one unit is, and every number is rounded once, at import, from its exact decimal value.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import networkx as nx

from doppler.core.costs import Costs, make_costs
from doppler.core.errors import FormatError, GraphError
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.problem import Problem

TASK_KIND = "task"
LARGEST_NUMBER = Fraction(10**300)
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?")


@dataclass(frozen=True, kw_only=True)
class ImportedGraph:
    """What a foreign file holds.

    Attributes:
        graph: The graph.
        op_ns: Per op its times: one for every device, or one per machine of the file in the
            file's order; None where the file has no times.
        needs_costs: True if there are no times and no work that a model could tell them from.
        ignored: What the file has and the graph has not -> how often ("node attribute 'color'").
    """

    graph: DataflowGraph
    op_ns: tuple[tuple[int, ...], ...] | None = None
    needs_costs: bool = False
    ignored: Mapping[str, int] = field(default_factory=dict)

    def costs(self, problem: Problem) -> Costs:
        """Returns costs with the file's times on the devices of `problem`.

        Raises:
            FormatError: If the file has no times.
            GraphError: If the file has times of another number of machines.
        """
        name, num_devices = self.graph.name, problem.cluster.num_devices
        if self.op_ns is None:
            raise FormatError(f"the file of graph {name!r} holds no times, so costs are needed")
        num_machines = max(len(row) for row in self.op_ns)
        if num_machines not in (1, num_devices):
            raise GraphError(
                f"machine k of the file is device k of the cluster, and graph {name!r} has times "
                f"of {num_machines} machines and cluster {problem.cluster.name!r} {num_devices} "
                f"devices"
            )
        return make_costs(
            problem, tuple(row * num_devices if len(row) == 1 else row for row in self.op_ns)
        )

    def notes(self) -> tuple[str, ...]:
        """One line per thing that was left out, with its count."""
        return tuple(f"left out: {what} ({count} x)" for what, count in self.ignored.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedNode:
    """A node with its run time in units, and the line that it stands on."""

    name: str
    weight: Fraction
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedEdge:
    """An edge with its data in units, and the line that it stands on."""

    src: str
    dst: str
    weight: Fraction
    line: int


def read_weight(
    attributes: Mapping[str, object],
    names: Collection[str],
    what: str,
    ignored: dict[str, int],
    where: str,
) -> Fraction | None:
    """Returns the weight of a node or an edge, None if it has none; counts all other attributes.

    Args:
        attributes: Of the node or edge.
        names: Attributes that hold a weight; the last one that is there counts.
        what: "node" or "edge".
        ignored: Counts what is left out.
        where: Place in the file, for messages.

    Raises:
        FormatError: If the weight is no number.
    """
    weight: Fraction | None = None
    for key, value in attributes.items():
        if key in names:
            weight = parse_number(str(value), f"the {key} of the {what}", where)
        else:
            count_in(ignored, f"{what} attribute {key!r}")
    return weight


def weighted_graph(
    name: str,
    nodes: Sequence[WeightedNode],
    edges: Sequence[WeightedEdge],
    *,
    ns_per_unit: float,
    bytes_per_unit: float,
    ignored: Mapping[str, int],
    where: str,
) -> ImportedGraph:
    """Returns the graph of nodes with one time and edges with data of their own.

    Every edge carries a tensor of its own, as such formats mean it: an op has one output per
    out-edge, in the order of the edges.

    Raises:
        FormatError: If a scale is not positive or a weight is negative.
        GraphError: If the edges form a circle.
    """
    ids = {node.name: index for index, node in enumerate(nodes)}
    outputs: list[list[int]] = [[] for _ in nodes]
    rows: list[Edge] = []
    for edge in edges:
        src = ids[edge.src]
        rows.append(Edge(src, len(outputs[src]), ids[edge.dst]))
        outputs[src].append(
            scaled(edge.weight, bytes_per_unit, "bytes_per_unit", f"{where}, line {edge.line}")
        )
    op_ns = tuple(
        (scaled(node.weight, ns_per_unit, "ns_per_unit", f"{where}, line {node.line}"),)
        for node in nodes
    )
    ops = tuple(
        Op(kind=TASK_KIND, name=node.name, outputs=tuple(sizes))
        for node, sizes in zip(nodes, outputs, strict=True)
    )
    graph = checked_graph(name, ops, rows, [edge.line for edge in edges], where)
    return ImportedGraph(graph=graph, op_ns=op_ns, ignored=ignored)


def checked_graph(
    name: str, ops: Sequence[Op], edges: Sequence[Edge], lines: Sequence[int], where: str
) -> DataflowGraph:
    """Returns the graph; the error of a circle names the first line that is part of it.

    Args:
        name: Name of the graph.
        ops: Its ops.
        edges: Its edges, all of distance 0.
        lines: Line of each edge.
        where: Name of the file.

    Raises:
        GraphError: If a rule of `DataflowGraph` is broken.
    """
    try:
        return DataflowGraph(name=name, ops=tuple(ops), edges=tuple(edges))
    except GraphError as error:
        circle = _circle_line(edges, lines)
        place = where if circle is None else f"{where}, line {circle}"
        raise GraphError(f"{place}: {error}") from error


def read_text(path: str | Path, what: str) -> str:
    """Returns the text of a file.

    Raises:
        FormatError: If it is not there or not UTF-8.
    """
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path} cannot be read as {what}: {error}") from error


def parse_number(text: str, what: str, where: str) -> Fraction:
    """Returns the exact value of a decimal number of at least 0 and below 1e300.

    Raises:
        FormatError: If the text is none.
    """
    word = text.strip()
    if not NUMBER.fullmatch(word):
        raise FormatError(f"{where}: {what} is a number, and the file has {text!r}")
    value = Fraction(word)
    if value < 0:
        raise FormatError(f"{where}: {what} is at least 0, and the file has {text!r}")
    if value >= LARGEST_NUMBER:
        raise FormatError(f"{where}: {what} is below 1e300, and the file has {text!r}")
    return value


def scaled(value: Fraction, per_unit: float, name: str, where: str) -> int:
    """Returns a number of units in ns or bytes, rounded to the nearest integer (ties to even).

    Raises:
        FormatError: If the scale is not a positive number, or the result does not fit in 63 bits.
    """
    if not 0 < per_unit < float("inf"):
        raise FormatError(f"{where}: {name} is positive, and it is {per_unit}")
    result = round(value * Fraction(str(per_unit)))
    if result >= 1 << 63:
        raise FormatError(
            f"{where}: a number times {name} ({per_unit}) fits in 63 bits, and one here does not"
        )
    return result


def count_in(ignored: dict[str, int], what: str) -> None:
    """Adds one to what was left out."""
    ignored[what] = ignored.get(what, 0) + 1


def _circle_line(edges: Sequence[Edge], lines: Sequence[int]) -> int | None:
    first: dict[tuple[int, int], int] = {}
    for edge, line in zip(edges, lines, strict=True):
        first.setdefault((edge.src, edge.dst), line)
    try:
        circle = nx.find_cycle(nx.DiGraph(list(first)))
    except nx.NetworkXNoCycle:
        return None
    return min(first[src, dst] for src, dst in circle)
