"""Builds the arrays of the assignment MDP from a problem and its costs."""

from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

import numpy as np

from doppler.core.cluster import NS_PER_S
from doppler.core.costs import Costs
from doppler.core.errors import PlanError
from doppler.core.graph import InputResidency
from doppler.core.problem import Problem
from doppler.policies.assignment import Assignment, Bools, Floats, Ints


def build_assignment(problem: Problem, costs: Costs) -> Assignment:
    """Returns the MDP of `problem` with the times of `costs`.

    Raises:
        PlanError: If no device may run all ops of a group.
    """
    graph, cluster = problem.graph, problem.cluster
    num_devices = cluster.num_devices
    op_ids = np.array(graph.placeable, dtype=np.int64)
    local = np.full(graph.num_ops, -1, dtype=np.int64)
    local[op_ids] = np.arange(len(op_ids))
    times = chain.from_iterable(costs.op_ns)
    work = np.fromiter(times, np.float64, graph.num_ops * num_devices)
    work = work.reshape(graph.num_ops, num_devices)[op_ids]
    work = work + np.array(costs.dispatch_ns or (0,) * num_devices, dtype=np.float64)
    group, group_bytes = _groups(problem, op_ids)
    allowed = _allowed(problem, op_ids, group)
    unit_ns = max(1.0, float(work[allowed].mean())) if allowed.any() else 1.0
    latency, per_byte, linked = _link_times(problem, unit_ns)
    bus_ptr, bus = _buses(problem)
    edges = _Edges.of(problem, local)
    flat = edges.select(edges.distance == 0)
    in_ptr, in_order = _rows(flat.dst, len(op_ids))
    out_ptr, out_order = _rows(flat.src, len(op_ids))
    near_ptr, near = _neighbours(edges, len(op_ids))
    meta = _meta_ops(problem, op_ids)
    parent_ptr, parent_meta = _parent_metas(in_ptr, flat.src[in_order], meta)
    return Assignment(
        problem=problem,
        op_ids=op_ids,
        unit_ns=unit_ns,
        work=work / unit_ns,
        allowed=allowed,
        input_ready=_input_ready(problem, local, latency, per_byte)[op_ids],
        in_ptr=in_ptr,
        in_src=flat.src[in_order],
        in_bytes=flat.size[in_order],
        in_tensor=np.unique(flat.tensor[in_order], return_inverse=True)[1].astype(np.int64),
        out_ptr=out_ptr,
        out_dst=flat.dst[out_order],
        out_in=np.argsort(in_order, kind="stable")[out_order],
        near_ptr=near_ptr,
        near_op=near.dst,
        near_bytes=near.size,
        near_out=near.out,
        near_loop=near.distance > 0,
        group=group,
        group_bytes=group_bytes,
        meta=meta,
        meta_size=np.bincount(meta[meta >= 0], minlength=int(meta.max(initial=-1)) + 1),
        parent_meta_ptr=parent_ptr,
        parent_meta=parent_meta,
        latency=latency,
        per_byte=per_byte,
        bus_ptr=bus_ptr,
        bus=bus,
        linked=linked,
        num_streams=np.array([device.num_streams for device in cluster.devices], dtype=np.int64),
        memory_bytes=np.array(
            [problem.memory_limit_bytes(device) for device in range(num_devices)], dtype=np.float64
        ),
    )


@dataclass(frozen=True, slots=True)
class _Edges:
    """Edges between placed ops.

    `tensor` tells outputs apart; `out` is False in a copy that is read from the consumer's end.
    """

    src: Ints
    dst: Ints
    size: Floats
    distance: Ints
    tensor: Ints
    out: Bools

    @classmethod
    def of(cls, problem: Problem, local: Ints) -> "_Edges":
        graph = problem.graph
        is_placed = local.tolist()
        kept = [edge for edge in graph.edges if is_placed[edge.src] >= 0]
        sizes = np.fromiter(chain.from_iterable(op.outputs for op in graph.ops), np.float64)
        counts = np.fromiter((len(op.outputs) for op in graph.ops), np.int64, graph.num_ops)
        src, dst, output, distance = (
            np.fromiter(map(attrgetter(name), kept), np.int64, len(kept))
            for name in ("src", "dst", "output", "distance")
        )
        tensor = (np.cumsum(counts) - counts)[src] + output
        return cls(
            local[src],
            local[dst],
            sizes[tensor],
            distance,
            tensor,
            np.ones(len(kept), dtype=np.bool_),
        )

    def select(self, index: Ints | Bools) -> "_Edges":
        return _Edges(
            src=self.src[index],
            dst=self.dst[index],
            size=self.size[index],
            distance=self.distance[index],
            tensor=self.tensor[index],
            out=self.out[index],
        )


def _rows(keys: Ints, num_rows: int) -> tuple[Ints, Ints]:
    """CSR row pointers and the order that sorts `keys`, stable."""
    return _pointers(keys, num_rows), np.argsort(keys, kind="stable")


