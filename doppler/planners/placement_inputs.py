# ruff: noqa: N815 - shape suffixes (unit_N) are upper case
"""A problem as the older learned planners (PLACETO, GDP) see it: placements only, one fixed order.

They choose devices, not an order. The priority of an op in all their plans is its b-level (mean
times, mean transfers), larger first, predecessors before their consumers.

Arrays: `N` ops that have a device, `U` units, `D` devices, `E` edges of distance 0, `B` placements,
`K` kinds of ops.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from doppler.core.costs import Costs
from doppler.core.graph import DataflowGraph
from doppler.core.problem import Problem
from doppler.planners.critical_path import NUM_RUNS
from doppler.planners.list_schedule import ListScheduler, make_list_scheduler
from doppler.planners.mask import NO_UNIT, Bools, Ints, Mask
from doppler.planners.tables import Floats
from simulator.machine_code import cached

_jit: Callable[[Any], Any] = cached()


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacementInputs:
    """Arrays of one problem; N is in the order of the priorities, so predecessors come first.

    Attributes:
        lists: List schedulers of the problem, for teachers and tables.
        ops_N: Op ids.
        unit_N: Unit per op.
        sweep_U: Units in the order of their first op.
        priority_V: The one priority.
        times_ND: Time per op and device over the mean time of all.
        static_NF: Log of mean time, of output bytes and of state, degrees, and log time per
            device relative to the op's mean.
        kind_NK: 1 where the op is of the kind; kinds in the order of their names.
        src_E, dst_E: Ends of the edges of distance 0, positions in N.
        edge_EDD: Uncontended transfer time per edge and pair of devices, ns.
        ancestors_NN: [a, b] true if a path leads from op b to op a.
    """

    lists: ListScheduler
    ops_N: Ints
    unit_N: Ints
    sweep_U: Ints
    priority_V: Ints
    times_ND: Floats
    static_NF: Floats
    kind_NK: Floats
    src_E: Ints
    dst_E: Ints
    edge_EDD: Floats
    ancestors_NN: Bools

    @property
    def mask(self) -> Mask:
        """Legal placements."""
        return self.lists.mask

    @property
    def num_ops(self) -> int:
        """Ops that have a device."""
        return len(self.ops_N)

    def members_of(self, unit: int) -> Ints:
        """Positions in N of a unit's ops."""
        return np.flatnonzero(self.unit_N == unit)

    def teacher(self, rng: np.random.Generator) -> Ints:
        """Returns what stage I imitates: devices per unit of the best of 50 runs of one rule.

        The rule is the critical path's, the best run the shortest by its own account, so no plan is
        scored. A run of the planner has one teacher: on equal devices, runs of the rule differ by
        names that no feature tells apart, and the mean of their devices is no placement.
        """
        runs = (self.lists.critical_path(rng) for _ in range(NUM_RUNS))
        return min(runs, key=lambda run: run.makespan_ns).devices_U

    def starts(self, devices_BU: Ints) -> Floats:
        """Returns estimated starts over the estimated makespan, float64[B, N].

        An append list schedule in the fixed order with uncontended links: what the scorer would
        say without buses, for a fraction of its time. It is a feature, never a reward.
        """
        tables = self.lists.tables
        starts = _starts(
            devices_BU[:, self.unit_N],
            tables.times_VD[self.ops_N],
            self.src_E,
            self.dst_E,
            self.edge_EDD,
            tables.streams_D,
        )
        return np.asarray(starts)


def make_placement_inputs(problem: Problem, costs: Costs) -> PlacementInputs:
    """Returns the arrays of a problem."""
    lists = make_list_scheduler(problem, costs)
    graph, mask = problem.graph, lists.mask
    order = lists.order(lists.levels_V)
    position = np.full(graph.num_ops, -1, dtype=np.int64)
    position[order] = np.arange(len(order))
    priority_V = np.zeros(graph.num_ops, dtype=np.int64)
    priority_V[order] = np.arange(len(order), 0, -1)
    ends = sorted(
        {
            (int(position[edge.dst]), int(position[edge.src]))
            for edge in graph.edges
            if edge.distance == 0 and mask.unit_V[edge.src] != NO_UNIT
        }
    )
    dst_E = np.asarray([dst for dst, _ in ends], dtype=np.int64)
    src_E = np.asarray([src for _, src in ends], dtype=np.int64)
    times_ND = lists.tables.times_VD[order]
    allowed_ND = mask.allowed_UD[mask.unit_V[order]]
    mean_N = (times_ND * allowed_ND).sum(axis=1) / np.maximum(1, allowed_ND.sum(axis=1))
    scale = max(1.0, float(mean_N.mean())) if len(order) else 1.0
    return PlacementInputs(
        lists=lists,
        ops_N=order,
        unit_N=mask.unit_V[order],
        sweep_U=np.asarray(list(dict.fromkeys(mask.unit_V[order].tolist())), dtype=np.int64),
        priority_V=priority_V,
        times_ND=times_ND / scale,
        static_NF=_static(graph, mask, order, times_ND, mean_N / scale, src_E, dst_E),
        kind_NK=_kinds(graph, order),
        src_E=src_E,
        dst_E=dst_E,
        edge_EDD=_edge_times(lists, order, src_E, dst_E),
        ancestors_NN=_ancestors(len(order), src_E, dst_E),
    )


