# ruff: noqa: N815 - shape suffixes (device_U) are upper case
"""Which placements are legal: the one place that applies kinds, pins, groups, links and state.

Planners place *units*: a unit is a colocation group or a single op outside every group. Inputs
that are resident everywhere have no unit; pinned inputs are units with one allowed device.
Arrays: `U` units, `V` ops, `D` devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from doppler.core.errors import CapacityError, ConfigError, PlanError
from doppler.core.graph import InputResidency
from doppler.core.problem import Problem

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NO_UNIT = -1
MAX_SEARCH_NODES = 200_000
LARGEST_BYTES = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Mask:
    """Legal placements of one problem.

    Attributes:
        problem: What is placed.
        members: Op ids of each unit, ascending.
        unit_V: Unit of each op, `NO_UNIT` for inputs that are resident everywhere.
        allowed_UD: Device kinds, pins, and pins of the group.
        state_U: Bytes of group state of each unit.
        limit_D: Bytes that a plan may use on each device.
        linked_DD: True where a tensor can go from the first to the second device.
        edge_units_E2: Units (source, destination) of every edge that joins two units, unique.
    """

    problem: Problem
    members: tuple[tuple[int, ...], ...]
    unit_V: Ints
    allowed_UD: Bools
    state_U: Ints
    limit_D: Ints
    linked_DD: Bools
    edge_units_E2: Ints

    @property
    def num_units(self) -> int:
        """Number of units."""
        return len(self.members)

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        return len(self.limit_D)

    @property
    def is_fully_linked(self) -> bool:
        """True if every pair of devices can exchange tensors."""
        return bool(self.linked_DD.all())

    @property
    def has_state(self) -> bool:
        """True if some group holds state, so that state may overflow a device."""
        return bool(self.state_U.any())

    @cached_property
    def movable(self) -> Ints:
        """Units with more than one allowed device."""
        return np.flatnonzero(self.allowed_UD.sum(axis=1) > 1)

    @cached_property
    def _first_ops(self) -> Ints:
        return np.asarray([members[0] for members in self.members], dtype=np.int64)

    def placement(self, devices_U: Ints) -> Ints:
        """Returns the device per op of a device per unit, int64[V]; batches [B, U] work too."""
        if self.num_units == 0:
            return np.zeros((*devices_U.shape[:-1], self.unit_V.size), dtype=np.int64)
        placements = np.take(devices_U, np.maximum(self.unit_V, 0), axis=-1)
        return np.asarray(np.where(self.unit_V == NO_UNIT, 0, placements), dtype=np.int64)

    def devices_of(self, placement_V: Ints | Sequence[int]) -> Ints:
        """Returns the device per unit of a device per op, int64[U]; batches [B, V] work too."""
        return np.asarray(placement_V, dtype=np.int64)[..., self._first_ops]

    def is_legal(self, devices_U: Ints) -> bool:
        """True if kinds, pins, links and group state permit this device per unit."""
        if not self.allowed_UD[np.arange(self.num_units), devices_U].all():
            return False
        if self.has_state:
            used_D = np.zeros(self.num_devices, dtype=np.int64)
            np.add.at(used_D, devices_U, self.state_U)
            if (used_D > self.limit_D).any():
                return False
        if self.is_fully_linked or not len(self.edge_units_E2):
            return True
        ends = devices_U[self.edge_units_E2]
        return bool(self.linked_DD[ends[:, 0], ends[:, 1]].all())

    def complete(self, preference_UD: Ints) -> Ints:
        """Returns a legal device per unit, int64[U]: preferred ones where they lead to no dead end.

        Units with much state go first. Backtracks over links and state, so an answer is found
        unless there is none (or the search runs out of nodes).

        Args:
            preference_UD: All devices per unit, most preferred first.

        Raises:
            CapacityError: If group state fits in no legal way.
            PlanError: If links leave no legal placement.
        """
        return _Search(self, preference_UD).run()

    def prefer_device(self, device: int) -> Ints:
        """Returns the preference "this device, else the next ones in id order", int64[U, D]."""
        row = (device + np.arange(self.num_devices)) % self.num_devices
        return np.tile(row, (self.num_units, 1))

    def prefer_random(self, rng: np.random.Generator) -> Ints:
        """Returns uniform random preferences, int64[U, D]."""
        rows = np.tile(np.arange(self.num_devices), (self.num_units, 1))
        return rng.permuted(rows, axis=1)

    def prefer_devices(self, devices_U: Ints) -> Ints:
        """Returns the preference "the given device per unit, else the next ones", int64[U, D]."""
        return (devices_U[:, None] + np.arange(self.num_devices)) % self.num_devices


def make_mask(problem: Problem) -> Mask:
    """Returns the mask of a problem.

    Raises:
        PlanError: If the kinds and pins of a group leave it no device.
        ConfigError: If a device's memory, or the state of all groups, leaves 63 bits.
    """
    graph, cluster = problem.graph, problem.cluster
    limits = [problem.memory_limit_bytes(device) for device in range(cluster.num_devices)]
    _check_bytes(problem, max(limits), "the memory of a device")
    _check_bytes(problem, sum(group.state_bytes for group in graph.groups), "the state of groups")
    everywhere = graph.inputs is InputResidency.everywhere
    unit_V = np.full(graph.num_ops, NO_UNIT, dtype=np.int64)
    members: list[list[int]] = []
    unit_of_group: dict[str, int] = {}
    for op_id, op in enumerate(graph.ops):
        if op.is_input and everywhere:
            continue
        unit = len(members)
        if op.group is not None:
            unit = unit_of_group.setdefault(op.group, unit)
        if unit == len(members):
            members.append([])
        members[unit].append(op_id)
        unit_V[op_id] = unit
    allowed_VD = np.asarray(problem.allowed, dtype=np.bool_)
    allowed_UD = np.zeros((len(members), cluster.num_devices), dtype=np.bool_)
    for unit, ops in enumerate(members):
        allowed_UD[unit] = allowed_VD[ops[0]] if len(ops) == 1 else allowed_VD[ops].all(axis=0)
        if not allowed_UD[unit].any():
            raise PlanError(
                f"ops of one group share a device, and group {graph.ops[ops[0]].group!r} has no "
                f"device that the kinds and pins of all its ops allow"
            )
    state_bytes = {group.name: group.state_bytes for group in graph.groups}
    linked_DD = np.eye(cluster.num_devices, dtype=np.bool_)
    for src, dst in cluster.link_table:
        linked_DD[src, dst] = True
    return Mask(
        problem=problem,
        members=tuple(tuple(ops) for ops in members),
        unit_V=unit_V,
        allowed_UD=allowed_UD,
        state_U=np.asarray(
            [state_bytes.get(graph.ops[ops[0]].group or "", 0) for ops in members], dtype=np.int64
        ),
        limit_D=np.asarray(limits, dtype=np.int64),
        linked_DD=linked_DD,
        edge_units_E2=_edge_units(problem, unit_V),
    )


def _check_bytes(problem: Problem, num_bytes: int, what: str) -> None:
    if num_bytes > LARGEST_BYTES:
        raise ConfigError(
            f"{what} fits in 63 bits, and in the problem of graph {problem.graph.name!r} on "
            f"cluster {problem.cluster.name!r} it is {num_bytes:.3g} bytes"
        )


def _edge_units(problem: Problem, unit_V: Ints) -> Ints:
    units = unit_V.tolist()
    pairs = {
        (units[edge.src], units[edge.dst])
        for edge in problem.graph.edges
        if units[edge.src] != NO_UNIT and units[edge.src] != units[edge.dst]
    }
    return np.asarray(sorted(pairs), dtype=np.int64).reshape(-1, 2)


class _Search:
    """Depth-first assignment with forward checking over links; domains are bit sets of devices."""

    def __init__(self, mask: Mask, preference_UD: Ints) -> None:
        self._mask = mask
        self._preference = preference_UD.tolist()
        num_devices = mask.num_devices
        self._domains = [
            sum(1 << device for device in range(num_devices) if row[device])
            for row in mask.allowed_UD.tolist()
        ]
        self._free = mask.limit_D.tolist()
        self._state = mask.state_U.tolist()
        self._order = sorted(range(mask.num_units), key=lambda u: (-self._state[u], u))
        self._device = [-1] * mask.num_units
        self._tried = [0] * mask.num_units
        self._undo: list[list[tuple[int, int]]] = [[] for _ in range(mask.num_units)]
        self._met_full_device = False
        self._receivers, self._senders = _link_sets(mask.linked_DD)
        self._neighbours: list[list[tuple[int, bool]]] = [[] for _ in range(mask.num_units)]
        if not mask.is_fully_linked:
            for src, dst in mask.edge_units_E2.tolist():
                self._neighbours[src].append((dst, True))
                self._neighbours[dst].append((src, False))

    def run(self) -> Ints:
        position, nodes = 0, 0
        while position < len(self._order):
            unit = self._order[position]
            nodes += 1
            if nodes > MAX_SEARCH_NODES + len(self._order):
                raise self._failure("was found in a bounded search")
            if self._place_next(unit):
                position += 1
                continue
            self._tried[unit] = 0
            position -= 1
            if position < 0:
                raise self._failure("exists")
            self._take_back(self._order[position])
        return np.asarray(self._device, dtype=np.int64)

    def _place_next(self, unit: int) -> bool:
        row = self._preference[unit]
        while self._tried[unit] < len(row):
            device = row[self._tried[unit]]
            self._tried[unit] += 1
            if not self._domains[unit] >> device & 1:
                continue
            if self._state[unit] > self._free[device]:
                self._met_full_device = True
                continue
            self._device[unit] = device
            self._free[device] -= self._state[unit]
            if self._restrict_neighbours(unit, device):
                return True
            self._take_back(unit)
        return False

    def _restrict_neighbours(self, unit: int, device: int) -> bool:
        for other, unit_sends in self._neighbours[unit]:
            if self._device[other] >= 0:
                continue
            peers = self._receivers[device] if unit_sends else self._senders[device]
            before = self._domains[other]
            self._domains[other] = before & peers
            self._undo[unit].append((other, before))
            if not self._domains[other]:
                return False
        return True

    def _take_back(self, unit: int) -> None:
        for other, before in reversed(self._undo[unit]):
            self._domains[other] = before
        self._undo[unit].clear()
        self._free[self._device[unit]] += self._state[unit]
        self._device[unit] = -1

    def _failure(self, verdict: str) -> CapacityError | PlanError:
        problem = self._mask.problem
        what = (
            f"of graph {problem.graph.name!r} on cluster {problem.cluster.name!r} that obeys "
            f"kinds, pins, groups and links"
        )
        if self._met_full_device:
            return CapacityError(
                f"no placement {what} and holds the state of all groups in memory {verdict}: "
                f"{sum(self._state)} bytes of state, {sum(self._mask.limit_D.tolist())} bytes of "
                f"memory"
            )
        return PlanError(f"no placement {what} {verdict}")


def _link_sets(linked_DD: Bools) -> tuple[list[int], list[int]]:
    """Bit sets: devices that each device can send to, and receive from."""
    rows = linked_DD.tolist()
    count = range(len(rows))
    receivers = [sum(1 << d for d in count if rows[s][d]) for s in count]
    senders = [sum(1 << s for s in count if rows[s][d]) for d in count]
    return receivers, senders
