"""Levels of a graph: longest paths over distance-0 edges, with and without communication.

Arrays: `V` ops, `E` edges, `D` devices. All are linear in ops and edges; path sums are carried
along by pointers, so no path is ever listed.

Source: Kwok and Ahmad 1999 (b-level, t-level); Topcuoglu et al. 2002, equation 3 (upward rank);
Arabnejad and Barbosa 2014 (optimistic costs).
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from doppler.core.costs import Costs
from doppler.core.graph import DataflowGraph, InputResidency
from doppler.core.problem import Problem
from doppler.graphs.longest_paths import compute_levels

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

NO_OP = -1


def mean_op_ns(problem: Problem, costs: Costs) -> Floats:
    """Returns the mean time per op over the devices that may run it, float64[V]."""
    times_VD = np.asarray(costs.op_ns, dtype=np.float64)
    allowed_VD = _usable(problem)
    return np.asarray((times_VD * allowed_VD).sum(axis=1) / allowed_VD.sum(axis=1))


def mean_transfer_ns(problem: Problem) -> Floats:
    """Returns the mean uncontended transfer time per edge, float64[E].

    The mean goes over all ordered pairs of devices that a link joins: latency + bytes / bandwidth.
    Edges of inputs that are resident everywhere, and clusters without links, have 0.
    """
    graph = problem.graph
    links = list(problem.cluster.link_table.values())
    free_inputs = graph.inputs is InputResidency.everywhere
    result = np.zeros(len(graph.edges))
    if not links:
        return result
    by_size: dict[int, float] = {}
    for index, edge in enumerate(graph.edges):
        src = graph.ops[edge.src]
        if src.is_input and free_inputs:
            continue
        size = src.outputs[edge.output]
        if size not in by_size:
            times = [link.latency_ns + link.occupancy_ns(size) for link in links]
            by_size[size] = sum(times) / len(times)
        result[index] = by_size[size]
    return result


def b_levels(graph: DataflowGraph, op_ns_V: Floats, edge_ns_E: Floats | None = None) -> Floats:
    """Returns the longest path from each op to an exit, the op's own time included, float64[V].

    Args:
        graph: The graph.
        op_ns_V: One time per op.
        edge_ns_E: One time per edge; None = compute only.
    """
    return _longest(graph, op_ns_V, edge_ns_E, forward=False)[0]


def t_levels(graph: DataflowGraph, op_ns_V: Floats, edge_ns_E: Floats | None = None) -> Floats:
    """Returns the longest path from an entry to each op, the op's own time included, float64[V].

    It is `b_levels` of the reversed graph.
    """
    return _longest(graph, op_ns_V, edge_ns_E, forward=True)[0]


def next_on_longest_path(
    graph: DataflowGraph, op_ns_V: Floats, edge_ns_E: Floats | None = None
) -> Ids:
    """Returns the successor on each op's longest path to an exit, or -1 at an exit, int64[V].

    Ties go to the lower op id. Sums along the path are H[v] + sum[next[v]] in reverse topological
    order, linear in the graph.
    """
    return _longest(graph, op_ns_V, edge_ns_E, forward=False)[1]


def upward_ranks(problem: Problem, costs: Costs) -> Floats:
    """Returns HEFT's upward rank, float64[V].

    rank(v) = mean_d w(v, d) + max over successors s of (c(v, s) (D - 1) / D + rank(s)); (D - 1) / D
    is the chance that two ops sit on different devices.
    """
    num_devices = problem.cluster.num_devices
    transfer_ns_E = mean_transfer_ns(problem) * (num_devices - 1) / num_devices
    return b_levels(problem.graph, mean_op_ns(problem, costs), transfer_ns_E)


def optimistic_costs(problem: Problem, costs: Costs) -> Floats:
    """Returns PEFT's optimistic cost table, float64[V, D]: the least time left after an end.

    OCT(v, d) = max over successors s of min over devices q of (OCT(s, q) + w(s, q) + [q != d] c),
    c the edge's mean transfer time; 0 at exits. Only devices that may run s count as q.

    Source: Arabnejad and Barbosa 2014, equation 5.
    """
    graph = problem.graph
    times_VD = np.where(_usable(problem), np.asarray(costs.op_ns, dtype=np.float64), np.inf)
    transfer_ns_E = mean_transfer_ns(problem)
    table_VD = np.zeros(times_VD.shape)
    for op in graph.topological_order[::-1]:
        for edge_id, other in _neighbours(graph, op, forward=False):
            left_D = table_VD[other] + times_VD[other]
            elsewhere = left_D.min() + transfer_ns_E[edge_id]
            np.maximum(table_VD[op], np.minimum(left_D, elsewhere), out=table_VD[op])
    return table_VD


def priorities_of(levels_V: Floats, graph: DataflowGraph) -> Ids:
    """Returns one integer priority per op, distinct, larger for a larger level, int64[V].

    Equal levels go by topological position, so a predecessor is never behind its successor.
    """
    position_V = np.empty(graph.num_ops, dtype=np.int64)
    position_V[list(graph.topological_order)] = np.arange(graph.num_ops)
    order = np.lexsort((position_V, -levels_V))
    priorities_V = np.empty(graph.num_ops, dtype=np.int64)
    priorities_V[order] = np.arange(graph.num_ops, 0, -1)
    return priorities_V


def op_depths(graph: DataflowGraph) -> Ids:
    """Returns the ops on the longest path that ends in each, over distance-0 edges, int64[V].

    The op counts itself; inputs are not counted.
    """
    ones_V = np.asarray([0.0 if op.is_input else 1.0 for op in graph.ops])
    return t_levels(graph, ones_V).astype(np.int64)


def depth(graph: DataflowGraph) -> int:
    """Returns the number of ops on the longest path over distance-0 edges, inputs not counted."""
    return int(op_depths(graph).max())


def _usable(problem: Problem) -> NDArray[np.bool_]:
    """allowed, with a full row for inputs whose own mask is empty (they have no device)."""
    allowed_VD = np.asarray(problem.allowed, dtype=np.bool_)
    allowed_VD[~allowed_VD.any(axis=1)] = True
    return allowed_VD


def _longest(
    graph: DataflowGraph, op_ns_V: Floats, edge_ns_E: Floats | None, forward: bool
) -> tuple[Floats, Ids]:
    flat = [edge_id for edge_id, edge in enumerate(graph.edges) if edge.distance == 0]
    dst = np.asarray([graph.edges[edge_id].dst for edge_id in flat], dtype=np.int64)
    ids = np.asarray(flat, dtype=np.int64)[np.argsort(dst, kind="stable")]
    in_ptr = np.searchsorted(np.sort(dst), np.arange(graph.num_ops + 1)).astype(np.int64)
    in_src = np.asarray([graph.edges[edge_id].src for edge_id in ids], dtype=np.int64)
    along = np.zeros(len(ids)) if edge_ns_E is None else np.asarray(edge_ns_E, np.float64)[ids]
    found = compute_levels(np.asarray(op_ns_V, dtype=np.float64), in_ptr, in_src, along)
    return (found.t_level, found.next_up) if forward else (found.b_level, found.next_down)


def _neighbours(graph: DataflowGraph, op: int, forward: bool) -> Iterator[tuple[int, int]]:
    """(edge id, other end) over distance-0 edges: predecessors if forward, else successors."""
    for edge_id in graph.in_edges[op] if forward else graph.out_edges[op]:
        edge = graph.edges[edge_id]
        if edge.distance == 0:
            yield edge_id, edge.src if forward else edge.dst
