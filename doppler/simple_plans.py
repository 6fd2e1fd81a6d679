"""A job on hardware cut by a layout, and the plans that need no planner."""

from doppler.coordinator.templates import dp_only_devices, has_roles
from doppler.core.hardware import Hardware
from doppler.core.layout import Layout
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Problem
from doppler.planners.mask import make_mask
from doppler.planners.round_robin import deal
from doppler.real_job import RealJob


def job_problem(job: RealJob, hardware: Hardware, layout: Layout) -> Problem:
    """Returns the placement problem of a job on hardware cut by a layout."""
    return Problem(graph=job.graph, cluster=layout.apply(hardware), objective=job.objective)


def single_plan(problem: Problem) -> Plan:
    """Returns the plan with every op on device 0, in topological order."""
    placement = (0,) * problem.graph.num_ops
    return make_plan(problem, placement, _topological_priorities(problem), "single_device")


def spread_plan(problem: Problem) -> Plan:
    """Returns the plan that deals a job out over all devices.

    Shard by shard (GMI-DRL's DP-only) for a deep-RL job, op by op for other graphs.
    """
    mask = make_mask(problem)
    is_drl = has_roles(problem.graph)
    devices_U = dp_only_devices(mask) if is_drl else deal(mask)
    placement = tuple(int(device) for device in mask.placement(devices_U))
    source = "dp_only" if is_drl else "round_robin"
    return make_plan(problem, placement, _topological_priorities(problem), source)


def _topological_priorities(problem: Problem) -> tuple[int, ...]:
    priorities = [0] * problem.graph.num_ops
    for position, op in enumerate(problem.graph.topological_order):
        priorities[op] = -position
    return tuple(priorities)
