"""A problem: graph, cluster, and what every plan for them must obey."""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from doppler.core.cluster import Cluster
from doppler.core.errors import CapacityError, GraphError, PlanError, nearest
from doppler.core.graph import DataflowGraph, InputResidency


class Objective(enum.Enum):
    """What a planner makes small: one pass, the steady-state period, or a slow tail of it."""

    makespan = "makespan"
    period = "period"
    p95 = "p95"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A placement problem.

    Attributes:
        graph: The workload.
        cluster: The devices.
        pins: Op name -> device name, for ops that must sit there.
        memory_headroom: Part of each device's memory that plans leave free, in [0, 1).
        objective: What is made small.

    Raises:
        PlanError: If a pin is unknown or impossible, or an op has no allowed device.
        GraphError: If inputs are pinned resident and an input has no pin.
    """

    graph: DataflowGraph
    cluster: Cluster
    pins: Mapping[str, str] = field(default_factory=dict)
    memory_headroom: float = 0.0
    objective: Objective = Objective.makespan

    def __post_init__(self) -> None:
        if not 0.0 <= self.memory_headroom < 1.0:
            raise PlanError(f"memory_headroom lies in [0, 1), and it is {self.memory_headroom}")
        for op_name, device_name in self.pins.items():
            if op_name not in self.graph.op_ids:
                raise PlanError(
                    f"pin names op {op_name!r}, which graph {self.graph.name!r} lacks; "
                    f"{nearest(op_name, self.graph.op_ids)}"
                )
            if device_name not in self.cluster.device_ids:
                raise PlanError(
                    f"pin of op {op_name!r} names device {device_name!r}; "
                    f"{nearest(device_name, self.cluster.device_ids)}"
                )
        if self.graph.inputs is InputResidency.pinned:
            for op in self.graph.ops:
                if op.is_input and op.name not in self.pins:
                    raise GraphError(
                        f"inputs of graph {self.graph.name!r} are resident where they are pinned, "
                        f"and input {op.name!r} has no pin"
                    )
        _ = self.allowed

    @cached_property
    def allowed(self) -> tuple[tuple[bool, ...], ...]:
        """allowed[op][device]: device kinds, pins, and pins of the op's group, in one mask.

        The first placement of a group masks its other ops; that is dynamic and each planner does
        it through `group_members`. Memory is checked by `resident_bytes` and the engines.
        """
        kinds = [device.kind for device in self.cluster.devices]
        group_pin: dict[str, tuple[str, str]] = {}
        for op_name, device_name in self.pins.items():
            group = self.graph.ops[self.graph.op_ids[op_name]].group
            if group is None:
                continue
            other = group_pin.setdefault(group, (op_name, device_name))
            if other[1] != device_name:
                raise PlanError(
                    f"ops of one group share a device, and pins put {other[0]!r} on "
                    f"{other[1]!r} and {op_name!r} on {device_name!r} (group {group!r})"
                )
        rows: list[tuple[bool, ...]] = []
        for op in self.graph.ops:
            pin = self.pins.get(op.name)
            if pin is None and op.group in group_pin:
                pin = group_pin[op.group][1]
            row = tuple(
                (not op.device_kinds or kind in op.device_kinds)
                and (pin is None or self.cluster.device_ids[pin] == device)
                for device, kind in enumerate(kinds)
            )
            if not any(row) and not op.is_input:
                raise PlanError(
                    f"every op has an allowed device, and op {op.name!r} (kinds "
                    f"{op.device_kinds or 'any'}, pin {pin!r}) has none in cluster "
                    f"{self.cluster.name!r} (kinds {sorted(set(kinds))})"
                )
            rows.append(row)
        return tuple(rows)

    def memory_limit_bytes(self, device: int) -> int:
        """Bytes of `device` that a plan may use."""
        return self._memory_limits[device]

    @cached_property
    def _memory_limits(self) -> tuple[int, ...]:
        """Memory less the headroom, exact: the headroom is the decimal number that was written."""
        part = 1 - Fraction(str(self.memory_headroom))
        return tuple(math.floor(device.memory_bytes * part) for device in self.cluster.devices)

    def check_resident_memory(self, placement: tuple[int, ...]) -> None:
        """Checks that group state alone fits each device.

        Raises:
            CapacityError: Names device, group and bytes.
        """
        used = [0] * self.cluster.num_devices
        for group in self.graph.groups:
            members = self.graph.group_members[group.name]
            if not members:
                continue
            device = placement[members[0]]
            used[device] += group.state_bytes
            limit = self.memory_limit_bytes(device)
            if used[device] > limit:
                name = self.cluster.devices[device].name
                raise CapacityError(
                    f"the state of the groups on device {name!r} needs {used[device]} bytes with "
                    f"group {group.name!r}, and the limit is {limit}"
                )
