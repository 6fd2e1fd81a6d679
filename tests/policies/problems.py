"""Problems for the tests of policies and training."""

import numpy as np

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.graph import DataflowGraph, Edge, Group, Op
from doppler.core.problem import Problem
from doppler.policies.build import build_assignment


def cluster(num_devices, latency_ns=10, bytes_per_s=10**9, **device):
    devices = tuple(
        Device(name=f"d{i}", kind="cuda", parent=f"p{i}", **device) for i in range(num_devices)
    )
    links = tuple(
        Link(
            src=a.name,
            dst=b.name,
            latency_ns=latency_ns,
            bytes_per_s=bytes_per_s,
            buses=(f"out_{a.name}",),
        )
        for a in devices
        for b in devices
        if a is not b
    )
    return Cluster(name="c", devices=devices, links=links)


def six_ops(**device):
    """Two sources, two middles of one meta-op, a join, a tail; 2 devices, 100 ns to 10 ns links."""
    names = ("a", "b", "m0", "m1", "join", "tail")
    ops = tuple(
        Op(kind="k", name=name, outputs=(10,), meta_op="m" if name[0] == "m" else None)
        for name in names
    )
    edges = (Edge(0, 0, 2), Edge(1, 0, 3), Edge(2, 0, 4), Edge(3, 0, 4), Edge(4, 0, 5))
    graph = DataflowGraph(name="six", ops=ops, edges=edges)
    problem = Problem(graph=graph, cluster=cluster(2, **device))
    times = (100, 90, 80, 70, 60, 50)
    return problem, make_costs(problem, tuple((time, time) for time in times))


def layered(seed, num_layers=5, width=4, num_devices=3, equal_devices=False, groups=0, loops=True):
    """A random layered graph with groups, meta-ops and loop-carried edges."""
    rng = np.random.default_rng(seed)
    ops, edges = [], []
    for layer in range(num_layers):
        for column in range(width):
            group = f"g{column % groups}" if groups and column < groups else None
            ops.append(
                Op(
                    kind="k",
                    name=f"o{layer}_{column}",
                    outputs=(int(rng.integers(1, 500)),),
                    meta_op=f"m{layer}" if layer % 2 else None,
                    group=group,
                )
            )
            if layer:
                sources = rng.choice(width, size=int(rng.integers(1, 3)), replace=False)
                above = (layer - 1) * width
                edges += [Edge(above + int(src), 0, len(ops) - 1) for src in sources]
    if loops:
        edges.append(Edge(len(ops) - 1, 0, 0, 1))
        edges.append(Edge(len(ops) - 1, 0, len(ops) - 1, 1))
    graph = DataflowGraph(
        name="layered",
        ops=tuple(ops),
        edges=tuple(edges),
        groups=tuple(Group(f"g{i}", 7) for i in range(groups)),
    )
    problem = Problem(graph=graph, cluster=cluster(num_devices))
    times = rng.integers(20, 500, (len(ops), 1 if equal_devices else num_devices))
    times = np.broadcast_to(times, (len(ops), num_devices))
    return problem, make_costs(problem, tuple(tuple(map(int, row)) for row in times))


def assignment_of(pair):
    return build_assignment(*pair)
