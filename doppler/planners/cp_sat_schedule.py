# ruff: noqa: N815 - shape suffixes (devices_U) are upper case
"""Solves a problem's CP-SAT model and turns the solution into a placement and an order."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from doppler.core.costs import Costs
from doppler.planners.cp_sat_cumulative import build_cumulative_model, is_cumulative
from doppler.planners.cp_sat_model import ScheduleModel, build_schedule_model
from doppler.planners.cp_sat_period import build_period_model, has_period
from doppler.planners.cp_sat_solver import Solved, SolverSettings, SolveStatus, solve
from doppler.planners.device_symmetry import relabel_by_first_use
from doppler.planners.mask import NO_UNIT, Ints, Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A schedule that the solver starts from.

    Attributes:
        value_ns: Its makespan or period: nothing worse is looked for.
        devices_U: Device per unit.
        end_V: End of each op; empty for a period.
        sends: (op, output, source, destination) -> start of the transfer.
    """

    value_ns: int
    devices_U: Ints
    end_V: tuple[int, ...] = ()
    sends: dict[tuple[int, int, int, int], int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactSchedule:
    """What CP-SAT found for one problem.

    Attributes:
        status: What was proved of the model.
        bound_ns: No plan is faster, whatever its priorities and holds.
        value_ns: Value of the solution in the model, None without one.
        effort: Deterministic seconds that the solver took.
        devices_U: Device per unit of the solution.
        start_V: Slot start per op of the solution, -1 for ops that do not run.
        stream_V: Stream of its device per op, -1 where the model has no schedule (a period).
    """

    status: SolveStatus
    bound_ns: int
    value_ns: int | None
    effort: float
    devices_U: Ints | None = None
    start_V: Ints | None = None
    stream_V: Ints | None = None


def solve_schedule(
    mask: Mask,
    costs: Costs,
    bound_ns: int,
    settings: SolverSettings,
    seed: int,
    hint: Hint | None = None,
) -> ExactSchedule:
    """Returns the best schedule or the best steady state that CP-SAT finds, and its bound.

    Args:
        mask: Legal placements.
        costs: Times.
        bound_ns: A lower bound that is known already.
        settings: Effort.
        seed: Seed of the solver.
        hint: A schedule to start from.
    """
    if hint is not None and hint.value_ns <= bound_ns:
        return ExactSchedule(
            status=SolveStatus.optimal, bound_ns=bound_ns, value_ns=hint.value_ns, effort=0.0
        )
    horizon_ns = serial_ns(mask, costs) if hint is None else hint.value_ns
    horizon_ns = max(horizon_ns, bound_ns)
    if has_period(mask.problem):
        return _solve_period(mask, costs, bound_ns, horizon_ns, settings, seed, hint)
    if is_cumulative(mask, costs):
        return _solve_cumulative(mask, costs, bound_ns, horizon_ns, settings, seed, hint)
    made = build_schedule_model(mask, costs, bound_ns, horizon_ns)
    if hint is not None:
        _add_hint(made, costs, hint)
    solved = solve(made.model, bound_ns, settings, seed)
    if solved.value_ns is None:
        return _nothing(solved)
    devices_U = _devices_of(made.on, mask.num_units, solved.solver)
    return _schedule(mask, costs, solved, devices_U, _values(mask, made.start, solved.solver))


def serial_ns(mask: Mask, costs: Costs) -> int:
    """Returns an upper bound: all ops and all transfers one after another, each at its slowest."""
    graph, cluster = mask.problem.graph, mask.problem.cluster
    times = sum(
        max(
            row[device] + costs.dispatch_ns[device]
            for device in range(mask.num_devices)
            if mask.allowed_UD[unit, device]
        )
        for row, unit in zip(costs.op_ns, mask.unit_V.tolist(), strict=True)
        if unit != NO_UNIT
    )
    links = cluster.link_table.values()
    transfers = sum(
        max((link.occupancy_ns(size) + link.latency_ns for link in links), default=0)
        for op in graph.ops
        for size in op.outputs
    )
    return times + (cluster.num_devices - 1) * transfers


def _solve_cumulative(
    mask: Mask,
    costs: Costs,
    bound_ns: int,
    horizon_ns: int,
    settings: SolverSettings,
    seed: int,
    hint: Hint | None,
) -> ExactSchedule:
    made = build_cumulative_model(mask, costs, bound_ns, horizon_ns)
    if hint is not None and hint.end_V:
        for op, start in made.start.items():
            made.model.add_hint(start, hint.end_V[op] - costs.op_ns[op][0] - costs.dispatch_ns[0])
    solved = solve(made.model, bound_ns, settings, seed)
    if solved.value_ns is None:
        return _nothing(solved)
    start_V = _values(mask, made.start, solved.solver)
    devices = np.repeat(
        np.arange(mask.num_devices), [d.num_streams for d in mask.problem.cluster.devices]
    )
    times = {op: costs.op_ns[op][0] + costs.dispatch_ns[0] for op in made.start}
    streams = _colour(list(made.start), start_V, times, len(devices), _positions(mask))
    devices_U = np.zeros(mask.num_units, dtype=np.int64)
    for op, stream in streams.items():
        devices_U[mask.unit_V[op]] = devices[stream]
    return _schedule(mask, costs, solved, devices_U, start_V)


def _solve_period(
    mask: Mask,
    costs: Costs,
    bound_ns: int,
    horizon_ns: int,
    settings: SolverSettings,
    seed: int,
    hint: Hint | None,
) -> ExactSchedule:
    made = build_period_model(mask, costs, bound_ns, horizon_ns)
    if hint is not None:
        for (unit, device), literal in made.on.items():
            made.model.add_hint(literal, int(hint.devices_U[unit] == device))
    solved = solve(made.model, bound_ns, settings, seed)
    if solved.value_ns is None:
        return _nothing(solved)
    return ExactSchedule(
        status=solved.status,
        bound_ns=solved.bound_ns,
        value_ns=solved.value_ns,
        effort=solved.effort,
        devices_U=_devices_of(made.on, mask.num_units, solved.solver),
        start_V=_values(mask, made.start, solved.solver),
    )


def _nothing(solved: Solved) -> ExactSchedule:
    return ExactSchedule(
        status=solved.status, bound_ns=solved.bound_ns, value_ns=None, effort=solved.effort
    )


def _schedule(
    mask: Mask, costs: Costs, solved: Solved, devices_U: Ints, start_V: Ints
) -> ExactSchedule:
    position_V = _positions(mask)
    stream_V = np.full(len(start_V), -1, dtype=np.int64)
    for device, entry in enumerate(mask.problem.cluster.devices):
        ops = [
            op
            for op in np.flatnonzero(start_V >= 0).tolist()
            if devices_U[mask.unit_V[op]] == device
        ]
        times = {op: costs.op_ns[op][device] + costs.dispatch_ns[device] for op in ops}
        for op, stream in _colour(ops, start_V, times, entry.num_streams, position_V).items():
            stream_V[op] = stream
    return ExactSchedule(
        status=solved.status,
        bound_ns=solved.bound_ns,
        value_ns=solved.value_ns,
        effort=solved.effort,
        devices_U=devices_U,
        start_V=start_V,
        stream_V=stream_V,
    )


def _colour(
    ops: list[int], start_V: Ints, times: dict[int, int], num_streams: int, position_V: Ints
) -> dict[int, int]:
    """A stream per op: the one that is free for the longest time; by start, end, topology."""
    free = [0] * num_streams
    streams: dict[int, int] = {}
    for op in sorted(ops, key=lambda v: (start_V[v], start_V[v] + times[v], position_V[v])):
        stream = min(range(num_streams), key=lambda s: (free[s], s))
        streams[op] = stream
        free[stream] = max(free[stream], int(start_V[op]) + times[op])
    return streams


def _positions(mask: Mask) -> Ints:
    order = mask.problem.graph.topological_order
    position_V = np.empty(len(order), dtype=np.int64)
    position_V[list(order)] = np.arange(len(order))
    return position_V


def _values(mask: Mask, start: dict[int, Any], solver: Any) -> Ints:
    start_V = np.full(mask.problem.graph.num_ops, -1, dtype=np.int64)
    for op, variable in start.items():
        start_V[op] = solver.value(variable)
    return start_V


def _devices_of(on: dict[tuple[int, int], Any], num_units: int, solver: Any) -> Ints:
    devices_U = np.zeros(num_units, dtype=np.int64)
    for (unit, device), literal in on.items():
        if solver.boolean_value(literal):
            devices_U[unit] = device
    return devices_U


def _add_hint(made: ScheduleModel, costs: Costs, hint: Hint) -> None:
    """Every variable that the trace of a plan gives, devices renamed as the model wants them."""
    model, mask = made.model, made.mask
    new_D = relabel_by_first_use(hint.devices_U, made.unit_order, made.classes).tolist()
    devices = [new_D[device] for device in hint.devices_U.tolist()]
    for (unit, device), literal in made.on.items():
        if made.mask.allowed_UD[unit].sum() > 1:
            model.add_hint(literal, int(devices[unit] == device))
    for (unit, other), same in made.same.items():
        model.add_hint(same, int(devices[unit] == devices[other]))
    if not hint.end_V:
        return
    for op, start in made.start.items():
        device = devices[int(mask.unit_V[op])]
        model.add_hint(start, hint.end_V[op] - costs.op_ns[op][device] - costs.dispatch_ns[device])
    sends = {
        (op, output, new_D[src], new_D[dst]): time
        for (op, output, src, dst), time in (hint.sends or {}).items()
    }
    for transfer, present in made.present.items():
        model.add_hint(present, int(transfer in sends))
        if transfer in sends:
            op, output, _, dst = transfer
            model.add_hint(made.send[op, output, dst], sends[transfer])
    model.add_hint(made.makespan, hint.value_ns)