def legal_devices(mask: Mask, devices_BU: Ints, unit: int) -> Bools:
    """Returns where a unit may go while all others stay, bool[B, D]: kinds, pins, links, state."""
    legal = np.tile(mask.allowed_UD[unit], (len(devices_BU), 1))
    if not mask.is_fully_linked:
        for src, dst in mask.edge_units_E2.tolist():
            if src == unit:
                legal &= mask.linked_DD.T[devices_BU[:, dst]]
            elif dst == unit:
                legal &= mask.linked_DD[devices_BU[:, src]]
    if mask.has_state:
        used_BD = np.zeros(legal.shape, dtype=np.int64)
        rows = np.arange(len(devices_BU))
        for other in np.flatnonzero(mask.state_U).tolist():
            if other != unit:
                used_BD[rows, devices_BU[:, other]] += mask.state_U[other]
        legal &= used_BD + mask.state_U[unit] <= mask.limit_D
    return legal


def _static(
    graph: DataflowGraph,
    mask: Mask,
    order: Ints,
    times_ND: Floats,
    mean_N: Floats,
    src_E: Ints,
    dst_E: Ints,
) -> Floats:
    size = np.asarray([sum(graph.ops[op].outputs) for op in order.tolist()], dtype=np.float64)
    state = mask.state_U[mask.unit_V[order]].astype(np.float64)
    count = len(order)
    columns = [
        np.log(mean_N + 0.01),
        np.log1p(size) - np.log1p(size.mean() if count else 0.0),
        np.log1p(state) / 20.0,
        np.log1p(np.bincount(dst_E, minlength=count)),
        np.log1p(np.bincount(src_E, minlength=count)),
    ]
    row_mean = times_ND.mean(axis=1, keepdims=True)
    relative = np.log((times_ND + 1.0) / (row_mean + 1.0))
    return np.concatenate([np.stack(columns, axis=1), relative], axis=1)


def _kinds(graph: DataflowGraph, order: Ints) -> Floats:
    kinds = np.asarray([graph.ops[op].kind for op in order.tolist()], dtype=np.str_)
    return np.asarray(kinds[:, None] == np.unique(kinds)[None, :], dtype=np.float64)


def _edge_times(lists: ListScheduler, order: Ints, src_E: Ints, dst_E: Ints) -> Floats:
    tables, graph = lists.tables, lists.problem.graph
    sizes: dict[tuple[int, int], int] = {}
    for edge in graph.edges:
        if edge.distance == 0:
            key = (edge.src, edge.dst)
            sizes[key] = max(sizes.get(key, 0), graph.ops[edge.src].outputs[edge.output])
    pairs = zip(order[src_E].tolist(), order[dst_E].tolist(), strict=True)
    bytes_E = np.asarray([sizes[pair] for pair in pairs], dtype=np.float64)
    latency_DD = np.where(np.isfinite(tables.latency_DD), tables.latency_DD, 0.0)
    return np.asarray(latency_DD[None] + bytes_E[:, None, None] * tables.per_byte_DD[None])


def _ancestors(count: int, src_E: Ints, dst_E: Ints) -> Bools:
    """Edges come by consumer, and consumers after their producers: one pass is enough."""
    reach = np.zeros((count, count), dtype=np.bool_)
    for src, dst in zip(src_E.tolist(), dst_E.tolist(), strict=True):
        reach[dst, src] = True
        reach[dst] |= reach[src]
    return reach


@_jit
def _starts(
    devices_BN: Ints,
    times_ND: Floats,
    src_E: Ints,
    dst_E: Ints,
    edge_EDD: Floats,
    streams_D: Ints,
) -> Floats:
    batch, count = devices_BN.shape
    starts = np.zeros((batch, count))
    ends = np.zeros(count)
    free = np.zeros((streams_D.size, streams_D.max()))
    for b in range(batch):
        free[:] = 0.0
        edge, longest = 0, 1.0
        for op in range(count):
            device = devices_BN[b, op]
            start = 0.0
            while edge < dst_E.size and dst_E[edge] == op:
                src = src_E[edge]
                start = max(start, ends[src] + edge_EDD[edge, devices_BN[b, src], device])
                edge += 1
            stream = np.argmin(free[device, : streams_D[device]])
            start = max(start, free[device, stream])
            ends[op] = start + times_ND[op, device]
            free[device, stream] = ends[op]
            starts[b, op] = start
            longest = max(longest, ends[op])
        starts[b] /= longest
    return starts
