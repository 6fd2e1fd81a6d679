"""Lower bounds: no plan of a problem can be faster, whatever its priorities and holds.

All bounds hold for interference of any size, because `slowdown_permille` only adds time. All but
`cp_sat` leave transfers out, so they are loose where communication dominates. Arithmetic that
decides is in integers and fractions; the linear programme only proposes weights.

Arrays: `U` units, `D` devices.
"""

import enum
from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array, vstack

from doppler.core.costs import Costs
from doppler.core.graph import DataflowGraph
from doppler.core.problem import Objective, Problem
from doppler.planners.cp_sat_period import has_period
from doppler.planners.cp_sat_schedule import solve_schedule
from doppler.planners.cp_sat_solver import SolverSettings
from doppler.planners.cycle_ratio import max_cycle_ratio
from doppler.planners.mask import NO_UNIT, Bools, Mask, make_mask

Floats = NDArray[np.float64]

WEIGHT_STEPS = 1 << 40


class Bound(enum.Enum):
    """Names of the bounds.

    `area`: all work, spread over all streams as well as fractions of units could be.
    `critical_path`: of a makespan, the longest path, each op on its fastest device; of a period,
    the largest ratio of work to distance over all circles, those of back-pressure included.
    `group`: the unit that takes longest even on its best device with that device to itself.
    `memory`: the area where the state of groups, as fractions, must fit in each device, and no op
    runs where its own tensors do not fit.
    `cp_sat`: what CP-SAT proves of placement, order and transfers together; needs OR-Tools.
    """

    area = "area"
    critical_path = "critical_path"
    group = "group"
    memory = "memory"
    cp_sat = "cp_sat"


