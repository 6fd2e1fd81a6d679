"""The makespan of equal streams without communication: one cumulative resource.

Source: the CP-SAT model of P|prec|Cmax, as in the OR-Tools documentation.
"""

from dataclasses import dataclass
from typing import Any

from doppler.core.costs import Costs
from doppler.planners.cp_sat_memory import most_bytes
from doppler.planners.cp_sat_solver import new_model
from doppler.planners.mask import NO_UNIT, Mask


@dataclass(slots=True)
class CumulativeModel:
    """A CP-SAT model and its variables.

    Attributes:
        model: The model; its objective is the makespan.
        start: Op -> when its stream starts with it.
    """

    model: Any
    start: dict[int, Any]


def is_cumulative(mask: Mask, costs: Costs) -> bool:
    """True if it makes no difference where an op runs, so that only streams are scarce."""
    problem = mask.problem
    links = problem.cluster.link_table
    sizes = {
        problem.graph.ops[edge.src].outputs[edge.output]
        for edge in problem.graph.edges
        if edge.distance == 0 and mask.unit_V[edge.src] != NO_UNIT
    }
    return (
        all(len(members) == 1 for members in mask.members)
        and bool(mask.allowed_UD.all())
        and len(set(costs.dispatch_ns)) == 1
        and all(len(set(costs.op_ns[members[0]])) == 1 for members in mask.members)
        and mask.is_fully_linked
        and not any(link.latency_ns for link in links.values())
        and not any(link.occupancy_ns(size) for link in links.values() for size in sizes)
        and most_bytes(mask) <= int(mask.limit_D.min())
    )


def build_cumulative_model(
    mask: Mask, costs: Costs, bound_ns: int, horizon_ns: int
) -> CumulativeModel:
    """Returns the model of a problem that `is_cumulative` accepts."""
    model = new_model()
    dispatch = costs.dispatch_ns[0]
    ops = [members[0] for members in mask.members]
    times = {op: costs.op_ns[op][0] + dispatch for op in ops}
    start = {op: model.new_int_var(0, horizon_ns + dispatch, "") for op in ops}
    for edge in mask.problem.graph.edges:
        if edge.distance == 0 and edge.src in start:
            model.add(start[edge.dst] >= start[edge.src] + times[edge.src])
    intervals = [model.new_fixed_size_interval_var(start[op], times[op], "") for op in ops]
    streams = sum(device.num_streams for device in mask.problem.cluster.devices)
    model.add_cumulative(intervals, [1] * len(ops), streams)
    makespan = model.new_int_var(bound_ns, horizon_ns, "")
    for op in ops:
        model.add(makespan + dispatch >= start[op] + times[op])
    model.minimize(makespan)
    return CumulativeModel(model, start)
