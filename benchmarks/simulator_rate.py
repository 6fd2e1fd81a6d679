"""How fast the compiled engine scores plans, against the SimPy specification and plain Python.

On the reference graph of 1000 ops and 2,867 edges (`support/reference_dag.py`), in the same
run: compiled, plain Python and SimPy on one core, two threads and two pinned processes against one
thread, the cost per op from 100 to 100,000 ops, and what a second process start pays for compiled
code. All engines must give the same makespan for every plan that they share.

Measurements are interleaved (A B C C B A), so that a slow minute meets all of them; figures are
medians of the ratios of neighbours, with their range. Single-core figures count CPU seconds of the
thread, parallel ones the clock, because waiting for each other is what they measure.

Usage: python benchmarks/simulator_rate.py [--plans 500] [--repeats 7] [--seed 351]
"""

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import numpy.typing as npt
from support.common import finish
from support.reference_dag import REFERENCE_SEED, PythonEngine, random_plans, reference_problem

from doppler.core.plan import make_plan
from simulator.runtime import SimPyRuntime
from simulator.scorer import CompiledScorer

NUM_OPS = 1000
PARALLEL_PLANS = 2000  # long enough that waking a thread weighs little
GROWTH_SIZES = (100, 1000, 10_000, 100_000)
GROWTH_OPS = 300_000  # ops simulated per measurement of a size
TARGETS = {
    "compiled_over_simpy": ">= 150",
    "compiled_over_python": ">= 12",
    "two_threads_over_one": ">= 0.85 x two_processes_over_one",
    "threads_over_processes": ">= 0.85",
    "cost_growth": "<= 2.5",
    "second_start_s": "< 1",
}

Plans = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
Run = Callable[[], list[int]]


def seconds_per_plan(run: Run, clock: Callable[[], float]) -> tuple[float, list[int]]:
    """Returns seconds per plan, and the makespans."""
    start = clock()
    makespans = run()
    return (clock() - start) / len(makespans), makespans


def interleaved(
    runs: Sequence[Run], repeats: int, clock: Callable[[], float]
) -> list[tuple[float, ...]]:
    """Returns seconds per plan of every run, in turn forwards and backwards; makespans agree."""
    rows = []
    for repeat in range(repeats):
        order = range(len(runs)) if repeat % 2 == 0 else range(len(runs) - 1, -1, -1)
        row, makespans = [0.0] * len(runs), [list[int]()] * len(runs)
        for index in order:
            row[index], makespans[index] = seconds_per_plan(runs[index], clock)
        for other in makespans[1:]:
            shared = min(len(other), len(makespans[0]))
            assert other[:shared] == makespans[0][:shared], "two engines disagree"
        rows.append(tuple(row))
    return rows


def ratio(rows: Sequence[tuple[float, ...]], over: int, under: int, label: str) -> float:
    """Returns the median of the ratios of two columns, and prints their range."""
    ratios = sorted(row[over] / row[under] for row in rows)
    median = statistics.median(ratios)
    print(f"{label}: median {median:.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f}")
    return median


def single_core(plans: Plans, repeats: int, seed: int) -> dict[str, float]:
    """Compiled, plain Python and SimPy on one core."""
    problem, costs = reference_problem(NUM_OPS, seed)
    placements, priorities = plans
    scorer, python = CompiledScorer(problem, costs), PythonEngine(problem, costs)
    scorer.score(placements[:1], priorities[:1])  # compiles, or loads what was compiled
    print(f"{problem.graph.num_ops} ops, {len(problem.graph.edges)} edges")

    def run_compiled() -> list[int]:
        return scorer.score(placements, priorities).tolist()

    def run_python() -> list[int]:
        rows = zip(placements[:20].tolist(), priorities[:20].tolist(), strict=True)
        return [python.makespan(placement, priority) for placement, priority in rows]

    def run_simpy() -> list[int]:
        rows = zip(placements[:2].tolist(), priorities[:2].tolist(), strict=True)
        pair = [make_plan(problem, tuple(p), tuple(q), "random") for p, q in rows]
        return [SimPyRuntime(costs).run(problem, plan, 1).makespan_ns for plan in pair]

    rows = interleaved((run_compiled, run_python, run_simpy), repeats, time.thread_time)
    for name, times in zip(("compiled", "Python", "SimPy"), zip(*rows, strict=True), strict=True):
        print(f"{name}: {min(times) * 1e3:.3f} to {max(times) * 1e3:.3f} ms per plan")
    return {
        "compiled_over_simpy": ratio(rows, 2, 0, "SimPy over compiled"),
        "compiled_over_python": ratio(rows, 1, 0, "plain Python over compiled"),
        "simulations_per_s": 1 / statistics.median(row[0] for row in rows),
    }