QUICK_BOUNDS = (Bound.area, Bound.critical_path, Bound.group, Bound.memory)
ALL_BOUNDS = tuple(Bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerBounds:
    """Lower bounds of one problem in ns, rounded up; None where one was not asked for."""

    area_ns: int | None = None
    critical_path_ns: int | None = None
    group_ns: int | None = None
    memory_ns: int | None = None
    cp_sat_ns: int | None = None

    @property
    def best_ns(self) -> int:
        """The largest of them, 0 if there is none."""
        return max(self.by_name.values(), default=0)

    @property
    def best(self) -> Bound | None:
        """The name of the largest one, the first of equal ones; None if there is none."""
        values = self.by_name
        return max(values, key=lambda bound: values[bound]) if values else None

    @property
    def by_name(self) -> dict[Bound, int]:
        """Those that were asked for."""
        values = {
            Bound.area: self.area_ns,
            Bound.critical_path: self.critical_path_ns,
            Bound.group: self.group_ns,
            Bound.memory: self.memory_ns,
            Bound.cp_sat: self.cp_sat_ns,
        }
        return {bound: value for bound, value in values.items() if value is not None}


def lower_bounds(
    problem: Problem,
    costs: Costs,
    names: Collection[Bound] = QUICK_BOUNDS,
    *,
    effort: float = 10.0,
    seed: int = 0,
) -> LowerBounds:
    """Returns lower bounds of the problem's objective.

    The period bounds hold for the steady state (an exact recurrence); a period that is estimated
    from a finite run may lie a little below. With p95 as objective they are bounds of the run
    without noise: a yardstick, proved of no percentile.

    Args:
        problem: What is placed.
        costs: Times.
        names: Bounds to work out.
        effort: Deterministic seconds that `cp_sat` may take (see `SolverSettings`).
        seed: Seed of the solver.

    Raises:
        ConfigError: If `cp_sat` is asked for and OR-Tools is not installed.
    """
    mask = make_mask(problem)
    times_VD = _times(costs)
    is_period = has_period(problem)
    # The runtime's cost before an op's first start is not part of a makespan.
    head_ns = 0 if is_period else max(costs.dispatch_ns)
    found: dict[Bound, int] = {}
    if Bound.area in names:
        found[Bound.area] = _whole(_area(mask, times_VD) - head_ns)
    if Bound.critical_path in names:
        chain = (
            _cycles(mask, times_VD)
            if is_period
            else Fraction(_longest_path(problem.graph, _fastest(mask, times_VD)))
        )
        found[Bound.critical_path] = _whole(chain - head_ns)
    if Bound.group in names:
        found[Bound.group] = _whole(_longest_unit(mask, times_VD) - head_ns)
    if Bound.memory in names:
        found[Bound.memory] = _whole(_memory_area(mask, times_VD) - head_ns)
    if Bound.cp_sat in names:
        settings = SolverSettings(effort=effort)
        quick_ns = lower_bounds(problem, costs).best_ns
        found[Bound.cp_sat] = solve_schedule(mask, costs, quick_ns, settings, seed).bound_ns
    return LowerBounds(
        area_ns=found.get(Bound.area),
        critical_path_ns=found.get(Bound.critical_path),
        group_ns=found.get(Bound.group),
        memory_ns=found.get(Bound.memory),
        cp_sat_ns=found.get(Bound.cp_sat),
    )


def bounds_within(problem: Problem, costs: Costs, bound_effort: float, *, seed: int) -> LowerBounds:
    """Returns the quick bounds, and CP-SAT's too if it may work `bound_effort` > 0 for it.

    Args:
        problem: What is placed.
        costs: Times.
        bound_effort: Deterministic seconds of CP-SAT.
        seed: CP-SAT's.

    Raises:
        ConfigError: If CP-SAT may work and OR-Tools is not installed.
    """
    if not bound_effort:
        return lower_bounds(problem, costs, QUICK_BOUNDS)
    return lower_bounds(problem, costs, ALL_BOUNDS, effort=bound_effort, seed=seed)


def bound_words(problem: Problem) -> str:
    """Returns what a gap is to: no percentile has a proven bound, only the run without noise."""
    return "bound without noise" if problem.objective is Objective.p95 else "bound"


def _whole(value: Fraction) -> int:
    return max(0, -(-value.numerator // value.denominator))


def _times(costs: Costs) -> list[list[int]]:
    """Time that an op holds a stream of each device, interference left out."""
    return [
        [time + dispatch for time, dispatch in zip(row, costs.dispatch_ns, strict=True)]
        for row in costs.op_ns
    ]


def _fastest(mask: Mask, times_VD: list[list[int]]) -> list[int]:
    """Least time per op over its allowed devices; 0 for inputs that never run."""
    units, allowed = mask.unit_V.tolist(), mask.problem.allowed
    return [
        min(time for time, ok in zip(times_VD[op], allowed[op], strict=True) if ok)
        if unit != NO_UNIT
        else 0
        for op, unit in enumerate(units)
    ]


def _longest_path(graph: DataflowGraph, times_V: list[int]) -> int:
    levels = list(times_V)
    for op in graph.topological_order[::-1]:
        after = [
            levels[graph.edges[e].dst] for e in graph.out_edges[op] if not graph.edges[e].distance
        ]
        levels[op] += max(after, default=0)
    return max(levels)


def _unit_times(mask: Mask, times_VD: list[list[int]]) -> list[list[int]]:
    return [
        [sum(times_VD[op][device] for op in ops) for device in range(mask.num_devices)]
        for ops in mask.members
    ]


def _longest_unit(mask: Mask, times_VD: list[list[int]]) -> Fraction:
    streams = [device.num_streams for device in mask.problem.cluster.devices]
    return max(
        (
            min(
                Fraction(row[device], streams[device])
                for device in range(mask.num_devices)
                if mask.allowed_UD[unit, device]
            )
            for unit, row in enumerate(_unit_times(mask, times_VD))
        ),
        default=Fraction(0),
    )


def _area(mask: Mask, times_VD: list[list[int]]) -> Fraction:
    """The least time of a fractional assignment, memory left out."""
    no_state = [0] * mask.num_units
    return _assignment_bound(mask, _unit_times(mask, times_VD), mask.allowed_UD, no_state)


def _memory_area(mask: Mask, times_VD: list[list[int]]) -> Fraction:
    """The same with memory: state as fractions, and units only where each of their ops fits."""
    fits_UD = mask.allowed_UD & _fitting(mask)
    if not fits_UD.any(axis=1).all():
        return Fraction(0)
    state = mask.state_U.tolist()
    return _assignment_bound(mask, _unit_times(mask, times_VD), fits_UD, state)


def _fitting(mask: Mask) -> Bools:
    """True where the state of a unit and the tensors of its largest op fit, bool[U, D].

    While an op runs, its outputs and the tensors of distance 0 that it reads lie on its device. An
    op that takes no time may be over before its memory is counted.
    """
    graph = mask.problem.graph
    need_U = mask.state_U.copy()
    for unit, members in enumerate(mask.members):
        for op in members:
            read = {
                (graph.edges[e].src, graph.edges[e].output)
                for e in graph.in_edges[op]
                if graph.edges[e].distance == 0
            }
            own = sum(graph.ops[op].outputs)
            tensors = own + sum(graph.ops[src].outputs[output] for src, output in read)
            need_U[unit] = max(need_U[unit], int(mask.state_U[unit]) + tensors)
    return np.asarray(need_U[:, None] <= mask.limit_D[None, :])


def _assignment_bound(
    mask: Mask, times_UD: list[list[int]], allowed_UD: Bools, state_U: list[int]
) -> Fraction:
    """Least T with: fractions of units on devices, work <= T * streams, state <= memory.

    For any weights y, z >= 0 of the devices, T >= [sum over units of min_d (y_d t(u, d) + z_d m(u))
    - sum_d z_d M_d] / sum_d y_d streams_d (weak duality). The programme's dual gives the best
    weights; they are rounded to integers, and the bound is then worked out exactly.
    """
    if not mask.num_units:
        return Fraction(0)
    streams = [device.num_streams for device in mask.problem.cluster.devices]
    limits = mask.limit_D.tolist()
    options = [np.flatnonzero(row).tolist() for row in allowed_UD]
    best = Fraction(0)
    equal = ([1] * mask.num_devices, [0] * mask.num_devices)
    for work, room in (_dual_weights(mask, times_UD, streams, allowed_UD, state_U), equal):
        total = sum(weight * count for weight, count in zip(work, streams, strict=True))
        if total == 0:
            continue
        least = sum(
            min(work[d] * times_UD[unit][d] + room[d] * state_U[unit] for d in devices)
            for unit, devices in enumerate(options)
        )
        spare = sum(weight * limit for weight, limit in zip(room, limits, strict=True))
        best = max(best, Fraction(least - spare, total))
    return best


def _dual_weights(
    mask: Mask,
    times_UD: list[list[int]],
    streams: list[int],
    allowed_UD: Bools,
    state_U: list[int],
) -> tuple[list[int], list[int]]:
    """Integer weights of work and of memory per device, from the dual of the assignment."""
    zero = [0] * mask.num_devices
    units, devices = np.nonzero(allowed_UD)
    count = len(units)
    scale = float(max(1, *(time for row in times_UD for time in row)))
    times = np.asarray(times_UD, dtype=np.float64)[units, devices] / scale
    columns = np.arange(count)
    last = np.full(mask.num_devices, count)
    work = coo_array(
        (
            np.concatenate([times, -np.asarray(streams, dtype=np.float64)]),
            (
                np.concatenate([devices, np.arange(mask.num_devices)]),
                np.concatenate([columns, last]),
            ),
        ),
        shape=(mask.num_devices, count + 1),
    )
    size = float(max(1, *state_U))
    state = coo_array(
        (np.asarray(state_U, dtype=np.float64)[units] / size, (devices, columns)),
        shape=(mask.num_devices, count + 1),
    )
    once = coo_array((np.ones(count), (units, columns)), shape=(mask.num_units, count + 1))
    cost = np.zeros(count + 1)
    cost[-1] = 1.0
    limits = mask.limit_D.astype(np.float64) / size
    result = linprog(
        cost,
        A_ub=vstack([work, state]).tocsr(),
        b_ub=np.concatenate([np.zeros(mask.num_devices), limits]),
        A_eq=once.tocsr(),
        b_eq=np.ones(mask.num_units),
        method="highs",
    )
    if result.status != 0:
        return zero, zero
    dual = np.maximum(0.0, -np.asarray(result.ineqlin.marginals))
    # Both halves in units of time per byte, as whole numbers with the same factor.
    work_D, room_D = dual[: mask.num_devices], dual[mask.num_devices :] * scale / size
    if float(work_D.max()) <= 0.0:
        return zero, zero
    factor = WEIGHT_STEPS / float(work_D.max())
    return _integers(work_D * factor), _integers(room_D * factor)


def _integers(weights_D: Floats) -> list[int]:
    return [round(float(weight)) for weight in weights_D]


def _cycles(mask: Mask, times_VD: list[list[int]]) -> Fraction:
    """Largest work / distance over circles of edges, of credits, and of an op with itself."""
    graph = mask.problem.graph
    runs = [unit != NO_UNIT for unit in mask.unit_V.tolist()]
    arcs: dict[tuple[int, int], int] = {(op, op): 1 for op in range(graph.num_ops) if runs[op]}
    for edge in graph.edges:
        if runs[edge.src]:
            _add(arcs, edge.src, edge.dst, edge.distance)
            if edge.src != edge.dst:
                _add(arcs, edge.dst, edge.src, graph.window - edge.distance)
    return max_cycle_ratio(_fastest(mask, times_VD), arcs)


def _add(arcs: dict[tuple[int, int], int], src: int, dst: int, distance: int) -> None:
    """Keeps the shortest distance per pair: it is the strictest."""
    arcs[src, dst] = min(arcs.get((src, dst), distance), distance)
