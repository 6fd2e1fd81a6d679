"""Hypothesis strategies: tiny random graphs, clusters, plans and costs that are always valid.

They are small on purpose and full of ties, zeros and corners, where rules break.
"""

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from doppler.core.cluster import Cluster, Device, Link, Route
from doppler.core.costs import Costs, make_costs
from doppler.core.graph import DataflowGraph, Edge, EdgeMode, Group, InputResidency, Op
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Objective, Problem

BUS_NAMES = ("egress", "switch", "ingress")


@dataclass(frozen=True)
class Case:
    """A problem with costs, a plan and a number of iterations."""

    problem: Problem
    costs: Costs
    plan: Plan
    iterations: int


@st.composite
def graphs(draw: st.DrawFn, max_ops: int = 7, max_window: int = 4) -> DataflowGraph:
    """Graphs with distances, `latest` edges, inputs, several outputs, groups with state."""
    window = draw(st.integers(1, max_window))
    num_ops = draw(st.integers(1, max_ops))
    num_inputs = draw(st.integers(0, min(2, num_ops - 1)))
    group_names = draw(st.sampled_from([(), ("g",), ("g", "h")]))
    ops: list[Op] = []
    for index in range(num_ops):
        is_input = index < num_inputs
        outputs = draw(st.lists(st.sampled_from([0, 1, 3, 10]), min_size=int(is_input), max_size=2))
        group = None if is_input else draw(st.sampled_from([None, *group_names]))
        ops.append(
            Op(
                kind="input" if is_input else "work",
                name=f"op{index}",
                outputs=tuple(outputs),
                group=group,
            )
        )
    edges: list[Edge] = []
    for _ in range(draw(st.integers(0, 2 * num_ops))):
        src, dst = draw(st.integers(0, num_ops - 1)), draw(st.integers(0, num_ops - 1))
        if not ops[src].outputs or ops[dst].is_input:
            continue
        needed = 0 if src < dst else 1
        if needed >= window or (ops[src].is_input and needed):
            continue
        most = 0 if ops[src].is_input else window - 1
        edges.append(
            Edge(
                src,
                draw(st.integers(0, len(ops[src].outputs) - 1)),
                dst,
                draw(st.integers(needed, most)),
                draw(st.sampled_from([EdgeMode.token, EdgeMode.token, EdgeMode.latest])),
            )
        )
    return DataflowGraph(
        name="random",
        ops=tuple(ops),
        edges=tuple(edges),
        groups=tuple(Group(name, draw(st.sampled_from([0, 5]))) for name in group_names),
        window=window,
        inputs=draw(st.sampled_from(list(InputResidency))),
    )


@st.composite
def clusters(draw: st.DrawFn, max_devices: int = 3) -> Cluster:
    """Clusters with all kinds of links; every pair has a link or a route."""
    num_devices = draw(st.integers(1, max_devices))
    devices = tuple(
        Device(
            name=f"d{index}",
            kind=draw(st.sampled_from(["cpu", "cpu", "mig"])),
            parent=draw(st.sampled_from(["p", "q"])),
            num_streams=draw(st.sampled_from([1, 1, 2, 3])),
            copy_engines=draw(st.integers(0, 1)),
        )
        for index in range(num_devices)
    )
    use_routes = num_devices == 3 and all(d.copy_engines for d in devices) and draw(st.booleans())
    routed = {("d0", "d2"), ("d2", "d0")} if use_routes else set()
    links = tuple(
        draw(_links(src, dst))
        for src in devices
        for dst in devices
        if src is not dst and (src.name, dst.name) not in routed
    )
    routes = tuple(Route(src, dst, ("d1",)) for src, dst in sorted(routed))
    return Cluster(name="random", devices=devices, links=links, routes=routes)


@st.composite
def narrow_clusters(draw: st.DrawFn, num_devices: int = 2) -> Cluster:
    """Two streams per device and one bus for all, or copies on the streams: everything collides."""
    copy_engines = draw(st.integers(0, 1))
    names = [f"d{index}" for index in range(num_devices)]
    buses = ("bus",) if copy_engines else ()
    return Cluster(
        name="narrow",
        devices=tuple(
            Device(name=n, kind="cpu", parent="p", num_streams=2, copy_engines=copy_engines)
            for n in names
        ),
        links=tuple(
            Link(src=a, dst=b, bytes_per_s=1_000_000_000, buses=buses)
            for a in names
            for b in names
            if a != b
        ),
    )


