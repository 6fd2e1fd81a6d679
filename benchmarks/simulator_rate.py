"""How fast the compiled engine scores plans, against the SimPy specification and plain Python.

The reference graph: 1000 ops in 40 layers, each with 1 to 5 random predecessors in the three layers
before it; op times U(50, 150), one output per op, transfer times U(10, 60); 4 devices, random
placement and priorities, one FIFO bus per ordered pair of devices. All three engines must give the
same makespan for every plan. Times are CPU seconds of this thread, so that other work on the
machine weighs less.

Usage: python benchmarks/simulator_rate.py [--plans 500] [--seed 0]
"""

import argparse
import heapq
import random
import statistics
import time
from collections.abc import Callable

import numpy as np
from support.common import finish

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import Costs, make_costs
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.plan import make_plan
from doppler.core.problem import Problem
from simulator.runtime import SimPyRuntime
from simulator.scorer import CompiledScorer

REPEATS = 7
NUM_OPS, NUM_LAYERS, NUM_DEVICES = 1000, 40, 4
TARGETS = {"compiled_over_simpy": ">= 150", "compiled_over_python": ">= 12"}


def reference_problem(seed: int) -> tuple[Problem, Costs]:
    """Returns the reference graph on four devices; a byte takes a nanosecond."""
    rng = random.Random(seed)
    width = NUM_OPS // NUM_LAYERS
    edges = []
    for op in range(width, NUM_OPS):
        first = op // width * width
        before = range(max(0, first - 3 * width), first)
        edges += [Edge(src, 0, op) for src in sorted(rng.sample(before, rng.randint(1, 5)))]
    ops = [Op(kind="work", name=f"op{op}", outputs=(rng.randint(10, 60),)) for op in range(NUM_OPS)]
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
    times = [rng.randint(50, 150) for _ in range(NUM_OPS)]
    return problem, make_costs(problem, tuple((ns,) * NUM_DEVICES for ns in times))


class PythonEngine:
    """The same model with heapq and lists: what one would write without a compiler."""

    def __init__(self, problem: Problem, costs: Costs) -> None:
        graph = problem.graph
        self.times = [row[0] for row in costs.op_ns]
        self.bytes = [op.outputs[0] for op in graph.ops]
        self.successors = [[graph.edges[e].dst for e in ids] for ids in graph.out_edges]
        self.missing = [len(ids) for ids in graph.in_edges]

    def makespan(self, placement: list[int], priority: list[int]) -> int:
        """Returns the makespan of one plan."""
        order = sorted(range(NUM_OPS), key=lambda op: (-priority[op], op))
        rank = [0] * NUM_OPS
        for position, op in enumerate(order):
            rank[op] = position
        missing = list(self.missing)
        ready: list[list[int]] = [[] for _ in range(NUM_DEVICES)]
        for op in range(NUM_OPS):
            if missing[op] == 0:
                heapq.heappush(ready[placement[op]], rank[op])
        idle = [True] * NUM_DEVICES
        queues: dict[tuple[int, int], list[tuple[int, int, int]]] = {
            (a, b): [] for a in range(NUM_DEVICES) for b in range(NUM_DEVICES)
        }
        held = dict.fromkeys(queues, False)
        events: list[tuple[int, int, int]] = []  # time, op, destination or -1 for the op's end
        now = 0
        while True:
            for device in range(NUM_DEVICES):
                if idle[device] and ready[device]:
                    op = order[heapq.heappop(ready[device])]
                    idle[device] = False
                    heapq.heappush(events, (now + self.times[op], op, -1))
            for pair, queue in queues.items():
                if queue and not held[pair]:
                    op = order[heapq.heappop(queue)[1]]
                    held[pair] = True
                    heapq.heappush(events, (now + self.bytes[op], op, pair[1]))
            if not events:
                return now
            now = events[0][0]
            while events and events[0][0] == now:
                _, op, destination = heapq.heappop(events)
                device = placement[op]
                if destination < 0:
                    idle[device] = True
                    targets = {placement[successor] for successor in self.successors[op]}
                    for target in targets - {device}:
                        heapq.heappush(queues[device, target], (now, rank[op], target))
                    destination = device
                else:
                    held[device, destination] = False
                for successor in self.successors[op]:
                    if placement[successor] == destination:
                        missing[successor] -= 1
                        if missing[successor] == 0:
                            heapq.heappush(ready[destination], rank[successor])


def seconds_per_plan(run: Callable[[], list[int]]) -> tuple[float, list[int]]:
    """Returns CPU seconds per plan, and the makespans."""
    start = time.thread_time()
    makespans = run()
    return (time.thread_time() - start) / len(makespans), makespans


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plans", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    problem, costs = reference_problem(arguments.seed)
    rng = np.random.default_rng(arguments.seed)
    shape = (arguments.plans, NUM_OPS)
    placements = rng.integers(0, NUM_DEVICES, shape)
    priorities = rng.permuted(np.broadcast_to(np.arange(NUM_OPS), shape), axis=1)
    scorer, python = CompiledScorer(problem, costs), PythonEngine(problem, costs)
    scorer.score(placements[:1], priorities[:1])  # compiles, or loads what was compiled

    def run_compiled() -> list[int]:
        return scorer.score(placements, priorities).tolist()

    def run_python() -> list[int]:
        rows = zip(placements[:20].tolist(), priorities[:20].tolist(), strict=True)
        return [python.makespan(placement, priority) for placement, priority in rows]

    def run_simpy() -> list[int]:
        rows = zip(placements[:2].tolist(), priorities[:2].tolist(), strict=True)
        plans = [make_plan(problem, tuple(p), tuple(q), "random") for p, q in rows]
        return [SimPyRuntime(costs).run(problem, plan, 1).makespan_ns for plan in plans]

    rows = []
    for _ in range(REPEATS):  # the three side by side, so that one slow minute meets all of them
        compiled_s, makespans = seconds_per_plan(run_compiled)
        python_s, python_makespans = seconds_per_plan(run_python)
        simpy_s, simpy_makespans = seconds_per_plan(run_simpy)
        assert makespans[: len(python_makespans)] == python_makespans, "plain Python disagrees"
        assert makespans[: len(simpy_makespans)] == simpy_makespans, "SimPy disagrees"
        rows.append((compiled_s, python_s, simpy_s))
    for name, times in zip(("compiled", "Python", "SimPy"), zip(*rows, strict=True), strict=True):
        print(f"{name}: {min(times) * 1e3:.3f} to {max(times) * 1e3:.3f} ms per plan")
    figures = {
        "compiled_over_simpy": round(statistics.median(s / c for c, _, s in rows), 1),
        "compiled_over_python": round(statistics.median(p / c for c, p, _ in rows), 1),
        "simulations_per_s": round(statistics.median(1 / c for c, _, _ in rows)),
    }
    finish("simulator_rate", figures, TARGETS, seed=arguments.seed)


if __name__ == "__main__":
    main()
