# ruff: noqa: N815 - shape suffixes (loads_D) are upper case
"""ENUMOPT: meta-op by meta-op, shards spread evenly so that the fewest bytes move.

Source: DOPPLER (arXiv 2505.23131), the authors' heuristic for sharded tensor programs.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from doppler.core.costs import Costs
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import Scorer
from doppler.graphs.levels import priorities_of, upward_ranks
from doppler.planners.base import Budget
from doppler.planners.evaluator import Evaluator
from doppler.planners.mask import NO_UNIT, Ints, Mask, make_mask

BARRED = 1e18


def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the better of two walks over the meta-ops in topological order (two are scored).

    A meta-op's ops are taken in waves: its shards, then the ops that reduce them. The plain walk
    spreads each wave evenly over all devices and moves the fewest input bytes: the best of all
    balanced spreads, found as an assignment problem (a tensor that two ops of one wave read on one
    device counts twice). The stronger walk also tries every aligned range of 1, 2, 4, ... devices
    and takes the spread with the smallest largest load, where a device's load so far is its work
    and the transfer times into and out of it.

    Ops of a group that was placed follow it. Ops run by upward rank.

    Raises:
        CapacityError: If neither walk fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    del rng
    mask = make_mask(problem)
    evaluator = Evaluator(problem, scorer, budget, "enumopt")
    priority_V = priorities_of(upward_ranks(problem, scorer.costs), problem.graph)
    everything = ((0, mask.num_devices),)
    walks = [
        _Walk(mask, scorer.costs, ranges) for ranges in (_ranges(mask.num_devices), everything)
    ]
    devices_BU = np.stack([mask.complete(mask.prefer_devices(walk.run())) for walk in walks])
    evaluator.score(mask.placement(devices_BU), np.tile(priority_V, (len(walks), 1)))
    return evaluator.plan()


def _ranges(num_devices: int) -> tuple[tuple[int, int], ...]:
    """All devices, and every aligned range of a power of two, as (first, end)."""
    ranges, width = [(0, num_devices)], 1
    while width < num_devices:
        ranges += [(at, at + width) for at in range(0, num_devices - width + 1, width)]
        width *= 2
    return tuple(ranges)


@dataclass(frozen=True, slots=True)
class _Spread:
    """Devices of one wave and what they would lead to."""

    devices: tuple[int, ...]
    loads_D: NDArray[np.float64]
    moved_bytes: float


class _Walk:
    """One walk; `run` returns a device per unit, not yet checked against links and state."""

    def __init__(self, mask: Mask, costs: Costs, ranges: tuple[tuple[int, int], ...]) -> None:
        self._mask = mask
        self._graph = mask.problem.graph
        self._op_ns = costs.op_ns
        self._ranges = ranges
        self._ns_per_byte = _mean_ns_per_byte(mask.problem)
        self._units = mask.unit_V.tolist()
        self._device_U = [-1] * mask.num_units
        self._loads_D = np.zeros(mask.num_devices)

    def run(self) -> Ints:
        for wave in _waves(self._mask):
            free = [op for op in wave if self._device_U[self._units[op]] < 0]
            if not free:
                continue
            spreads = [self._spread(free, first, end) for first, end in self._ranges]
            best = min(spreads, key=lambda spread: (spread.loads_D.max(), spread.moved_bytes))
            self._loads_D = best.loads_D
            for op, device in zip(free, best.devices, strict=True):
                if self._device_U[self._units[op]] < 0:
                    self._device_U[self._units[op]] = device
        return np.asarray(self._device_U, dtype=np.int64)

    def _spread(self, wave: list[int], first: int, end: int) -> _Spread:
        """The even spread over devices first to end - 1 that moves the fewest bytes."""
        width = end - first
        rows = [self._missing_bytes(op) for op in wave]
        cost = np.asarray(rows)[:, first:end]
        whole, rest = divmod(len(wave), width)
        # Every device takes `whole` ops; at most one more each, which costs more than any bytes.
        columns = np.tile(cost, (1, whole + (rest > 0)))
        if rest:
            columns[:, width * whole :] += 1.0 + cost[cost < BARRED].sum()
        _, chosen = linear_sum_assignment(columns)
        devices = tuple(int(first + column % width) for column in chosen)
        loads_D = self._loads_D.copy()
        for op, device, row in zip(wave, devices, rows, strict=True):
            loads_D[device] += self._op_ns[op][device]
            moved = 0.0 if row[device] >= BARRED else row[device] * self._ns_per_byte
            loads_D[device] += moved
            self._add_senders(op, device, loads_D)
        moved_bytes = sum(row[device] for row, device in zip(rows, devices, strict=True))
        return _Spread(devices, loads_D, moved_bytes)

    def _missing_bytes(self, op: int) -> list[float]:
        """Bytes that must come to each device for the op; `BARRED` where it may not go."""
        row = [0.0 if ok else BARRED for ok in self._mask.allowed_UD[self._units[op]]]
        for at, size in self._inputs(op):
            for device in range(len(row)):
                row[device] += size if device != at else 0
        return row

    def _add_senders(self, op: int, device: int, loads_D: NDArray[np.float64]) -> None:
        for at, size in self._inputs(op):
            if at != device:
                loads_D[at] += size * self._ns_per_byte

    def _inputs(self, op: int) -> list[tuple[int, int]]:
        """(device, bytes) of the inputs whose maker is placed."""
        found = []
        for edge_id in self._graph.in_edges[op]:
            edge = self._graph.edges[edge_id]
            unit = self._units[edge.src]
            if unit != NO_UNIT and self._device_U[unit] >= 0:
                size = self._graph.ops[edge.src].outputs[edge.output]
                found.append((self._device_U[unit], size))
        return found


def _waves(mask: Mask) -> list[list[int]]:
    """Ops with a device, by meta-op in topological order, each cut by depth within the meta-op."""
    graph = mask.problem.graph
    waves: dict[str, dict[int, list[int]]] = {}
    depth = [0] * graph.num_ops
    for op in graph.topological_order:
        meta = graph.ops[op].meta_op
        for edge_id in graph.in_edges[op]:
            edge = graph.edges[edge_id]
            if not edge.distance and meta is not None and graph.ops[edge.src].meta_op == meta:
                depth[op] = max(depth[op], depth[edge.src] + 1)
        if mask.unit_V[op] != NO_UNIT:
            name = f"op {op}" if meta is None else f"meta {meta}"
            waves.setdefault(name, {}).setdefault(depth[op], []).append(op)
    return [ops for by_depth in waves.values() for _, ops in sorted(by_depth.items())]


def _mean_ns_per_byte(problem: Problem) -> float:
    links = problem.cluster.link_table.values()
    rates = [1e9 / link.bytes_per_s for link in links if link.bytes_per_s is not None]
    return sum(rates) / len(rates) if rates else 0.0
