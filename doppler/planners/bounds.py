"""Lower bounds: no plan of a problem can be faster, whatever its priorities and holds.

All bounds hold for interference of any size, because `slowdown_permille` only adds time. They leave
transfers out, so they are loose where communication dominates. Arithmetic that decides is in
integers and fractions; the linear programme only proposes weights.

Arrays: `U` units, `D` devices.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from doppler.core.costs import Costs
from doppler.core.graph import DataflowGraph
from doppler.core.problem import Objective, Problem
from doppler.planners.cycle_ratio import max_cycle_ratio
from doppler.planners.mask import NO_UNIT, Mask, make_mask

WEIGHT_STEPS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerBounds:
    """Lower bounds of one problem in ns, rounded up.

    Attributes:
        area_ns: All work, spread over all streams as well as fractions of units could be.
        chain_ns: Makespan: the longest path, each op on its fastest device. Period: the largest
            ratio of work to distance over all circles, those of back-pressure included.
        group_ns: The unit that takes longest even on its best device with that device to itself.
    """

    area_ns: int
    chain_ns: int
    group_ns: int

    @property
    def best_ns(self) -> int:
        """The largest of them."""
        return max(self.area_ns, self.chain_ns, self.group_ns)


def lower_bounds(problem: Problem, costs: Costs) -> LowerBounds:
    """Returns lower bounds of the problem's objective.

    The period bounds hold for the steady state (an exact recurrence); a period that is estimated
    from a finite run may lie a little below.
    """
    mask = make_mask(problem)
    times_VD = _times(costs)
    is_period = problem.objective is not Objective.makespan
    # The runtime's cost before an op's first start is not part of a makespan.
    head_ns = 0 if is_period else max(costs.dispatch_ns)
    area = _area(mask, times_VD)
    group = _longest_unit(mask, times_VD)
    if is_period:
        chain = _cycles(mask, times_VD)
    else:
        chain = Fraction(_longest_path(problem.graph, _fastest(mask, times_VD)))
    return LowerBounds(
        area_ns=_whole(area - head_ns),
        chain_ns=_whole(chain - head_ns),
        group_ns=_whole(group - head_ns),
    )


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
    """Least T with: fractions of units on devices, work on each device <= T * streams.

    For any weights y >= 0 of the devices, T >= sum over units of min_d y_d t(u, d) divided by
    sum_d y_d streams_d (weak duality). The programme's dual gives the best weights; they are
    rounded to integers, and the bound is then worked out exactly.
    """
    if not mask.num_units:
        return Fraction(0)
    streams = [device.num_streams for device in mask.problem.cluster.devices]
    times_UD = _unit_times(mask, times_VD)
    options = [np.flatnonzero(row).tolist() for row in mask.allowed_UD]
    best = Fraction(0)
    for weights in (_dual_weights(mask, times_UD, streams), [1] * mask.num_devices):
        total = sum(weight * count for weight, count in zip(weights, streams, strict=True))
        if total == 0:
            continue
        work = sum(
            min(weights[device] * times_UD[unit][device] for device in devices)
            for unit, devices in enumerate(options)
        )
        best = max(best, Fraction(work, total))
    return best


def _dual_weights(mask: Mask, times_UD: list[list[int]], streams: list[int]) -> list[int]:
    """Integer weights per device from the dual of the fractional assignment."""
    units, devices = np.nonzero(mask.allowed_UD)
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
    once = coo_array((np.ones(count), (units, columns)), shape=(mask.num_units, count + 1))
    cost = np.zeros(count + 1)
    cost[-1] = 1.0
    result = linprog(
        cost,
        A_ub=work.tocsr(),
        b_ub=np.zeros(mask.num_devices),
        A_eq=once.tocsr(),
        b_eq=np.ones(mask.num_units),
        method="highs",
    )
    if result.status != 0:
        return [0] * mask.num_devices
    dual_D = np.maximum(0.0, -np.asarray(result.ineqlin.marginals))
    largest = float(dual_D.max())
    return [round(float(y) / max(largest, 1e-300) * WEIGHT_STEPS) for y in dual_D]


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
