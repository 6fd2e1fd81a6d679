"""How fast the compiled HEFT with insertion is, against plain Python, at 1,000 ops.

The reference graph of `support/reference_dag.py`: 1000 ops in 40 layers on four devices. Timed is
the placement of a given order (upward ranks, worked out once for all): ready times, gaps, the
choice of a device. Two references, both straight from the paper:

- plain: reads times and links from the project's objects and looks through a device's slots from
  the first one, as one writes it down;
- tuned: the same with everything put into lists beforehand and the slots searched by bisection, as
  one writes it when it has to be fast and may not be compiled (for information).

All three must give the same makespan and the same devices. Times are CPU seconds of this thread.

Usage: python benchmarks/heft_rate.py [--seed 0]
"""

import argparse
import bisect
import statistics
import time
from collections.abc import Callable

from support.common import finish
from support.reference_dag import reference_problem

from doppler.core.costs import Costs
from doppler.core.problem import Problem
from doppler.planners.list_schedule import ListScheduler, make_list_scheduler

NUM_OPS, REPEATS, COMPILED_RUNS = 1_000, 7, 200
TARGETS = {"compiled_over_python": ">= 500"}

Result = tuple[float, list[int]]


def plain_heft(problem: Problem, costs: Costs, order: list[int]) -> Result:
    """Returns makespan and device per op."""
    graph, links = problem.graph, problem.cluster.link_table
    slots: list[list[tuple[float, float]]] = [[] for _ in problem.cluster.devices]
    placement, end = [-1] * graph.num_ops, [0.0] * graph.num_ops
    for op in order:
        best: tuple[float, float, int] | None = None
        for device in range(problem.cluster.num_devices):
            if not problem.allowed[op][device]:
                continue
            ready = 0.0
            for edge_id in graph.in_edges[op]:
                edge = graph.edges[edge_id]
                arrival = end[edge.src]
                if placement[edge.src] != device:
                    link = links[placement[edge.src], device]
                    size = graph.ops[edge.src].outputs[edge.output]
                    arrival += link.latency_ns + link.occupancy_ns(size)
                ready = max(ready, arrival)
            length = costs.op_ns[op][device] + costs.dispatch_ns[device]
            start = ready
            for begin, stop in slots[device]:
                if start + length <= begin:
                    break
                start = max(start, stop)
            if best is None or start + length < best[0]:
                best = (start + length, start, device)
        assert best is not None
        end[op], start, placement[op] = best
        slots[placement[op]].append((start, end[op]))
        slots[placement[op]].sort()
    return max(end), placement


class TunedHeft:
    """HEFT on flat lists with bisection."""

    def __init__(self, problem: Problem, costs: Costs) -> None:
        graph, links = problem.graph, problem.cluster.link_table
        devices = range(problem.cluster.num_devices)
        self.num_devices = len(devices)
        self.times = [list(row) for row in costs.op_ns]
        self.inputs = [
            [
                (
                    graph.edges[e].src,
                    [
                        [
                            0
                            if a == b
                            else links[a, b].latency_ns
                            + links[a, b].occupancy_ns(
                                graph.ops[graph.edges[e].src].outputs[graph.edges[e].output]
                            )
                            for b in devices
                        ]
                        for a in devices
                    ],
                )
                for e in ids
            ]
            for ids in graph.in_edges
        ]

    def run(self, order: list[int]) -> Result:
        """Returns makespan and device per op."""
        starts: list[list[float]] = [[] for _ in range(self.num_devices)]
        ends: list[list[float]] = [[] for _ in range(self.num_devices)]
        placement, end = [-1] * len(self.times), [0.0] * len(self.times)
        for op in order:
            inputs = [(end[src], row[placement[src]]) for src, row in self.inputs[op]]
            best = (float("inf"), 0.0, 0, 0)
            for device, length in enumerate(self.times[op]):
                start = max([moment + row[device] for moment, row in inputs], default=0.0)
                own_starts, own_ends = starts[device], ends[device]
                at = bisect.bisect_right(own_ends, start)
                while at < len(own_starts) and start + length > own_starts[at]:
                    start = max(start, own_ends[at])
                    at += 1
                if start + length < best[0]:
                    best = (start + length, start, device, at)
            end[op], start, placement[op], at = best
            starts[placement[op]].insert(at, start)
            ends[placement[op]].insert(at, end[op])
        return max(end), placement


def cpu_seconds(run: Callable[[], object]) -> float:
    start = time.thread_time()
    run()
    return time.thread_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    problem, costs = reference_problem(NUM_OPS, arguments.seed)
    lists = make_list_scheduler(problem, costs)
    ids = lists.order(lists.ranks_V)
    order, tuned = ids.tolist(), TunedHeft(problem, costs)

    def compiled(lists: ListScheduler = lists) -> Result:
        schedule = lists.place_in_order(ids)
        return schedule.makespan_ns, schedule.devices_U.tolist()

    assert compiled() == plain_heft(problem, costs, order) == tuned.run(order), "schedules differ"
    rows = []
    for _ in range(REPEATS):  # side by side, so that one slow minute meets all of them
        compiled_s = cpu_seconds(lambda: [compiled() for _ in range(COMPILED_RUNS)])
        plain_s = cpu_seconds(lambda: plain_heft(problem, costs, order))
        tuned_s = cpu_seconds(lambda: [tuned.run(order) for _ in range(3)]) / 3
        rows.append((compiled_s / COMPILED_RUNS, plain_s, tuned_s))
    for name, times in zip(("compiled", "plain", "tuned"), zip(*rows, strict=True), strict=True):
        print(f"{name}: {min(times) * 1e3:.3f} to {max(times) * 1e3:.3f} ms per schedule")
    figures = {
        "compiled_over_python": statistics.median(p / c for c, p, _ in rows),
        "compiled_over_tuned_python": statistics.median(t / c for c, _, t in rows),
        "compiled_us": statistics.median(c for c, _, _ in rows) * 1e6,
    }
    finish("heft_rate", figures, TARGETS, seed=arguments.seed)


if __name__ == "__main__":
    main()
