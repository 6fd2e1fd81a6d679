"""Everything about a problem and its costs that no plan can change, as flat arrays (CSR form).

Legend: V ops, E edges that carry tensors at run time (edges of inputs that are resident everywhere
do not), T tensors (outputs of all ops), D devices, S streams of all devices, P = D * D ordered
pairs, C distinct latencies, R distinct bandwidths, G groups with members.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.core.costs import Costs
from doppler.core.graph import DataflowGraph, Edge, EdgeMode, InputResidency
from doppler.core.problem import Problem

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Bytes = NDArray[np.uint8]

NO_LINK, ZERO_COPY, BUS_COPY, STREAM_COPY = -1, 0, 1, 2


class Tables(NamedTuple):
    """Read-only arrays, shared by all threads.

    `out_*` are edges sorted by (producer, output, edge id): `tensor_ptr` cuts them by tensor and
    `tensor_start` cuts the tensors by op. `in_*` are edges by (consumer, edge id).
    """

    num_ops: int
    num_devices: int
    window: int
    slots: int  # power of two above the window: iterations whose requirements are counted at once
    num_buses: int
    max_buses: int  # most buses of one link, at least 1
    num_pairs: int  # (tensor, destination) pairs that can exist at most
    has_latest: int
    has_slowdown: int
    runs: Bytes  # [V]
    allowed: Bytes  # [V, D]
    leader: Int64  # [V] first op of the group, or the op itself
    requirements: Int32  # [V]
    initial: Int32  # [slots, V] requirements of the first iterations
    tensor_start: Int64  # [V + 1]
    tensor_op: Int64  # [T]
    tensor_bytes: Int64  # [T]
    tensor_ptr: Int64  # [T + 1]
    tensor_latest: Bytes  # [T]
    tensor_distance: Int64  # [T] largest distance, = initial versions at most
    out_dst: Int32  # [E]
    out_distance: Int32  # [E]
    out_latest: Bytes  # [E]
    in_ptr: Int64  # [V + 1]
    in_tensor: Int64  # [E]
    in_distance: Int64  # [E]
    in_latest: Bytes  # [E]
    credit_ptr: Int64  # [V + 1] by consumer
    credit_op: Int64  # producer that gets the credit
    credit_distance: Int64  # window - distance
    stream_start: Int64  # [D + 1]
    stream_device: Int64  # [S]
    dispatch_ns: Int64  # [D]
    domain: Int64  # [D] what a device shares with its siblings
    memory_limit: Int64  # [D]
    link_kind: Int64  # [P]
    link_latency: Int64  # [P]
    link_class: Int64  # [P] index of the latency
    link_rate: Int64  # [P] index of the bandwidth
    link_bus_ptr: Int64  # [P + 1]
    link_bus: Int64
    num_classes: int
    occupancy_ns: Int64  # [T, R]
    op_ns: Int64  # [V, D]
    slowdown: Int64  # [V]
    backwards: Int64  # [V] ops, consumers of one pass before their producers
    group_leader: Int64  # [G]
    group_state: Int64  # [G]
    resident_ptr: Int64  # tensors of inputs that are resident everywhere ...
    resident_bytes: Int64
    resident_dst: Int64  # ... and the ops that read them


def build_tables(problem: Problem, costs: Costs) -> Tables:
    """Returns the arrays of a problem with its costs."""
    graph, cluster = problem.graph, problem.cluster
    everywhere = graph.inputs is InputResidency.everywhere
    runs = [not (op.is_input and everywhere) for op in graph.ops]
    edges = [edge for edge in graph.edges if runs[edge.src]]
    outs = sorted(edges, key=lambda edge: (edge.src, edge.output))
    ins = sorted(edges, key=lambda edge: edge.dst)
    starts = np.zeros(graph.num_ops + 1, np.int64)
    starts[1:] = np.cumsum([len(op.outputs) for op in graph.ops])
    num_tensors = int(starts[-1])

    def tensor(edge: Edge) -> int:
        return int(starts[edge.src]) + edge.output

    credits = strictest_credits(graph, edges)
    slots = 1 << graph.window.bit_length()
    requirements, initial = _requirements(graph, edges, credits, slots)
    latest = np.zeros(num_tensors, np.uint8)
    distance = np.zeros(num_tensors, np.int64)
    for edge in edges:
        latest[tensor(edge)] |= edge.mode is EdgeMode.latest
        distance[tensor(edge)] = max(distance[tensor(edge)], edge.distance)
    tensor_bytes = [size for op in graph.ops for size in op.outputs]
    credit_rows = sorted((dst, src, graph.window - k) for (src, dst), k in credits.items())
    streams = [device.num_streams for device in cluster.devices]
    leaders = np.arange(graph.num_ops, dtype=np.int64)
    groups = [g for g in graph.groups if graph.group_members[g.name]]
    for group in groups:
        members = list(graph.group_members[group.name])
        leaders[members] = members[0]
    residents = _residents(graph, everywhere)
    allowed = np.array(problem.allowed, np.uint8)
    allowed[[not run for run in runs]] = 1
    fan_out = [0] * num_tensors
    for edge in edges:
        fan_out[tensor(edge)] += 1
    return Tables(
        num_ops=graph.num_ops,
        num_devices=cluster.num_devices,
        window=graph.window,
        slots=slots,
        num_pairs=sum(min(count, cluster.num_devices - 1) for count in fan_out),
        has_latest=int(latest.any()),
        has_slowdown=int(any(costs.slowdown_permille)),
        runs=np.array(runs, np.uint8),
        allowed=allowed,
        leader=leaders,
        requirements=requirements,
        initial=initial,
        tensor_start=starts,
        tensor_op=np.repeat(np.arange(graph.num_ops, dtype=np.int64), np.diff(starts)),
        tensor_bytes=np.array(tensor_bytes, np.int64),
        tensor_ptr=_offsets([tensor(edge) for edge in outs], num_tensors),
        tensor_latest=latest,
        tensor_distance=distance,
        out_dst=np.array([edge.dst for edge in outs], np.int32),
        out_distance=np.array([edge.distance for edge in outs], np.int32),
        out_latest=np.array([edge.mode is EdgeMode.latest for edge in outs], np.uint8),
        in_ptr=_offsets([edge.dst for edge in ins], graph.num_ops),
        in_tensor=np.array([tensor(edge) for edge in ins], np.int64),
        in_distance=np.array([edge.distance for edge in ins], np.int64),
        in_latest=np.array([edge.mode is EdgeMode.latest for edge in ins], np.uint8),
        credit_ptr=_offsets([row[0] for row in credit_rows], graph.num_ops),
        credit_op=np.array([row[1] for row in credit_rows], np.int64),
        credit_distance=np.array([row[2] for row in credit_rows], np.int64),
        stream_start=np.array([0, *np.cumsum(streams)], np.int64),
        stream_device=np.repeat(np.arange(cluster.num_devices, dtype=np.int64), streams),
        dispatch_ns=np.array(costs.dispatch_ns, np.int64),
        domain=np.array(cluster.domains, np.int64),
        memory_limit=np.array(
            [problem.memory_limit_bytes(d) for d in range(cluster.num_devices)], np.int64
        ),
        op_ns=np.array(costs.op_ns, np.int64),
        slowdown=np.array(costs.slowdown_permille, np.int64),
        backwards=np.array(graph.topological_order[::-1], np.int64),
        group_leader=np.array([graph.group_members[g.name][0] for g in groups], np.int64),
        group_state=np.array([g.state_bytes for g in groups], np.int64),
        resident_ptr=np.array([0, *np.cumsum([len(dsts) for _, dsts in residents])], np.int64),
        resident_bytes=np.array([size for size, _ in residents], np.int64),
        resident_dst=np.array([dst for _, dsts in residents for dst in dsts], np.int64),
        **_link_tables(problem, tensor_bytes),
    )


def strictest_credits(graph: DataflowGraph, edges: Sequence[Edge]) -> dict[tuple[int, int], int]:
    """Returns (producer, consumer) -> largest distance, for every pair joined by an edge."""
    credits: dict[tuple[int, int], int] = {}
    for edge in edges:
        if edge.src != edge.dst:
            key = (edge.src, edge.dst)
            credits[key] = max(credits.get(key, 0), edge.distance)
    return credits


def _offsets(keys: Sequence[int], count: int) -> Int64:
    """Start of each key in a sorted list of keys, with the end appended."""
    offsets = np.zeros(count + 1, np.int64)
    offsets[1:] = np.cumsum(np.bincount(np.array(keys, np.int64), minlength=count))
    return offsets


def _requirements(
    graph: DataflowGraph, edges: Sequence[Edge], credits: dict[tuple[int, int], int], slots: int
) -> tuple[Int32, Int32]:
    """Requirements of every op, holds left out, and how many of them the first iterations have."""
    first: list[list[int]] = [[1] for _ in graph.ops]  # its own previous iteration
    for edge in edges:
        first[edge.dst].append(edge.distance)
    for (src, _), distance in credits.items():
        first[src].append(graph.window - distance)
    requirements = np.array([len(row) for row in first], np.int32)
    initial = np.repeat(requirements[:, None], slots, axis=1)
    for op, row in enumerate(first):
        for iteration in range(graph.window):
            initial[op, iteration] = sum(start <= iteration for start in row)
    return requirements, np.ascontiguousarray(initial.T)


def _residents(graph: DataflowGraph, everywhere: bool) -> list[tuple[int, list[int]]]:
    """(bytes, consumers) of every tensor of an input that lies on each device that reads it."""
    readers: dict[tuple[int, int], list[int]] = {}
    for edge in graph.edges:
        if everywhere and graph.ops[edge.src].is_input:
            readers.setdefault((edge.src, edge.output), []).append(edge.dst)
    return [(graph.ops[src].outputs[output], dsts) for (src, output), dsts in readers.items()]


def _link_tables(problem: Problem, tensor_bytes: Sequence[int]) -> dict[str, Any]:
    cluster = problem.cluster
    num_devices = cluster.num_devices
    bus_ids = {name: index for index, name in enumerate(cluster.bus_names)}
    links = [
        cluster.link_table.get((src, dst)) if src != dst else None
        for src in range(num_devices)
        for dst in range(num_devices)
    ]
    latencies = sorted({link.latency_ns for link in links if link}) or [0]
    by_rate = {link.bytes_per_s: link for link in links if link}
    rates = {rate: index for index, rate in enumerate(by_rate)}
    occupancy = np.zeros((len(tensor_bytes), max(len(rates), 1)), np.int64)
    for rate, column in rates.items():
        cost: Callable[[int], int] = by_rate[rate].occupancy_ns
        occupancy[:, column] = [cost(size) for size in tensor_bytes]
    kinds = [
        NO_LINK
        if link is None
        else ZERO_COPY
        if link.bytes_per_s is None
        else BUS_COPY
        if cluster.devices[pair // num_devices].copy_engines
        else STREAM_COPY
        for pair, link in enumerate(links)
    ]
    buses = [[bus_ids[bus] for bus in link.buses] if link else [] for link in links]
    return {
        "num_buses": len(bus_ids),
        "max_buses": max([1, *map(len, buses)]),
        "link_kind": np.array(kinds, np.int64),
        "link_latency": np.array([link.latency_ns if link else 0 for link in links], np.int64),
        "link_class": np.array(
            [latencies.index(link.latency_ns) if link else 0 for link in links], np.int64
        ),
        "link_rate": np.array([rates[link.bytes_per_s] if link else 0 for link in links], np.int64),
        "link_bus_ptr": np.array([0, *np.cumsum([len(row) for row in buses])], np.int64),
        "link_bus": np.array([bus for row in buses for bus in row], np.int64),
        "num_classes": len(latencies),
        "occupancy_ns": occupancy,
    }
