"""Builds the arrays of the assignment MDP from a problem and its costs."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, starmap

import numpy as np

from doppler.core.cluster import NS_PER_S
from doppler.core.costs import Costs
from doppler.core.errors import PlanError
from doppler.core.graph import InputResidency
from doppler.core.problem import Problem
from doppler.policies.assignment import Assignment, Bools, Floats, Ints
from simulator.machine_code import cached


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
    times = b"".join(starmap(struct.Struct(f"{num_devices}q").pack, costs.op_ns))
    work = np.frombuffer(times, np.int64).reshape(graph.num_ops, num_devices)[op_ids]
    work = work + np.array(costs.dispatch_ns or (0,) * num_devices, dtype=np.float64)
    group, group_bytes = _groups(problem, op_ids)
    allowed = _allowed(problem, op_ids, group)
    unit_ns = max(1.0, float(work[allowed].mean())) if allowed.any() else 1.0
    latency, per_byte, linked = _link_times(problem, unit_ns)
    bus_ptr, bus = _buses(problem)
    edges = _Edges.of(problem, local)
    flat = edges.select(edges.distance == 0) if edges.distance.any() else edges
    in_ptr, in_order = _rows(flat.dst, len(op_ids))
    out_ptr, out_order = _rows(flat.src, len(op_ids))
    position = np.empty_like(in_order)
    position[in_order] = np.arange(len(in_order))
    near_ptr, near_op, near_bytes, near_out, near_loop = _neighbours(
        edges.src, edges.dst, edges.size, edges.distance, len(op_ids)
    )
    meta = _meta_ops(problem)
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
        in_tensor=_ranks(flat.tensor[in_order]),
        out_ptr=out_ptr,
        out_dst=flat.dst[out_order],
        out_in=position[out_order],
        near_ptr=near_ptr,
        near_op=near_op,
        near_bytes=near_bytes,
        near_out=near_out,
        near_loop=near_loop,
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
    """Edges between placed ops; `tensor` tells outputs apart."""

    src: Ints
    dst: Ints
    size: Floats
    distance: Ints
    tensor: Ints

    @classmethod
    def of(cls, problem: Problem, local: Ints) -> "_Edges":
        graph = problem.graph
        outputs = [op.outputs for op in graph.ops]
        counts = _ints(list(map(len, outputs)))
        sizes = list(chain.from_iterable(outputs))
        src = _ints([edge.src for edge in graph.edges])
        tensor = (np.cumsum(counts) - counts)[src] + _ints([edge.output for edge in graph.edges])
        found = cls(
            local[src],
            local[_ints([edge.dst for edge in graph.edges])],
            np.frombuffer(struct.pack(f"{len(sizes)}d", *sizes), np.float64)[tensor],
            _ints([edge.distance for edge in graph.edges]),
            tensor,
        )
        return found if len(graph.placeable) == graph.num_ops else found.select(found.src >= 0)

    def select(self, index: Bools) -> "_Edges":
        return _Edges(
            src=self.src[index],
            dst=self.dst[index],
            size=self.size[index],
            distance=self.distance[index],
            tensor=self.tensor[index],
        )


def _ints(values: Sequence[int]) -> Ints:
    """Returns the values as an array; most columns of most graphs are all 0."""
    if values.count(0) == len(values):
        return np.zeros(len(values), dtype=np.int64)
    # Packed, not converted one by one: twice as fast.
    return np.frombuffer(struct.pack(f"{len(values)}q", *values), np.int64).copy()


@cached()
def _rows(keys: Ints, num_rows: int) -> tuple[Ints, Ints]:
    """CSR row pointers and the order that sorts `keys`, stable."""
    pointers, order = np.zeros(num_rows + 1, np.int64), np.empty(len(keys), np.int64)
    for key in keys:
        pointers[key + 1] += 1
    for row in range(num_rows):
        pointers[row + 1] += pointers[row]
    fill = pointers.copy()
    for index in range(len(keys)):
        order[fill[keys[index]]] = index
        fill[keys[index]] += 1
    return pointers, order


@cached()
def _ranks(keys: Ints) -> Ints:
    """Rank of every key among the different ones."""
    ranks = np.zeros(keys.max() + 1 if len(keys) else 0, np.int64)
    for key in keys:
        ranks[key] = 1
    count = 0
    for key in range(len(ranks)):
        count += ranks[key]
        ranks[key] = count - 1
    return ranks[keys]


@cached()
def _neighbours(
    src: Ints, dst: Ints, size: Floats, distance: Ints, num_ops: int
) -> tuple[Ints, Ints, Floats, Bools, Bools]:
    """Every edge from both ends, self-loops left out, as CSR: consumers of an op, then producers.

    Returns:
        Row pointers, neighbour, bytes, True where it is the consumer, True across iterations.
    """
    pointers = np.zeros(num_ops + 1, np.int64)
    for edge in range(len(src)):
        if src[edge] != dst[edge]:
            pointers[src[edge] + 1] += 1
            pointers[dst[edge] + 1] += 1
    for op in range(num_ops):
        pointers[op + 1] += pointers[op]
    count = pointers[num_ops]
    ops, sizes = np.empty(count, np.int64), np.empty(count, np.float64)
    out, loop = np.empty(count, np.bool_), np.empty(count, np.bool_)
    fill = pointers.copy()
    for is_out in (True, False):
        for edge in range(len(src)):
            if src[edge] != dst[edge]:
                op = src[edge] if is_out else dst[edge]
                slot = fill[op]
                fill[op] += 1
                ops[slot] = dst[edge] if is_out else src[edge]
                sizes[slot], out[slot], loop[slot] = size[edge], is_out, distance[edge] > 0
    return pointers, ops, sizes, out, loop


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
    size, ids = cluster.num_devices, {bus: index for index, bus in enumerate(cluster.bus_names)}
    rows: list[list[int]] = [[] for _ in range(size * size)]
    for (src, dst), link in cluster.link_table.items():
        if link.bytes_per_s is None:
            continue
        on_stream = cluster.devices[src].copy_engines == 0
        own = [len(ids) + src] if on_stream else []
        rows[src * size + dst] = own + [ids[bus] for bus in link.buses]
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
    if not graph.groups:
        return np.full(len(op_ids), -1, dtype=np.int64), np.zeros(0)
    ids = {group.name: index for index, group in enumerate(graph.groups)}
    group = [-1 if graph.ops[op].group is None else ids[graph.ops[op].group or ""] for op in op_ids]
    sizes = [group.state_bytes for group in graph.groups]
    return np.array(group, dtype=np.int64), np.array(sizes, dtype=np.float64)


def _allowed(problem: Problem, op_ids: Ints, group: Ints) -> Bools:
    """Devices per op; an op of a group has only those that all ops of the group may use."""
    graph, num_devices = problem.graph, problem.cluster.num_devices
    rows = problem.allowed
    if rows and rows.count(rows[0]) == len(rows):  # told sooner than all are read
        allowed = np.tile(np.array(rows[0], dtype=np.bool_), (len(rows), 1))
    else:
        packed = b"".join(map(bytes, rows))
        allowed = np.frombuffer(packed, np.bool_).reshape(-1, num_devices).copy()
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


def _meta_ops(problem: Problem) -> Ints:
    ops = problem.graph.ops
    names = [ops[op].meta_op for op in problem.graph.placeable]
    if not any(names):
        return np.full(len(names), -1, dtype=np.int64)
    ids = {name: index for index, name in enumerate(dict.fromkeys(n for n in names if n))}
    return np.array([ids[name] if name else -1 for name in names], dtype=np.int64)


def _parent_metas(in_ptr: Ints, in_src: Ints, meta: Ints) -> tuple[Ints, Ints]:
    num_ops, count = len(in_ptr) - 1, int(meta.max(initial=-1)) + 1
    if count == 0:
        return np.zeros(num_ops + 1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    targets = np.repeat(np.arange(num_ops), np.diff(in_ptr))
    parents = meta[in_src]
    known = parents >= 0
    pairs = np.unique(targets[known] * count + parents[known])
    rows, parent_meta = np.divmod(pairs, count)
    return _rows(rows, num_ops)[0], parent_meta