@st.composite
def _links(draw: st.DrawFn, src: Device, dst: Device) -> Link:
    latency = draw(st.sampled_from([0, 0, 1, 4]))
    if draw(st.integers(0, 3)) == 0:
        return Link(src=src.name, dst=dst.name, latency_ns=latency)
    buses: tuple[str, ...] = ()
    if src.copy_engines:
        buses = tuple(
            draw(st.lists(st.sampled_from(BUS_NAMES), min_size=1, max_size=3, unique=True))
        )
    rate = draw(st.sampled_from([1_000_000_000, 300_000_000]))
    return Link(src=src.name, dst=dst.name, latency_ns=latency, bytes_per_s=rate, buses=buses)


@st.composite
def problems(
    draw: st.DrawFn,
    max_ops: int = 7,
    max_devices: int = 3,
    objective: Objective = Objective.makespan,
    cluster_strategy: st.SearchStrategy[Cluster] | None = None,
) -> Problem:
    """Problems with pins and device kinds; inputs resident where pinned have pins."""
    if cluster_strategy is None:
        cluster_strategy = clusters(max_devices)
    graph, cluster = draw(graphs(max_ops)), draw(cluster_strategy)
    pins: dict[str, str] = {}
    ops: list[Op] = []
    for op in graph.ops:
        device = draw(st.sampled_from(cluster.devices))
        rule = draw(st.sampled_from(["free", "free", "free", "pin", "kind"]))
        if op.is_input:
            rule = "pin" if graph.inputs is InputResidency.pinned else "free"
        elif op.group is not None and (rule == "kind" or op.group in {o.group for o in ops}):
            rule = "free"  # one pin per group, which holds for its other ops
        if rule == "pin":
            pins[op.name] = device.name
        ops.append(replace(op, device_kinds=(device.kind,)) if rule == "kind" else op)
    graph = replace(graph, ops=tuple(ops))
    return Problem(graph=graph, cluster=cluster, pins=pins, objective=objective)


@st.composite
def costs_of(draw: st.DrawFn, problem: Problem) -> Costs:
    """Costs full of ties and zeros, with interference and dispatch costs."""
    num_ops, num_devices = problem.graph.num_ops, problem.cluster.num_devices
    times = st.sampled_from(draw(st.sampled_from([(0, 0, 1, 2, 3, 7), (0, 1), (1,)])))
    return make_costs(
        problem,
        tuple(tuple(draw(times) for _ in range(num_devices)) for _ in range(num_ops)),
        tuple(draw(st.sampled_from([0, 0, 300, 1000])) for _ in range(num_ops)),
        tuple(draw(st.sampled_from([0, 0, 1])) for _ in range(num_devices)),
    )


@st.composite
def plans_of(draw: st.DrawFn, problem: Problem) -> Plan:
    """Legal plans with tied priorities and holds."""
    graph, num_devices = problem.graph, problem.cluster.num_devices
    placement: list[int] = []
    by_group: dict[str, int] = {}
    for op_id, op in enumerate(graph.ops):
        choices = [d for d in range(num_devices) if problem.allowed[op_id][d]]
        device = draw(st.sampled_from(choices))
        if op.group is not None:
            device = by_group.setdefault(op.group, device)
        placement.append(device)
    holds: list[tuple[int, int]] = []
    position = {op: index for index, op in enumerate(graph.topological_order)}
    for _ in range(draw(st.integers(0, 2))):
        before, after = (
            draw(st.integers(0, graph.num_ops - 1)),
            draw(st.integers(0, graph.num_ops - 1)),
        )
        if (
            position[before] < position[after]
            and placement[before] == placement[after]
            and not graph.ops[before].is_input
            and not graph.ops[after].is_input
        ):
            holds.append((before, after))
    priority = tuple(draw(st.integers(-2, 2)) for _ in range(graph.num_ops))
    return make_plan(problem, tuple(placement), priority, "random", tuple(holds))


@st.composite
def cases(
    draw: st.DrawFn,
    max_ops: int = 7,
    max_devices: int = 3,
    max_iterations: int = 6,
    objective: Objective = Objective.makespan,
    cluster_strategy: st.SearchStrategy[Cluster] | None = None,
) -> Case:
    """Everything that a runtime needs."""
    problem = draw(problems(max_ops, max_devices, objective, cluster_strategy))
    return Case(
        problem=problem,
        costs=draw(costs_of(problem)),
        plan=draw(plans_of(problem)),
        iterations=draw(st.integers(1, max_iterations)),
    )
