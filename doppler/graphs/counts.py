"""How large a graph is: ops, edges, depth, width, work and bytes, by kind of op."""

from collections import Counter
from dataclasses import dataclass

from doppler.core.graph import DataflowGraph
from doppler.graphs.levels import depth, op_depths


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCounts:
    """How large a graph is.

    Attributes:
        n: Ops, graph inputs included.
        inputs: Graph inputs.
        placed: Ops that a planner places.
        edges: Edges between those.
        roots, sinks: Placed ops without such an edge in, out within an iteration.
        depth: Placed ops on the longest path.
        max_in, max_out: Most edges between placed ops into and out of one.
    """

    n: int
    inputs: int
    placed: int
    edges: int
    roots: int
    sinks: int
    depth: int
    max_in: int
    max_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KindCount:
    """The placed ops of one kind: how many, their work, and what they read and write."""

    kind: str
    num_ops: int
    flop: int
    bytes_moved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphTotals:
    """What a graph holds in all.

    Attributes:
        width: Most placed ops with equally many ops on the longest path to them: so many can run
            side by side where all ops take equal time.
        loop_edges: Edges to a later iteration.
        flop, bytes_moved: Sums over the placed ops.
        edge_bytes: Sum over the edges between placed ops, of what would be sent if all were.
        input_bytes: Sum over the graph inputs.
        state_bytes: Sum over the groups.
        kinds: By kind, most work first; equal work by bytes, then by name.
    """

    width: int
    loop_edges: int
    flop: int
    bytes_moved: int
    edge_bytes: int
    input_bytes: int
    state_bytes: int
    kinds: tuple[KindCount, ...]


def count_graph(graph: DataflowGraph) -> GraphCounts:
    """Returns the counts of a graph."""
    edges = [edge for edge in graph.edges if not graph.ops[edge.src].is_input]
    into, out_of = [0] * graph.num_ops, [0] * graph.num_ops
    for edge in edges:
        into[edge.dst] += 1
        out_of[edge.src] += 1
    flat = [edge for edge in edges if edge.distance == 0]
    placed = graph.placeable
    return GraphCounts(
        n=graph.num_ops,
        inputs=graph.num_ops - len(placed),
        placed=len(placed),
        edges=len(edges),
        roots=len(set(placed) - {edge.dst for edge in flat}),
        sinks=len(set(placed) - {edge.src for edge in flat}),
        depth=depth(graph),
        max_in=max(into),
        max_out=max(out_of),
    )


def total_graph(graph: DataflowGraph) -> GraphTotals:
    """Returns the sums of a graph."""
    placed = [graph.ops[op] for op in graph.placeable]
    between = [edge for edge in graph.edges if not graph.ops[edge.src].is_input]
    depths_V = op_depths(graph)
    kinds = [_count_kind(graph, kind) for kind in {op.kind for op in placed}]
    return GraphTotals(
        width=max(Counter(depths_V[list(graph.placeable)].tolist()).values(), default=0),
        loop_edges=sum(edge.distance > 0 for edge in graph.edges),
        flop=sum(op.flop for op in placed),
        bytes_moved=sum(op.bytes_moved for op in placed),
        edge_bytes=sum(graph.ops[edge.src].outputs[edge.output] for edge in between),
        input_bytes=sum(sum(op.outputs) for op in graph.ops if op.is_input),
        state_bytes=sum(group.state_bytes for group in graph.groups),
        kinds=tuple(sorted(kinds, key=lambda k: (-k.flop, -k.bytes_moved, k.kind))),
    )


def _count_kind(graph: DataflowGraph, kind: str) -> KindCount:
    ops = [op for op in graph.ops if op.kind == kind and not op.is_input]
    return KindCount(
        kind=kind,
        num_ops=len(ops),
        flop=sum(op.flop for op in ops),
        bytes_moved=sum(op.bytes_moved for op in ops),
    )
