"""What the executor itself costs: empty ops, and many ops of about 1 ms, on two devices.

(a) `us_per_op`: measured makespan over ops, for a graph of 10,000 empty ops with at least 30 % of
its edges across devices. (b) `makespan_over_ideal`: measured makespan of 480 ops of about 1 ms over
the simulated one, with op times measured outside the executor (two bare pinned processes, both
cores busy, before and after each pass) and no dispatch cost. `foreign_cores` says how many cores
other programs kept busy meanwhile: above about 0.1 the figures tell of them.

Usage: python benchmarks/executor_overhead.py [--repeats N]
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import time

from support.common import finish
from support.overhead_job import make_busy

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Problem
from executor.host import cpu_times, foreign_cpu
from executor.job_spec import JobSpec
from executor.runtime import CoreExecutor
from simulator.compiled import CompiledRuntime

TARGETS = {"us_per_op": "<= 60", "makespan_over_ideal": "<= 1.10", "cross_edges": ">= 0.30"}
BARE_CALLS = 150
SEED = 0
JOB = JobSpec(path="support.overhead_job:OverheadJob")


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


def measure_empty(cluster: Cluster, repeats: int) -> dict[str, float]:
    """Returns the figures of part (a)."""
    problem = Problem(graph=layered_graph("empty", 1250, 8, 64), cluster=cluster)
    plan = alternating_plan(problem)
    with CoreExecutor(JOB, problem) as executor:
        executor.run(problem, plan, 1)  # warms up
        values = [
            executor.run(problem, plan, 1).makespan_ns / 1000 / problem.graph.num_ops
            for _ in range(repeats)
        ]
    return {
        "num_empty_ops": problem.graph.num_ops,
        "cross_edges": cross_share(problem, plan),
        "us_per_op": statistics.median(values),
        "us_per_op_min": min(values),
        "us_per_op_max": max(values),
    }


def measure_busy(cluster: Cluster, repeats: int) -> dict[str, float]:
    """Returns the figures of part (b); bare and executor passes alternate."""
    problem = Problem(graph=layered_graph("busy", 60, 8, 4096), cluster=cluster)
    plan = alternating_plan(problem)
    bare_ns: list[tuple[int, ...]] = []
    measured_ns: list[int] = []
    with BareCores(cluster) as bare, CoreExecutor(JOB, problem) as executor:
        executor.run(problem, plan, 1)  # warms up
        bare.measure_ns()
        bare_ns.append(bare.measure_ns())
        for _ in range(repeats):
            measured_ns.append(executor.run(problem, plan, 1).makespan_ns)
            bare_ns.append(bare.measure_ns())
    ratios = [
        value / ideal_ns(problem, plan, before, after)
        for value, before, after in zip(measured_ns, bare_ns[:-1], bare_ns[1:], strict=True)
    ]
    return {
        "num_busy_ops": problem.graph.num_ops,
        "bare_op_ms": statistics.median(sum(row) / len(row) for row in bare_ns) / 1e6,
        "makespan_over_ideal": statistics.median(ratios),
        "makespan_over_ideal_min": min(ratios),
        "makespan_over_ideal_max": max(ratios),
    }


def ideal_ns(problem: Problem, plan: Plan, before: tuple[int, ...], after: tuple[int, ...]) -> int:
    """Returns the simulated makespan with op times per device measured before and after a pass."""
    times = tuple((a + b) // 2 for a, b in zip(before, after, strict=True))
    costs = make_costs(problem, (times,) * problem.graph.num_ops)
    return CompiledRuntime(costs).run(problem, plan, 1).makespan_ns


class BareCores:
    """One bare pinned process per device that times the busy kernel when asked, all at once."""

    def __init__(self, cluster: Cluster) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--bare", str(device.cores[0])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for device in cluster.devices
        ]

    def __enter__(self) -> "BareCores":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.communicate()  # closes its input, which ends it

    def measure_ns(self) -> tuple[int, ...]:
        """Returns the mean time of a busy op per device, all devices busy."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return tuple(int(p.stdout.readline()) for p in self._processes if p.stdout is not None)


def run_bare(core: int) -> None:
    """Answers every line of input with the mean time of a busy op in ns on one core."""
    os.sched_setaffinity(0, {core})
    busy = make_busy()
    for _ in sys.stdin:
        start = time.monotonic_ns()
        for _ in range(BARE_CALLS):
            busy(0, (), ())
        print((time.monotonic_ns() - start) // BARE_CALLS, flush=True)


def main() -> None:
    """Measures both parts, or serves as one of the bare processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="measured passes per part")
    parser.add_argument("--bare", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare is not None:
        run_bare(arguments.bare)
        return
    cluster = two_cores()
    before = cpu_times()
    figures = measure_empty(cluster, arguments.repeats)
    figures.update(measure_busy(cluster, arguments.repeats))
    figures["foreign_cores"] = foreign_cpu(before, cpu_times())
    finish("executor_overhead", figures, TARGETS, seed=SEED)


if __name__ == "__main__":
    main()
