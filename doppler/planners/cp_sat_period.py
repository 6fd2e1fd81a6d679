"""A lower bound of the period as a CP-SAT model, and the placement that reaches it.

Minimises T over placements with: the work of each device at most T per stream, the transfers on
each wire at most T, and start times s_v with s_w + k T >= s_v + time(v) + transfer(v, w) for every
edge of distance k, credits included. Every steady state obeys all of it, so no plan has a shorter
period; what it leaves out is how the work of a device is put in order.

Source: Lawler 1976 (circles by potentials); the loads are those of any assignment.
"""

from dataclasses import dataclass, field
from typing import Any

from doppler.core.costs import Costs
from doppler.core.problem import Objective, Problem
from doppler.planners.cp_sat_solver import new_model
from doppler.planners.mask import NO_UNIT, Mask


@dataclass(slots=True)
class PeriodModel:
    """A CP-SAT model and its variables.

    Attributes:
        model: The model; its objective is the period, rounded up.
        mask: Legal placements.
        on: (unit, device) -> literal, for allowed pairs.
        start: Op -> start within the period's schedule.
    """

    model: Any
    mask: Mask
    on: dict[tuple[int, int], Any] = field(default_factory=dict)
    start: dict[int, Any] = field(default_factory=dict)


def has_period(problem: Problem) -> bool:
    """True if what is made small is a period, or the tail of one; else it is a makespan."""
    if problem.objective is Objective.p95:
        return problem.graph.is_cyclic
    return problem.objective is Objective.period


def build_period_model(mask: Mask, costs: Costs, bound_ns: int, horizon_ns: int) -> PeriodModel:
    """Returns the model of the period between `bound_ns` and `horizon_ns`."""
    return _Builder(mask, costs, bound_ns, horizon_ns).build()


class _Builder:
    def __init__(self, mask: Mask, costs: Costs, bound_ns: int, horizon_ns: int) -> None:
        self._mask, self._costs = mask, costs
        self._graph, self._cluster = mask.problem.graph, mask.problem.cluster
        self._unit = mask.unit_V.tolist()
        self._model = new_model()
        self._made = PeriodModel(self._model, mask)
        self._period = self._model.new_int_var(bound_ns, horizon_ns, "")
        self._busy: dict[int, Any] = {}
        self._device_work: list[list[Any]] = [[] for _ in range(mask.num_devices)]
        self._bus_work: dict[str, list[Any]] = {}
        self._present: dict[tuple[int, int, int, int], Any] = {}

    def build(self) -> PeriodModel:
        model, made = self._model, self._made
        self._add_units()
        self._add_ops()
        self._add_edges()
        for device, work in enumerate(self._device_work):
            streams = self._cluster.devices[device].num_streams
            model.add(streams * self._period >= sum(work))
        for work in self._bus_work.values():
            model.add(self._period >= sum(work))
        model.minimize(self._period)
        return made

    def _devices(self, unit: int) -> list[int]:
        return [int(device) for device in self._mask.allowed_UD[unit].nonzero()[0]]

    def _add_units(self) -> None:
        model, made = self._model, self._made
        state = self._mask.state_U.tolist()
        for unit in range(self._mask.num_units):
            for device in self._devices(unit):
                made.on[unit, device] = model.new_bool_var("")
            model.add_exactly_one(made.on[unit, d] for d in self._devices(unit))
        for device in range(self._mask.num_devices):
            held = [
                size * made.on[unit, device]
                for unit, size in enumerate(state)
                if size and (unit, device) in made.on
            ]
            if held:
                model.add(sum(held) <= int(self._mask.limit_D[device]))

    def _add_ops(self) -> None:
        model, made, costs = self._model, self._made, self._costs
        most = sum(max(row) + max(costs.dispatch_ns) for row in costs.op_ns) + self._longest()
        for op, unit in enumerate(self._unit):
            if unit == NO_UNIT:
                continue
            made.start[op] = model.new_int_var(0, most, "")
            times = {d: costs.op_ns[op][d] + costs.dispatch_ns[d] for d in self._devices(unit)}
            for device, time in times.items():
                self._device_work[device].append(time * made.on[unit, device])
            self._busy[op] = sum(time * made.on[unit, device] for device, time in times.items())
            model.add(self._period >= self._busy[op])

    def _longest(self) -> int:
        """All transfers one after another."""
        links = self._cluster.link_table.values()
        return sum(
            max((link.occupancy_ns(size) + link.latency_ns for link in links), default=0)
            for op in self._graph.ops
            for size in op.outputs
        )

    def _add_edges(self) -> None:
        model, made = self._model, self._made
        credits: dict[tuple[int, int], int] = {}
        for edge in self._graph.edges:
            if edge.src not in made.start:
                continue
            start, after = made.start[edge.src], made.start[edge.dst]
            model.add(after + edge.distance * self._period >= start + self._busy[edge.src])
            if edge.src == edge.dst:
                continue
            key = (edge.src, edge.dst)
            credits[key] = max(credits.get(key, 0), edge.distance)
            if self._unit[edge.src] != self._unit[edge.dst]:
                self._add_transfers(edge.src, edge.output, edge.dst, edge.distance)
        for (src, dst), distance in credits.items():
            room = self._graph.window - distance
            model.add(made.start[src] + room * self._period >= made.start[dst] + self._busy[dst])

    def _add_transfers(self, op: int, output: int, consumer: int, distance: int) -> None:
        model, made = self._model, self._made
        size = self._graph.ops[op].outputs[output]
        unit, other = self._unit[op], self._unit[consumer]
        for src in self._devices(unit):
            for dst in self._devices(other):
                if src == dst:
                    continue
                ends = (made.on[unit, src], made.on[other, dst])
                link = self._cluster.link_table.get((src, dst))
                if link is None:
                    model.add_bool_or(ends[0].negated(), ends[1].negated())
                    continue
                occupancy = link.occupancy_ns(size)
                delay = occupancy + link.latency_ns
                if delay:
                    model.add(
                        made.start[consumer] + distance * self._period
                        >= made.start[op] + self._busy[op] + delay
                    ).only_enforce_if(*ends)
                if occupancy:
                    self._add_load((op, output, src, dst), occupancy, ends, link.buses)

    def _add_load(
        self,
        transfer: tuple[int, int, int, int],
        occupancy_ns: int,
        ends: tuple[Any, Any],
        buses: tuple[str, ...],
    ) -> None:
        """One send per (op, output, destination), on every wire or on the sender's stream."""
        if transfer not in self._present:
            present = self._model.new_bool_var("")
            self._present[transfer] = present
            if self._cluster.devices[transfer[2]].copy_engines == 0:
                self._device_work[transfer[2]].append(occupancy_ns * present)
            for bus in buses:
                self._bus_work.setdefault(bus, []).append(occupancy_ns * present)
        present = self._present[transfer]
        self._model.add_bool_or(present, ends[0].negated(), ends[1].negated())