def serve(core: int, plans: Plans, seed: int, pipe: Connection) -> None:
    """Scores its plans on one core whenever it is asked to, until it is sent False."""
    os.sched_setaffinity(0, {core})
    scorer = CompiledScorer(*reference_problem(NUM_OPS, seed))
    scorer.score(plans[0][:1], plans[1][:1])
    pipe.send([])
    while pipe.recv():
        pipe.send(scorer.score(*plans).tolist())


def parallel(plans: Plans, repeats: int, seed: int) -> dict[str, float]:
    """One thread, two threads, and two pinned processes, on the same plans."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        print("two threads: not measured, this process may use one core")
        return {}
    problem, costs = reference_problem(NUM_OPS, seed)
    one, two = (CompiledScorer(problem, costs, threads) for threads in (1, 2))
    half = len(plans[0]) // 2
    context = multiprocessing.get_context("spawn")
    workers, pipes = [], []
    for core, rows in zip(cores, (slice(0, half), slice(half, None)), strict=True):
        ours, theirs = context.Pipe()
        part = (plans[0][rows], plans[1][rows])
        workers.append(context.Process(target=serve, args=(core, part, seed, theirs)))
        workers[-1].start()
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()

    def run_processes() -> list[int]:
        for pipe in pipes:
            pipe.send(True)
        return [makespan for pipe in pipes for makespan in pipe.recv()]

    try:
        rows = interleaved(
            (
                lambda: one.score(*plans).tolist(),
                lambda: two.score(*plans).tolist(),
                run_processes,
            ),
            repeats,
            time.perf_counter,
        )
    finally:
        for pipe in pipes:
            pipe.send(False)
        for worker in workers:
            worker.join()
    return {
        "two_threads_over_one": ratio(rows, 0, 1, "two threads over one"),
        "two_processes_over_one": ratio(rows, 0, 2, "two pinned processes over one thread"),
        "threads_over_processes": ratio(rows, 2, 1, "two threads over two pinned processes"),
    }


def growth(repeats: int, seed: int) -> dict[str, float]:
    """Cost per op of graphs from 100 to 100,000 ops; plain Python checks one plan of each."""
    runs: list[Run] = []
    for num_ops in GROWTH_SIZES:
        problem, costs = reference_problem(num_ops, seed)
        scorer = CompiledScorer(problem, costs)
        plans = random_plans(num_ops, GROWTH_OPS // num_ops, seed)
        scorer.score(plans[0][:1], plans[1][:1])
        python = PythonEngine(problem, costs)
        expected = python.makespan(plans[0][0].tolist(), plans[1][0].tolist())
        assert scorer.score(plans[0][:1], plans[1][:1]).tolist() == [expected], "Python disagrees"
        runs.append(lambda scorer=scorer, plans=plans: scorer.score(*plans).tolist())
    rows = []
    for repeat in range(repeats):
        order = range(len(runs)) if repeat % 2 == 0 else range(len(runs) - 1, -1, -1)
        seconds = {index: seconds_per_plan(runs[index], time.thread_time)[0] for index in order}
        rows.append(tuple(seconds[i] / num_ops for i, num_ops in enumerate(GROWTH_SIZES)))
    for num_ops, times in zip(GROWTH_SIZES, zip(*rows, strict=True), strict=True):
        print(f"{num_ops} ops: {min(times) * 1e9:.0f} to {max(times) * 1e9:.0f} ns per op")
    last = len(GROWTH_SIZES) - 1
    return {"cost_growth": ratio(rows, last, 0, f"{GROWTH_SIZES[last]} ops over {GROWTH_SIZES[0]}")}


SECOND_START = """
import sys, time
start = time.process_time()
from support.reference_dag import random_plans, reference_problem
from simulator.scorer import CompiledScorer
imported = time.process_time()
scorer = CompiledScorer(*reference_problem(100, 0))
plans = random_plans(100, 1, 0)
built = time.process_time()
scorer.score(*plans)
print(imported - start, time.process_time() - built)
"""


def second_start() -> dict[str, float]:
    """CPU seconds that a new process spends on the first score: compiled code comes from disk."""
    rows = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", SECOND_START],
            cwd=Path(__file__).parent,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        rows.append(tuple(float(number) for number in done.stdout.split()))
    imports, loads = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"second process start: imports {imports:.2f} s of CPU, first score {loads:.2f} s")
    return {"second_start_s": loads}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plans", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seed", type=int, default=REFERENCE_SEED)
    arguments = parser.parse_args()
    plans = random_plans(NUM_OPS, arguments.plans, arguments.seed)
    figures = {
        **single_core(plans, arguments.repeats, arguments.seed),
        **parallel(
            random_plans(NUM_OPS, PARALLEL_PLANS, arguments.seed), arguments.repeats, arguments.seed
        ),
        **growth(arguments.repeats, arguments.seed),
        **second_start(),
    }
    finish("simulator_rate", figures, TARGETS, seed=arguments.seed)


if __name__ == "__main__":
    main()
