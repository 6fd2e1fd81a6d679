"""A plan: device and priority per op, and the check that it fits a problem."""

import operator
from dataclasses import dataclass

from doppler.core.errors import PlanError
from doppler.core.graph import InputResidency
from doppler.core.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a planner makes and a runtime runs.

    Attributes:
        graph_digest, cluster_digest: What it was made for.
        placement: Device id per op (inputs that are resident everywhere hold 0, unread).
        priority: Integer per op; larger runs first among ready ops of one iteration.
        holds: (before, after) pairs of ops of one device: `after` waits for `before` in the same
            iteration.
        source: Name of the planner that made it.
    """

    graph_digest: str
    cluster_digest: str
    placement: tuple[int, ...]
    priority: tuple[int, ...]
    holds: tuple[tuple[int, int], ...] = ()
    source: str = ""

    def ranks(self) -> tuple[int, ...]:
        """Rank per op: position when sorted by priority descending, then op id."""
        order = sorted(range(len(self.priority)), key=lambda op: (-self.priority[op], op))
        ranks = [0] * len(order)
        for rank, op in enumerate(order):
            ranks[op] = rank
        return tuple(ranks)


def make_plan(
    problem: Problem,
    placement: tuple[int, ...],
    priority: tuple[int, ...],
    source: str,
    holds: tuple[tuple[int, int], ...] = (),
) -> Plan:
    """Returns a plan for `problem`, checked.

    Raises:
        PlanError: If it breaks a rule of `check_plan`, or a device or priority is no integer.
    """
    plan = Plan(
        graph_digest=problem.graph.digest,
        cluster_digest=problem.cluster.digest,
        placement=_integers(placement, "placement"),
        priority=_integers(priority, "priority"),
        holds=holds,
        source=source,
    )
    check_plan(problem, plan)
    return plan


def _integers(values: tuple[int, ...], label: str) -> tuple[int, ...]:
    """Returns plain integers of those of any library; a fraction is never cut off."""
    try:
        return tuple(map(operator.index, values))
    except TypeError:
        raise PlanError(f"{label} holds integers, and the plan has {values!r}") from None


def check_plan(problem: Problem, plan: Plan) -> None:
    """Checks that `plan` may run on `problem`; nothing is repaired.

    Raises:
        PlanError: Names the op and the device that break a rule: foreign digest, length, device
            range, device kind, pin, group, missing link, hold.
        CapacityError: If the state of groups alone does not fit a device.
    """
    graph, cluster = problem.graph, problem.cluster
    if plan.graph_digest != graph.digest:
        raise PlanError(
            f"the plan was made for graph {plan.graph_digest}, and graph {graph.name!r} is "
            f"{graph.digest}"
        )
    if plan.cluster_digest != cluster.digest:
        raise PlanError(
            f"the plan was made for cluster {plan.cluster_digest}, and cluster "
            f"{cluster.name!r} is {cluster.digest}"
        )
    for label, values in (("placement", plan.placement), ("priority", plan.priority)):
        if len(values) != graph.num_ops:
            raise PlanError(
                f"{label} has one entry per op ({graph.num_ops}), and the plan has {len(values)}"
            )
    _check_devices(problem, plan)
    _check_groups(problem, plan)
    _check_links(problem, plan)
    _check_holds(problem, plan)
    problem.check_resident_memory(plan.placement)


def resident_bytes(problem: Problem, plan: Plan) -> list[int]:
    """Returns the bytes that lie on each device from the start.

    They are the state of groups, and inputs that are resident everywhere, once per device that
    reads them.
    """
    graph = problem.graph
    used = [0] * problem.cluster.num_devices
    for group in graph.groups:
        if members := graph.group_members[group.name]:
            used[plan.placement[members[0]]] += group.state_bytes
    if graph.inputs is InputResidency.everywhere:
        reads = {
            (edge.src, edge.output, plan.placement[edge.dst])
            for edge in graph.edges
            if graph.ops[edge.src].is_input
        }
        for op, output, device in reads:
            used[device] += graph.ops[op].outputs[output]
    return used


def _check_devices(problem: Problem, plan: Plan) -> None:
    cluster = problem.cluster
    everywhere = problem.graph.inputs is InputResidency.everywhere
    most = cluster.num_devices
    if all(
        0 <= device < most and row[device]
        for device, row in zip(plan.placement, problem.allowed, strict=True)
    ):
        return
    for op_id, device in enumerate(plan.placement):
        in_range = 0 <= device < cluster.num_devices
        if in_range and problem.allowed[op_id][device]:
            continue
        op = problem.graph.ops[op_id]
        if not in_range:
            raise PlanError(
                f"op {op_id} ({op.name!r}) is placed on device {device}, but cluster "
                f"{cluster.name!r} has {cluster.num_devices} devices"
            )
        if not (op.is_input and everywhere):
            allowed = [cluster.devices[d].name for d, ok in enumerate(problem.allowed[op_id]) if ok]
            raise PlanError(
                f"op {op_id} ({op.name!r}) is placed on {cluster.devices[device].name!r}, "
                f"and its kinds and pins allow {', '.join(allowed)}"
            )


def _check_groups(problem: Problem, plan: Plan) -> None:
    devices = problem.cluster.devices
    for name, members in problem.graph.group_members.items():
        for op in members:
            if plan.placement[op] != plan.placement[members[0]]:
                first = members[0]
                raise PlanError(
                    f"ops of one group share a device, and group {name!r} has "
                    f"{problem.graph.ops[first].name!r} on "
                    f"{devices[plan.placement[first]].name!r} and "
                    f"{problem.graph.ops[op].name!r} on {devices[plan.placement[op]].name!r}"
                )


def _check_links(problem: Problem, plan: Plan) -> None:
    graph, cluster = problem.graph, problem.cluster
    everywhere = graph.inputs is InputResidency.everywhere
    if len(cluster.link_table) == cluster.num_devices * (cluster.num_devices - 1):
        return
    for edge in graph.edges:
        src, dst = plan.placement[edge.src], plan.placement[edge.dst]
        if src == dst or (graph.ops[edge.src].is_input and everywhere):
            continue
        if (src, dst) not in cluster.link_table:
            raise PlanError(
                f"op {graph.ops[edge.src].name!r} on {cluster.devices[src].name!r} feeds "
                f"{graph.ops[edge.dst].name!r} on {cluster.devices[dst].name!r}, and the cluster "
                f"has no link or route for that pair"
            )


def _check_holds(problem: Problem, plan: Plan) -> None:
    graph = problem.graph
    successors: dict[int, list[int]] = {}
    for before, after in plan.holds:
        for op in (before, after):
            if not 0 <= op < graph.num_ops or graph.ops[op].is_input:
                raise PlanError(f"a hold orders two placed ops, and ({before}, {after}) names {op}")
        if before == after or plan.placement[before] != plan.placement[after]:
            raise PlanError(
                f"a hold orders two ops of one device, and ({before}, {after}) joins "
                f"{graph.ops[before].name!r} and {graph.ops[after].name!r}"
            )
        successors.setdefault(before, []).append(after)
    if not plan.holds:
        return
    missing = [0] * graph.num_ops
    for edge in graph.edges:
        if edge.distance == 0:
            successors.setdefault(edge.src, []).append(edge.dst)
    for targets in successors.values():
        for op in targets:
            missing[op] += 1
    free = [op for op in range(graph.num_ops) if missing[op] == 0]
    count = 0
    while free:
        op = free.pop()
        count += 1
        for target in successors.get(op, ()):
            missing[target] -= 1
            if missing[target] == 0:
                free.append(target)
    if count < graph.num_ops:
        stuck = next(op for op in range(graph.num_ops) if missing[op] > 0)
        raise PlanError(
            f"holds and edges of distance 0 form no circle, and op {graph.ops[stuck].name!r} "
            f"waits for itself"
        )
