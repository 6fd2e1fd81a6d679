"""The order of a solver's schedule: as priorities, and as the holds that enforce it."""

import numpy as np

from doppler.core.costs import Costs
from doppler.planners.cp_sat_schedule import ExactSchedule
from doppler.planners.mask import Ints, Mask


def priority_of(mask: Mask, costs: Costs, found: ExactSchedule) -> Ints:
    """Returns priorities in the order of the schedule's starts, int64[V]; 0 for what never runs."""
    order = _order(mask, costs, found)
    priority_V = np.zeros(mask.problem.graph.num_ops, dtype=np.int64)
    priority_V[order] = np.arange(len(order), 0, -1)
    return priority_V


def holds_of(mask: Mask, costs: Costs, found: ExactSchedule) -> tuple[tuple[int, int], ...]:
    """Returns (before, after) for consecutive ops of a stream that no path of the graph orders.

    With them every stream runs its ops in the schedule's order; inputs of the graph that run on
    the device they are pinned to are held by nothing, because a hold joins two placed ops.
    """
    if found.devices_U is None or found.stream_V is None:
        return ()
    graph = mask.problem.graph
    last: dict[tuple[int, int], int] = {}
    holds: list[tuple[int, int]] = []
    for op in _order(mask, costs, found):
        if graph.ops[op].is_input:
            continue
        key = (int(found.devices_U[mask.unit_V[op]]), int(found.stream_V[op]))
        before = last.get(key)
        if before is not None and not _reaches(mask, before, op):
            holds.append((before, op))
        last[key] = op
    return tuple(holds)


def _order(mask: Mask, costs: Costs, found: ExactSchedule) -> list[int]:
    """Ops by start, then end, then topology: an order that no edge contradicts."""
    start_V, devices_U = found.start_V, found.devices_U
    if start_V is None or devices_U is None:
        return []
    topological = mask.problem.graph.topological_order
    position = {op: index for index, op in enumerate(topological)}

    def key(op: int) -> tuple[int, int, int]:
        device = int(devices_U[mask.unit_V[op]])
        start = int(start_V[op])
        return start, start + costs.op_ns[op][device] + costs.dispatch_ns[device], position[op]

    return sorted(np.flatnonzero(start_V >= 0).tolist(), key=key)


def _reaches(mask: Mask, src: int, dst: int) -> bool:
    """True if a path of edges of distance 0 leads from one op to the other."""
    graph = mask.problem.graph
    seen, stack = {src}, [src]
    while stack:
        op = stack.pop()
        for edge_id in graph.out_edges[op]:
            edge = graph.edges[edge_id]
            if edge.distance == 0 and edge.dst not in seen:
                if edge.dst == dst:
                    return True
                seen.add(edge.dst)
                stack.append(edge.dst)
    return False