def _pointers(keys: Ints, num_rows: int) -> Ints:
    counts = np.bincount(keys, minlength=num_rows)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _neighbours(edges: _Edges, num_ops: int) -> tuple[Ints, _Edges]:
    """Every edge from both ends: row = own op, `dst` = the neighbour."""
    kept = edges.select(edges.src != edges.dst)
    both = _Edges(
        np.concatenate([kept.src, kept.dst]),
        np.concatenate([kept.dst, kept.src]),
        np.tile(kept.size, 2),
        np.tile(kept.distance, 2),
        np.tile(kept.tensor, 2),
        np.concatenate([kept.out, ~kept.out]),
    )
    pointers, order = _rows(both.src, num_ops)
    return pointers, both.select(order)


def _link_times(problem: Problem, unit_ns: float) -> tuple[Floats, Floats, Bools]:
    """Latency, time per byte and whether there is a link, D x D each."""
    cluster = problem.cluster
    size = cluster.num_devices
    latency_DD, per_byte_DD = np.zeros((size, size)), np.zeros((size, size))
    linked_DD = np.eye(size, dtype=np.bool_)
    for (src, dst), link in cluster.link_table.items():
        linked_DD[src, dst] = True
        latency_DD[src, dst] = link.latency_ns / unit_ns
        if link.bytes_per_s is not None:
            per_byte_DD[src, dst] = NS_PER_S / link.bytes_per_s / unit_ns
    return latency_DD, per_byte_DD, linked_DD


def _buses(problem: Problem) -> tuple[Ints, Ints]:
    """Wires per ordered pair of devices, CSR over D * D rows."""
    cluster = problem.cluster
    size, names = cluster.num_devices, cluster.bus_names
    rows: list[list[int]] = [[] for _ in range(size * size)]
    for (src, dst), link in cluster.link_table.items():
        if link.bytes_per_s is None:
            continue
        on_stream = cluster.devices[src].copy_engines == 0
        own = [len(names) + src] if on_stream else []
        rows[src * size + dst] = own + [names.index(bus) for bus in link.buses]
    pointers = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return pointers, np.array([wire for row in rows for wire in row], dtype=np.int64)


def _input_ready(problem: Problem, local: Ints, latency: Floats, per_byte: Floats) -> Floats:
    """Arrival of the inputs that lie on one device only, per op of the graph and device."""
    graph, cluster = problem.graph, problem.cluster
    ready = np.zeros((graph.num_ops, cluster.num_devices))
    if graph.inputs is InputResidency.everywhere:
        return ready
    for edge in graph.edges:
        if local[edge.src] < 0:
            home = cluster.device_ids[problem.pins[graph.ops[edge.src].name]]
            size = graph.ops[edge.src].outputs[edge.output]
            arrival = latency[home] + size * per_byte[home]
            ready[edge.dst] = np.maximum(ready[edge.dst], arrival)
    return ready


def _groups(problem: Problem, op_ids: Ints) -> tuple[Ints, Floats]:
    graph = problem.graph
    ids = {group.name: index for index, group in enumerate(graph.groups)}
    group = [-1 if graph.ops[op].group is None else ids[graph.ops[op].group or ""] for op in op_ids]
    sizes = [group.state_bytes for group in graph.groups]
    return np.array(group, dtype=np.int64), np.array(sizes, dtype=np.float64)


def _allowed(problem: Problem, op_ids: Ints, group: Ints) -> Bools:
    """Devices per op; an op of a group has only those that all ops of the group may use."""
    graph, num_devices = problem.graph, problem.cluster.num_devices
    rows = b"".join(map(bytes, problem.allowed))
    allowed = np.frombuffer(rows, np.bool_).reshape(-1, num_devices).copy()
    if graph.inputs is InputResidency.pinned:
        allowed &= _reachable(problem)
    allowed = allowed[op_ids]
    for index, entry in enumerate(graph.groups):
        members = np.flatnonzero(group == index)
        if not len(members):
            continue
        common = allowed[members].all(axis=0)
        if not common.any():
            raise PlanError(
                f"ops of one group share a device, and no device of cluster "
                f"{problem.cluster.name!r} may run all {len(members)} ops of group {entry.name!r}"
            )
        allowed[members] = common
    return allowed


def _reachable(problem: Problem) -> Bools:
    """Devices per op of the graph to which its pinned inputs have links."""
    graph, cluster = problem.graph, problem.cluster
    reachable = np.ones((graph.num_ops, cluster.num_devices), dtype=np.bool_)
    for edge in graph.edges:
        if graph.ops[edge.src].is_input:
            home = cluster.device_ids[problem.pins[graph.ops[edge.src].name]]
            for device in range(cluster.num_devices):
                linked = device == home or (home, device) in cluster.link_table
                reachable[edge.dst, device] &= linked
    return reachable


def _meta_ops(problem: Problem, op_ids: Ints) -> Ints:
    names = [problem.graph.ops[op].meta_op for op in op_ids]
    ids = {name: index for index, name in enumerate(dict.fromkeys(n for n in names if n))}
    return np.array([ids[name] if name else -1 for name in names], dtype=np.int64)


def _parent_metas(in_ptr: Ints, in_src: Ints, meta: Ints) -> tuple[Ints, Ints]:
    targets = np.repeat(np.arange(len(in_ptr) - 1), np.diff(in_ptr))
    parents, count = meta[in_src], int(meta.max(initial=-1)) + 1
    known = parents >= 0
    pairs = np.unique(targets[known] * max(1, count) + parents[known])
    rows, parent_meta = np.divmod(pairs, max(1, count))
    return _pointers(rows, len(in_ptr) - 1), parent_meta
