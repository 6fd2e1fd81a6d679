"""The reference graph of the simulator's benchmarks, and a plain-Python engine for it.

The graph: layers of 25 ops, each op with 1 to 5 random predecessors in the three layers before its
own; op times U(50, 150), one output per op, transfer times U(10, 60); 4 devices, random placement
and priorities, one FIFO bus per ordered pair of devices.
"""

import heapq
import random

import numpy as np
import numpy.typing as npt

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import Costs, make_costs
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.problem import Problem

WIDTH, NUM_DEVICES = 25, 4
# With 1000 ops this seed draws 2,867 edges, the size that the targets are stated for.
REFERENCE_SEED = 351


def reference_problem(num_ops: int, seed: int) -> tuple[Problem, Costs]:
    """Returns the reference graph on four devices; a byte takes a nanosecond."""
    rng = random.Random(seed)
    edges = []
    for op in range(WIDTH, num_ops):
        first = op // WIDTH * WIDTH
        before = range(max(0, first - 3 * WIDTH), first)
        edges += [Edge(src, 0, op) for src in sorted(rng.sample(before, rng.randint(1, 5)))]
    ops = [Op(kind="work", name=f"op{op}", outputs=(rng.randint(10, 60),)) for op in range(num_ops)]
    names = [f"d{device}" for device in range(NUM_DEVICES)]
    cluster = Cluster(
        name="four",
        devices=tuple(Device(name=name, kind="cuda", parent=name) for name in names),
        links=tuple(
            Link(src=a, dst=b, bytes_per_s=1_000_000_000, buses=(f"{a}-{b}",))
            for a in names
            for b in names
            if a != b
        ),
    )
    graph = DataflowGraph(name="reference", ops=tuple(ops), edges=tuple(edges))
    problem = Problem(graph=graph, cluster=cluster)
    times = [rng.randint(50, 150) for _ in range(num_ops)]
    return problem, make_costs(problem, tuple((ns,) * NUM_DEVICES for ns in times))


def random_plans(
    num_ops: int, count: int, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns random placements and permutations as priorities, int64[count, num_ops] each."""
    rng = np.random.default_rng(seed)
    shape = (count, num_ops)
    placements = rng.integers(0, NUM_DEVICES, shape)
    return placements, rng.permuted(np.broadcast_to(np.arange(num_ops), shape), axis=1)


class PythonEngine:
    """The same model with heapq and lists: what one would write without a compiler."""

    def __init__(self, problem: Problem, costs: Costs) -> None:
        graph = problem.graph
        self.num_ops = graph.num_ops
        self.times = [row[0] for row in costs.op_ns]
        self.bytes = [op.outputs[0] for op in graph.ops]
        self.successors = [[graph.edges[e].dst for e in ids] for ids in graph.out_edges]
        self.missing = [len(ids) for ids in graph.in_edges]

    def makespan(self, placement: list[int], priority: list[int]) -> int:
        """Returns the makespan of one plan.

        Only devices and buses that something happened to are looked at after an event.
        """
        num_ops, times, sizes, successors = self.num_ops, self.times, self.bytes, self.successors
        heappush, heappop = heapq.heappush, heapq.heappop
        order = sorted(range(num_ops), key=lambda op: (-priority[op], op))
        rank = [0] * num_ops
        for position, op in enumerate(order):
            rank[op] = position
        missing = self.missing.copy()
        ready: list[list[int]] = [[] for _ in range(NUM_DEVICES)]
        for op in range(num_ops):
            if missing[op] == 0:
                heappush(ready[placement[op]], rank[op])
        idle = [True] * NUM_DEVICES
        queues: list[list[tuple[int, int]]] = [[] for _ in range(NUM_DEVICES * NUM_DEVICES)]
        free = [True] * len(queues)
        # (time, op, bus), bus -1 for the op's end
        events: list[tuple[int, int, int]] = []
        devices, buses = set(range(NUM_DEVICES)), set[int]()
        now = 0
        while True:
            for device in devices:
                if idle[device] and ready[device]:
                    op = order[heappop(ready[device])]
                    idle[device] = False
                    heappush(events, (now + times[op], op, -1))
            for bus in buses:
                if free[bus] and queues[bus]:
                    op = order[heappop(queues[bus])[1]]
                    free[bus] = False
                    heappush(events, (now + sizes[op], op, bus))
            if not events:
                return now
            devices.clear()
            buses.clear()
            now = events[0][0]
            while events and events[0][0] == now:
                _, op, bus = heappop(events)
                source = placement[op]
                if bus < 0:
                    idle[source] = True
                    for target in {placement[successor] for successor in successors[op]}:
                        if target != source:
                            out = source * NUM_DEVICES + target
                            heappush(queues[out], (now, rank[op]))
                            buses.add(out)
                    there = source
                else:
                    free[bus] = True
                    buses.add(bus)
                    there = bus % NUM_DEVICES
                devices.add(there)
                for successor in successors[op]:
                    if placement[successor] == there:
                        missing[successor] -= 1
                        if missing[successor] == 0:
                            heappush(ready[there], rank[successor])
