"""The makespan of a problem as a CP-SAT model: who runs where and when, transfers and memory too.

One optional interval per (op, device) on the device's streams, one per (tensor, source device,
destination device) on every wire that the transfer holds, start variables shared by all intervals
of an op. The model leaves interference, time between rounds, and tensors of later iterations out
and lets devices wait on purpose, so its optimum is a lower bound for every plan, holds included.

Source: the interval model of the OR-Tools documentation (CP-SAT, "job shop with alternatives").
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from doppler.core.cluster import Link
from doppler.core.costs import Costs
from doppler.planners.cp_sat_memory import add_memory
from doppler.planners.cp_sat_solver import new_model
from doppler.planners.device_symmetry import device_classes
from doppler.planners.mask import NO_UNIT, Mask

# Pairs of transfers that may share a wire, above which their order is left free (a relaxation).
MAX_FIFO_PAIRS = 3000

Tensor = tuple[int, int]
Transfer = tuple[int, int, int, int]


@dataclass(slots=True)
class ScheduleModel:
    """A CP-SAT model and its variables.

    Attributes:
        model: The model; its objective is the makespan.
        mask: Legal placements.
        ops: Ops that run.
        on: (unit, device) -> literal, for allowed pairs.
        start: Op -> when its stream starts with it, the runtime's cost per op included.
        end: Op -> expression of its end.
        send: (op, output, destination) -> start of the transfer, where it holds a wire or stream.
        present: (op, output, source, destination) -> literal: that transfer takes place.
        same: (unit, unit) -> literal: both on one device.
        makespan: The objective.
        classes: Interchangeable devices, used in ascending order by `unit_order`.
        unit_order: Units by the topological position of their first op.
        last_ns: No op and no transfer starts after it.
    """

    model: Any
    mask: Mask
    ops: list[int]
    last_ns: int
    on: dict[tuple[int, int], Any] = field(default_factory=dict)
    start: dict[int, Any] = field(default_factory=dict)
    end: dict[int, Any] = field(default_factory=dict)
    send: dict[tuple[int, int, int], Any] = field(default_factory=dict)
    present: dict[Transfer, Any] = field(default_factory=dict)
    same: dict[tuple[int, int], Any] = field(default_factory=dict)
    makespan: Any = None
    classes: list[list[int]] = field(default_factory=list)
    unit_order: list[int] = field(default_factory=list)

    def devices_of(self, unit: int) -> list[int]:
        """Allowed devices of a unit."""
        return [int(device) for device in self.mask.allowed_UD[unit].nonzero()[0]]


def build_schedule_model(mask: Mask, costs: Costs, bound_ns: int, horizon_ns: int) -> ScheduleModel:
    """Returns the model of the makespan between `bound_ns` and `horizon_ns`.

    Args:
        mask: Legal placements.
        costs: Times.
        bound_ns: A lower bound.
        horizon_ns: An upper bound: the makespan of some schedule.
    """
    return _Builder(mask, costs, bound_ns, horizon_ns).build()


def unit_order(mask: Mask) -> list[int]:
    """Returns the units by the topological position of their first op."""
    seen: dict[int, None] = {}
    for op in mask.problem.graph.topological_order:
        if mask.unit_V[op] != NO_UNIT:
            seen.setdefault(int(mask.unit_V[op]))
    return list(seen)


def tensors_of(mask: Mask) -> dict[Tensor, list[int]]:
    """Returns (op, output) -> consumers in the same iteration, for ops that run."""
    tensors: dict[Tensor, list[int]] = {}
    for edge in mask.problem.graph.edges:
        if edge.distance == 0 and mask.unit_V[edge.src] != NO_UNIT:
            consumers = tensors.setdefault((edge.src, edge.output), [])
            if edge.dst not in consumers:
                consumers.append(edge.dst)
    return tensors


class _Builder:
    def __init__(self, mask: Mask, costs: Costs, bound_ns: int, horizon_ns: int) -> None:
        self._mask, self._costs = mask, costs
        self._graph, self._cluster = mask.problem.graph, mask.problem.cluster
        self._bound_ns, self._horizon_ns = bound_ns, horizon_ns
        self._unit = mask.unit_V.tolist()
        self._last_ns = horizon_ns + max(costs.dispatch_ns)
        self._model = new_model()
        ops = [op for op in range(self._graph.num_ops) if self._unit[op] != NO_UNIT]
        self._made = ScheduleModel(self._model, mask, ops, self._last_ns)
        self._on_device: list[list[Any]] = [[] for _ in range(mask.num_devices)]
        self._on_bus: dict[str, list[tuple[Transfer, Any, int]]] = {}
        self._links = self._cluster.link_table
        self._tensors = tensors_of(mask)
        self._busy = self._busy_buses()

    def build(self) -> ScheduleModel:
        made = self._made
        made.classes = device_classes(self._mask, self._costs)
        made.unit_order = unit_order(self._mask)
        self._add_units()
        self._add_ops()
        for tensor, consumers in self._tensors.items():
            self._add_edges(tensor, consumers)
        self._add_resources()
        self._add_fifo()
        self._break_symmetry()
        add_memory(made, self._tensors)
        self._add_objective()
        return made

    def _busy_buses(self) -> set[str]:
        """Buses that some transfer holds for a time; on others nothing ever waits."""
        busy: set[str] = set()
        sizes = {self._graph.ops[op].outputs[output] for op, output in self._tensors}
        for link in self._links.values():
            if any(link.occupancy_ns(size) for size in sizes):
                busy.update(link.buses)
        return busy

    def _add_units(self) -> None:
        model, made = self._model, self._made
        for unit in range(self._mask.num_units):
            devices = made.devices_of(unit)
            for device in devices:
                alone = len(devices) == 1
                literal = model.new_constant(1) if alone else model.new_bool_var("")
                made.on[unit, device] = literal
            model.add_exactly_one(made.on[unit, device] for device in devices)

    def _add_ops(self) -> None:
        model, made = self._model, self._made
        for op in made.ops:
            unit = self._unit[op]
            start = model.new_int_var(0, self._last_ns, "")
            times = {d: self._time(op, d) for d in made.devices_of(unit)}
            for device, time in times.items():
                interval = model.new_optional_fixed_size_interval_var(
                    start, time, made.on[unit, device], ""
                )
                self._on_device[device].append(interval)
            least = min(times.values())
            made.start[op] = start
            made.end[op] = (
                start + least + sum((time - least) * made.on[unit, d] for d, time in times.items())
            )

    def _time(self, op: int, device: int) -> int:
        return self._costs.op_ns[op][device] + self._costs.dispatch_ns[device]

    def _add_edges(self, tensor: Tensor, consumers: Iterable[int]) -> None:
        model, made, (op, output) = self._model, self._made, tensor
        unit = self._unit[op]
        others: dict[int, list[int]] = {}
        for consumer in consumers:
            model.add(made.start[consumer] >= made.end[op])
            if self._unit[consumer] != unit:
                others.setdefault(self._unit[consumer], []).append(consumer)
        size = self._graph.ops[op].outputs[output]
        for other, ops in others.items():
            pairs = [
                (src, dst)
                for src in made.devices_of(unit)
                for dst in made.devices_of(other)
                if src != dst
            ]
            delays: list[int] = []
            for src, dst in pairs:
                link = self._links.get((src, dst))
                ends = (made.on[unit, src], made.on[other, dst])
                if link is None:
                    model.add_bool_or(ends[0].negated(), ends[1].negated())
                    continue
                delays.append(link.occupancy_ns(size) + link.latency_ns)
                if self._waits(link, src, size):
                    self._add_transfer((op, output, src, dst), link, ends[1], ops)
            if not delays or max(delays) == 0:
                continue
            self._add_delays(op, unit, other, ops, size, min(delays))

    def _add_delays(
        self, op: int, unit: int, other: int, consumers: list[int], size: int, least: int
    ) -> None:
        """Times of transfers that hold nothing, and the least time of all as a redundant rule."""
        model, made = self._model, self._made
        apart = self._same(unit, other).negated()
        for consumer in consumers:
            if least:
                model.add(made.start[consumer] >= made.end[op] + least).only_enforce_if(apart)
            for src in made.devices_of(unit):
                for dst in made.devices_of(other):
                    link = self._links.get((src, dst))
                    if src == dst or link is None or self._waits(link, src, size):
                        continue
                    delay = link.occupancy_ns(size) + link.latency_ns
                    if delay > least:
                        model.add(made.start[consumer] >= made.end[op] + delay).only_enforce_if(
                            made.on[unit, src], made.on[other, dst]
                        )

    def _waits(self, link: Link, src: int, size: int) -> bool:
        """True if a transfer may have to wait for a wire or for a stream of its sender."""
        if link.bytes_per_s is None:
            return False
        if self._cluster.devices[src].copy_engines == 0:
            return link.occupancy_ns(size) > 0
        return not self._busy.isdisjoint(link.buses)

    def _add_transfer(
        self, transfer: Transfer, link: Link, receiver: Any, consumers: list[int]
    ) -> None:
        model, made = self._model, self._made
        op, output, src, dst = transfer
        sender = made.on[self._unit[op], src]
        occupancy = link.occupancy_ns(self._graph.ops[op].outputs[output])
        if (op, output, dst) not in made.send:
            send = model.new_int_var(0, self._last_ns, "")
            model.add(send >= made.end[op])
            made.send[op, output, dst] = send
        send = made.send[op, output, dst]
        if transfer not in made.present:
            present = model.new_bool_var("")
            made.present[transfer] = present
            model.add_implication(present, sender)
            interval = model.new_optional_fixed_size_interval_var(send, occupancy, present, "")
            if self._cluster.devices[src].copy_engines == 0:
                self._on_device[src].append(interval)
            for bus in link.buses:
                if bus in self._busy:
                    self._on_bus.setdefault(bus, []).append((transfer, interval, occupancy))
        present = made.present[transfer]
        model.add_bool_or(present, sender.negated(), receiver.negated())
        for consumer in consumers:
            arrival = send + occupancy + link.latency_ns
            model.add(made.start[consumer] >= arrival).only_enforce_if(present, receiver)

    def _same(self, unit: int, other: int) -> Any:
        model, made = self._model, self._made
        key = (min(unit, other), max(unit, other))
        if key not in made.same:
            same = model.new_bool_var("")
            made.same[key] = same
            for device in range(self._mask.num_devices):
                literals = [made.on[u, device] for u in key if (u, device) in made.on]
                if len(literals) == 1:
                    model.add_implication(same, literals[0].negated())
                elif literals:
                    first, second = literals
                    model.add_bool_or(same.negated(), first.negated(), second)
                    model.add_bool_or(same.negated(), first, second.negated())
        return made.same[key]

    def _add_resources(self) -> None:
        model = self._model
        for device, intervals in enumerate(self._on_device):
            streams = self._cluster.devices[device].num_streams
            if streams == 1:
                model.add_no_overlap(intervals)
            elif len(intervals) > streams:
                model.add_cumulative(intervals, [1] * len(intervals), streams)
        for users in self._on_bus.values():
            model.add_no_overlap([interval for _, interval, _ in users])

    def _add_fifo(self) -> None:
        """Transfers that share a wire leave in the order in which their producers end."""
        pairs: dict[tuple[Transfer, Transfer], tuple[int, int]] = {}
        for users in self._on_bus.values():
            for index, (first, _, first_ns) in enumerate(users):
                for second, _, second_ns in users[:index]:
                    if first[0] == second[0] and first[2] != second[2]:
                        continue
                    pairs[second, first] = (second_ns, first_ns)
            if len(pairs) > MAX_FIFO_PAIRS:
                return
        model, made = self._model, self._made
        for (first, second), (first_ns, second_ns) in pairs.items():
            both = (made.present[first], made.present[second])
            starts = [made.send[op, output, dst] for op, output, _, dst in (first, second)]
            order = model.new_bool_var("")
            if first[0] == second[0]:
                forward = (first[1], first[3]) < (second[1], second[3])
                model.add(order == int(forward))
            forward_end, backward_end = made.end[first[0]], made.end[second[0]]
            model.add(starts[1] >= starts[0] + first_ns).only_enforce_if(order, *both)
            model.add(backward_end >= forward_end).only_enforce_if(order, *both)
            model.add(starts[0] >= starts[1] + second_ns).only_enforce_if(order.negated(), *both)
            model.add(forward_end >= backward_end).only_enforce_if(order.negated(), *both)

    def _break_symmetry(self) -> None:
        """Within a class a device is used only after the one before it, in the order of units."""
        model, made = self._model, self._made
        for members in made.classes:
            for before, device in pairwise(members):
                seen: Any = model.new_constant(0)
                for unit in made.unit_order:
                    if (unit, device) not in made.on:
                        continue
                    model.add_implication(made.on[unit, device], seen)
                    now = model.new_bool_var("")
                    model.add_bool_or(now.negated(), seen, made.on[unit, before])
                    seen = now

    def _add_objective(self) -> None:
        """Last end minus first start; the runtime's cost before the first op does not count."""
        model, made, dispatch = self._model, self._made, self._costs.dispatch_ns
        makespan = model.new_int_var(self._bound_ns, self._horizon_ns, "")
        first: Any = dispatch[0]
        if len(set(dispatch)) > 1:
            first = model.new_int_var(min(dispatch), max(dispatch), "")
            for op in made.ops:
                own = sum(
                    dispatch[d] * made.on[self._unit[op], d]
                    for d in made.devices_of(self._unit[op])
                )
                model.add(first <= made.start[op] + own)
        for op in made.ops:
            model.add(makespan + first >= made.end[op])
        for device, streams in enumerate(d.num_streams for d in self._cluster.devices):
            work = sum(
                self._time(op, device) * made.on[self._unit[op], device]
                for op in made.ops
                if (self._unit[op], device) in made.on
            )
            model.add(streams * (makespan + first) >= work)
        model.minimize(makespan)
        made.makespan = makespan
