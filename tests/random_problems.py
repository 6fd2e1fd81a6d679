"""Random but valid graphs, clusters and costs, a little larger than those of `strategies`."""

import random

from hypothesis import strategies as st

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.graph import DataflowGraph, Edge, EdgeMode, Group, InputResidency, Op
from doppler.core.problem import Objective, Problem


def random_cluster(rng, num_devices=None, full_links=True, kinds=("cpu",)):
    """A cluster with a mix of zero-copy links, bus links and stream copies."""
    count = num_devices or rng.randint(1, 4)
    devices = [
        Device(
            name=f"d{index}",
            kind=kinds[index % len(kinds)],
            parent=f"p{index // 2}",
            share=0.5,
            memory_bytes=1 << 40,
            num_streams=rng.choice((1, 1, 2)),
            copy_engines=rng.choice((0, 1)),
        )
        for index in range(count)
    ]
    links = []
    for src in devices:
        for dst in devices:
            if src is dst or (not full_links and rng.random() < 0.4):
                continue
            copies = rng.random() < 0.7
            buses = (f"out_{src.name}", f"in_{dst.name}") if src.copy_engines else ()
            links.append(
                Link(
                    src=src.name,
                    dst=dst.name,
                    latency_ns=rng.choice((0, 1, 5)),
                    bytes_per_s=rng.choice((10**9, 5 * 10**8)) if copies else None,
                    buses=buses if copies else (),
                )
            )
    return Cluster(name="random", devices=tuple(devices), links=tuple(links))


def random_graph(rng, num_ops=None, cyclic=False, kinds=(), groups=True, inputs=True):
    """A graph with ops in topological order of their ids, groups, inputs, loops."""
    count = num_ops or rng.randint(1, 10)
    num_inputs = rng.randint(0, min(2, count - 1)) if inputs else 0
    names = [f"g{i}" for i in range(rng.randint(0, 2))] if groups else []
    ops = []
    for index in range(count):
        is_input = index < num_inputs
        ops.append(
            Op(
                kind="input" if is_input else rng.choice(("matmul", "add")),
                name=f"op{index}",
                outputs=tuple(rng.randint(0, 20) for _ in range(rng.randint(1, 2))),
                flop=rng.randint(0, 100),
                bytes_moved=rng.randint(0, 100),
                group=rng.choice([None, *names]) if names and not is_input else None,
                meta_op=rng.choice((None, "meta")),
                device_kinds=rng.choice(((), kinds)) if kinds and not is_input else (),
            )
        )
    edges = []
    for dst in range(num_inputs, count):
        for src in rng.sample(range(dst), min(dst, rng.randint(0, 2))):
            output = rng.randrange(len(ops[src].outputs))
            edges.append(Edge(src, output, dst))
    if cyclic:
        for _ in range(rng.randint(1, 3)):
            src, dst = rng.randrange(num_inputs, count), rng.randrange(num_inputs, count)
            mode = rng.choice((EdgeMode.token, EdgeMode.token, EdgeMode.latest))
            output = rng.randrange(len(ops[src].outputs))
            edges.append(Edge(src, output, dst, rng.randint(1, 2), mode))
    return DataflowGraph(
        name="random",
        ops=tuple(ops),
        edges=tuple(edges),
        groups=tuple(Group(name, rng.randint(0, 50)) for name in names),
    )


def random_costs(rng, problem, interference=False):
    """Times per (op, device); inputs take no time."""
    devices = problem.cluster.num_devices
    return make_costs(
        problem,
        tuple(
            (0,) * devices if op.is_input else tuple(rng.randint(0, 30) for _ in range(devices))
            for op in problem.graph.ops
        ),
        slowdown_permille=tuple(
            rng.choice((0, 100, 500)) if interference else 0 for _ in problem.graph.ops
        ),
        dispatch_ns=tuple(rng.choice((0, 2)) for _ in range(devices)),
    )


@st.composite
def problems(draw, cyclic=None, max_ops=10, max_devices=4, full_links=True):
    """A problem: graph, cluster, perhaps a pin; period objective where the graph has loops."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    loops = draw(st.booleans()) if cyclic is None else cyclic
    cluster = random_cluster(rng, rng.randint(1, max_devices), full_links)
    graph = random_graph(rng, rng.randint(1, max_ops), loops)
    movable = [op.name for op in graph.ops if not op.is_input and op.group is None]
    pins = {}
    if movable and rng.random() < 0.3:
        pins[rng.choice(movable)] = rng.choice(cluster.devices).name
    return Problem(
        graph=graph,
        cluster=cluster,
        pins=pins,
        objective=Objective.period if loops else Objective.makespan,
    )


@st.composite
def problems_with_costs(draw, **options):
    """A problem and costs for it."""
    problem = draw(problems(**options))
    rng = random.Random(draw(st.integers(0, 2**32)))
    return problem, random_costs(rng, problem, interference=draw(st.booleans()))


def pinned_inputs(graph):
    """The same graph with inputs resident where they are pinned."""
    return DataflowGraph(
        name=graph.name,
        ops=graph.ops,
        edges=graph.edges,
        groups=graph.groups,
        window=graph.window,
        inputs=InputResidency.pinned,
    )
