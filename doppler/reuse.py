"""A plan of another graph as a start: what both graphs name alike goes where it went.

Whoever changes a size (tokens, batch, width) or an op gets a graph whose names are mostly those of
the graph that was placed before. The old plan is no plan of the new graph (the digests differ), but
a good one to search from.
"""

from dataclasses import dataclass

import numpy as np

from doppler.core.codecs.plan import PlanNames
from doppler.core.errors import PlanError, nearest
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Problem
from doppler.planners.mask import make_mask

SOURCE = "carried_over"
UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedOver:
    """A plan made of an older one.

    Attributes:
        plan: A legal plan of the problem, without holds.
        num_named: Ops that the older plan names.
        num_placed: Ops that need a device.
    """

    plan: Plan
    num_named: int
    num_placed: int


def carry_over(names: PlanNames, problem: Problem, where: str) -> CarriedOver:
    """Returns the plan in which ops of the same name have the same device and priority.

    An op without namesake follows an op next to it: the producer of its first input that has a
    device, else its first such consumer; priorities likewise. Where that breaks a rule (pins,
    kinds, groups, links, state), the nearest legal placement in the order of the devices is taken.

    Args:
        names: Devices and priorities by op name, of any graph.
        problem: What is placed now.
        where: What the names were read from, for messages.

    Raises:
        PlanError: If no op of the problem is named, a device is unknown, or no placement is legal.
        CapacityError: If group state fits in no legal way.
    """
    graph, device_ids = problem.graph, problem.cluster.device_ids
    mask = make_mask(problem)
    placed = [op_id for op_id in range(graph.num_ops) if mask.unit_V[op_id] >= 0]
    devices_V = np.full(graph.num_ops, UNKNOWN, dtype=np.int64)
    priorities_V = np.zeros(graph.num_ops, dtype=np.int64)
    for op_id in placed:
        name = graph.ops[op_id].name
        device = names.devices.get(name)
        if device is None:
            continue
        if device not in device_ids:
            raise PlanError(
                f"{where}: devices of a plan to begin from are those of {problem.cluster.name!r}, "
                f"and op {name!r} is on {device!r}; {nearest(device, device_ids)}"
            )
        devices_V[op_id] = device_ids[device]
        priorities_V[op_id] = names.priorities.get(name, 0)
    num_named = int((devices_V >= 0).sum())
    if not num_named:
        raise PlanError(
            f"{where}: a plan to begin from names ops of {graph.name!r}, and of its "
            f"{len(placed)} placed ops it names none"
        )
    _follow(problem, devices_V, priorities_V)
    priorities_V[mask.unit_V < 0] = 0
    wanted_U = mask.devices_of(np.maximum(devices_V, 0))
    devices_U = mask.complete(mask.prefer_devices(wanted_U))
    placement = mask.placement(devices_U[None])[0]
    plan = make_plan(problem, tuple(placement.tolist()), tuple(priorities_V.tolist()), SOURCE)
    return CarriedOver(plan=plan, num_named=num_named, num_placed=len(placed))


def _follow(problem: Problem, devices_V: np.ndarray, priorities_V: np.ndarray) -> None:  # type: ignore[type-arg]
    """Gives ops without a device that of a neighbour: forwards from producers, then backwards."""
    graph = problem.graph
    producers: list[list[int]] = [[] for _ in graph.ops]
    consumers: list[list[int]] = [[] for _ in graph.ops]
    for edge in graph.edges:
        if edge.distance == 0:
            producers[edge.dst].append(edge.src)
            consumers[edge.src].append(edge.dst)
    order = graph.topological_order
    for ops, near in ((order, producers), (tuple(reversed(order)), consumers)):
        for op_id in ops:
            if devices_V[op_id] >= 0:
                continue
            for other in near[op_id]:
                if devices_V[other] >= 0:
                    devices_V[op_id] = devices_V[other]
                    priorities_V[op_id] = priorities_V[other]
                    break
