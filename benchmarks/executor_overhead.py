"""What the executor itself costs: empty ops, and many ops of about 1 ms, on two devices.

(a) `us_per_op`: measured makespan over ops, for a graph of 10,000 empty ops with at least 30 % of
its edges across devices. (b) `makespan_over_ideal`: measured makespan of 480 ops of about 1 ms over
the simulated one, with op times measured outside the executor (two bare pinned processes, both
cores busy, before and after) and no dispatch cost.

Usage: python benchmarks/executor_overhead.py [--repeats N]
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time

import numpy as np
from overhead_job import busy

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Problem
from executor.job_spec import JobSpec
from executor.runtime import CoreExecutor

TARGETS = {"us_per_op": 60.0, "makespan_over_ideal": 1.10, "cross_edges": 0.30}
MEASURED_CALLS = 300
SEED = 0


def layered_graph(kind: str, num_layers: int, width: int, output_bytes: int) -> DataflowGraph:
    """Returns a graph in which every op reads two random ops of the layer before."""
    rng = random.Random(SEED)
    ops = [
        Op(kind=kind, name=f"{kind}[{layer},{column}]", outputs=(output_bytes,))
        for layer in range(num_layers)
        for column in range(width)
    ]
    edges = [
        Edge((layer - 1) * width + source, 0, layer * width + column)
        for layer in range(1, num_layers)
        for column in range(width)
        for source in rng.sample(range(width), 2)
    ]
    return DataflowGraph(name=f"layered_{kind}", ops=tuple(ops), edges=tuple(edges))


def two_cores() -> Cluster:
    """Returns a cluster of the first two cores that this process may use."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("this benchmark needs two cores")
    devices = tuple(
        Device(name=f"core{c}", kind="cpu", parent="cpu", copy_engines=0, cores=(c,)) for c in cores
    )
    links = tuple(Link(src=a.name, dst=b.name) for a in devices for b in devices if a != b)
    return Cluster(name="two_cores", devices=devices, links=links)


def alternating_plan(problem: Problem) -> Plan:
    """Returns a plan that alternates devices within each layer; earlier layers first."""
    num_ops = problem.graph.num_ops
    return make_plan(
        problem,
        tuple(op % 2 for op in range(num_ops)),
        tuple(-op for op in range(num_ops)),
        "alternating",
    )


def cross_share(problem: Problem, plan: Plan) -> float:
    """Returns the share of edges that cross devices."""
    place = plan.placement
    edges = problem.graph.edges
    return sum(place[e.src] != place[e.dst] for e in edges) / len(edges)


def makespans_ns(problem: Problem, plan: Plan, repeats: int) -> list[int]:
    """Returns the measured makespan of single passes, after one that warms up."""
    with CoreExecutor(JobSpec(path="overhead_job:OverheadJob"), problem) as executor:
        executor.run(problem, plan, 1)
        return [executor.run(problem, plan, 1).makespan_ns for _ in range(repeats)]


def bare_op_times_ns(cluster: Cluster) -> list[int]:
    """Returns the mean time of a busy op per core, in two bare processes at the same time."""
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--bare", str(device.cores[0])],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for device in cluster.devices
    ]
    return [int(process.communicate()[0]) for process in processes]


def run_bare(core: int) -> int:
    """Returns the mean time in ns of a busy op on one core; runs on until all have measured."""
    os.sched_setaffinity(0, {core})
    time.sleep(0.5)  # the other process has started too
    durations = []
    for number in range(2 * MEASURED_CALLS):
        start = time.monotonic_ns()
        busy(0, (), ())
        if MEASURED_CALLS // 2 <= number < MEASURED_CALLS * 3 // 2:
            durations.append(time.monotonic_ns() - start)
    return round(float(np.mean(durations)))


def measure_busy(cluster: Cluster, repeats: int) -> dict[str, float]:
    """Returns the figures of part (b)."""
    from simulator.compiled import CompiledRuntime

    problem = Problem(graph=layered_graph("busy", 80, 6, 4096), cluster=cluster)
    plan = alternating_plan(problem)
    before = bare_op_times_ns(cluster)
    measured = makespans_ns(problem, plan, repeats)
    after = bare_op_times_ns(cluster)
    times = tuple((a + b) // 2 for a, b in zip(before, after, strict=True))
    costs = make_costs(problem, (times,) * problem.graph.num_ops)
    ideal = CompiledRuntime(costs).run(problem, plan, 1).makespan_ns
    ratios = [value / ideal for value in measured]
    return {
        "num_busy_ops": problem.graph.num_ops,
        "bare_op_ms": statistics.mean(times) / 1e6,
        "makespan_over_ideal": statistics.median(ratios),
        "makespan_over_ideal_min": min(ratios),
        "makespan_over_ideal_max": max(ratios),
    }


def measure_empty(cluster: Cluster, repeats: int) -> dict[str, float]:
    """Returns the figures of part (a)."""
    problem = Problem(graph=layered_graph("empty", 1250, 8, 64), cluster=cluster)
    plan = alternating_plan(problem)
    values = [
        value / 1000 / problem.graph.num_ops for value in makespans_ns(problem, plan, repeats)
    ]
    return {
        "num_empty_ops": problem.graph.num_ops,
        "cross_edges": cross_share(problem, plan),
        "us_per_op": statistics.median(values),
        "us_per_op_min": min(values),
        "us_per_op_max": max(values),
    }


def main() -> None:
    """Prints the figures; the last line is one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="measured passes per part")
    parser.add_argument("--bare", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare is not None:
        print(run_bare(arguments.bare))
        return
    cluster = two_cores()
    figures = measure_empty(cluster, arguments.repeats)
    figures.update(measure_busy(cluster, arguments.repeats))
    for name, value in figures.items():
        print(f"{name:>26} {value:.4g}")
    print(
        json.dumps(
            {
                "benchmark": "executor_overhead",
                "figures": figures,
                "targets": TARGETS,
                "command": " ".join(sys.argv),
                "machine": f"{platform.machine()} with {os.cpu_count()} cores, "
                f"Python {platform.python_version()}",
            }
        )
    )


if __name__ == "__main__":
    main()
