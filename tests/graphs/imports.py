"""What every reader's tests need: clusters of equal devices, and the way through our own JSON."""

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.problem import Problem
from doppler.core.serialize import load_costs, load_graph, save


def equal_devices(count):
    """Devices that are joined pairwise; a byte takes a nanosecond, every pair has its own wire."""
    names = [f"d{index}" for index in range(count)]
    return Cluster(
        name="equal",
        devices=tuple(Device(name=name, kind="cpu", parent=name) for name in names),
        links=tuple(
            Link(src=a, dst=b, bytes_per_s=10**9, buses=(f"{a}-{b}",))
            for a in names
            for b in names
            if a != b
        ),
    )


def check_round_trip(imported, folder, num_devices=2):
    """Graph and costs come back from JSON as they were."""
    save(imported.graph, folder / "g.json")
    graph = load_graph(folder / "g.json")
    assert graph.digest == imported.graph.digest
    assert graph.name == imported.graph.name
    problem = Problem(graph=graph, cluster=equal_devices(num_devices))
    if imported.op_ns is not None:
        costs = imported.costs(problem)
        save(costs, folder / "c.json", problem)
        assert load_costs(folder / "c.json", problem) == costs
