"""The ten-op examples of two papers: one transfer time per edge, three devices."""

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.problem import Problem


def problem_of_tables(op_ns, transfers):
    """A problem whose edges take the given ns between any two devices (a byte takes one)."""
    names = [f"d{device}" for device in range(len(op_ns[0]))]
    outputs, edges = [[] for _ in op_ns], []
    for (src, dst), size in transfers.items():
        edges.append(Edge(src, len(outputs[src]), dst))
        outputs[src].append(size)
    ops = tuple(Op(kind="k", name=f"o{i}", outputs=tuple(out)) for i, out in enumerate(outputs))
    cluster = Cluster(
        name="c",
        devices=tuple(Device(name=name, kind="cuda", parent=name) for name in names),
        links=tuple(
            Link(src=a, dst=b, bytes_per_s=10**9, buses=(f"{a}-{b}",))
            for a in names
            for b in names
            if a != b
        ),
    )
    graph = DataflowGraph(name="example", ops=ops, edges=tuple(edges))
    problem = Problem(graph=graph, cluster=cluster)
    return problem, make_costs(problem, op_ns)


def topcuoglu():
    """Topcuoglu et al. 2002, figure 2: HEFT makes 80 of it, CPoP 86."""
    op_ns = (
        (14, 16, 9),
        (13, 19, 18),
        (11, 13, 19),
        (13, 8, 17),
        (12, 13, 10),
        (13, 16, 9),
        (7, 15, 11),
        (5, 11, 14),
        (18, 12, 20),
        (21, 7, 16),
    )
    transfers = {(0, 1): 18, (0, 2): 12, (0, 3): 9, (0, 4): 11, (0, 5): 14}
    transfers |= {(1, 7): 19, (1, 8): 16, (2, 6): 23, (3, 7): 27, (3, 8): 23, (4, 8): 13}
    transfers |= {(5, 7): 15, (6, 9): 17, (7, 9): 11, (8, 9): 13}
    return problem_of_tables(op_ns, transfers)


def arabnejad():
    """Arabnejad and Barbosa 2014, figure 1: PEFT makes 122 of it."""
    op_ns = (
        (22, 21, 36),
        (22, 18, 18),
        (32, 27, 43),
        (7, 10, 4),
        (29, 27, 35),
        (26, 17, 24),
        (14, 25, 30),
        (29, 23, 36),
        (15, 21, 8),
        (13, 16, 33),
    )
    transfers = {(0, 1): 17, (0, 2): 31, (0, 3): 29, (0, 4): 13, (0, 5): 7}
    transfers |= {(1, 7): 3, (1, 8): 30, (2, 6): 16, (3, 7): 11, (3, 8): 7, (4, 8): 57}
    transfers |= {(5, 7): 5, (6, 9): 9, (7, 9): 42, (8, 9): 7}
    return problem_of_tables(op_ns, transfers)
