"""Standard task graphs: no planner is below a proven optimum, and every schedule is a valid one.

The check uses neither engine (`doppler.core.schedule`). Fails if an engine loses an edge, starts an
op before its inputs or runs two on one stream: seen with a simulator whose ops took 1 ns less.
"""

import csv
from pathlib import Path

import numpy as np
import pytest

from doppler.core.problem import Problem
from doppler.core.schedule import check_schedule
from doppler.graphs.stg import read_stg
from doppler.planners.base import Budget
from doppler.planners.registry import BUILT_IN, get_planner
from simulator.compiled import CompiledRuntime
from simulator.scorer import CompiledScorer
from tests.graphs.imports import equal_devices

FOLDER = Path(__file__).parent / "stg"
NAMES = sorted(path.name for path in FOLDER.glob("*.stg"))
# These place other things: workloads with data-parallel roles, and graphs of a dozen ops. The
# ablations are the learned planner with other policies, and slower.
UNSUITABLE = ("dp_only", "exhaustive", *(name for name in BUILT_IN if name[:8] == "learned_"))
PLANNERS = [name for name in sorted(BUILT_IN) if name not in UNSUITABLE]
# Those that train a network, predict or prove something meet every fifth graph (8 of 40), the
# others all: guided takes 3 s a graph for its predictions, the others 2 s and less.
FEW = ("exact", "exact_no_holds", "gdp", "guided", "learned", "placeto", "portfolio")
CALLS = 16


def optima():
    """(file, processors) -> proven optimum in units."""
    with (FOLDER / "optima.csv").open() as file:
        return {
            (row["file"], int(row["processors"])): int(row["optimal_makespan"])
            for row in csv.DictReader(file)
        }


OPTIMA = optima()


def check(planner, file, processors):
    """Gap to the optimum in units; 1 unit is 1000 ns."""
    tasks = read_stg(FOLDER / file, 1000)
    problem = Problem(graph=tasks.graph, cluster=equal_devices(processors))
    costs = tasks.costs(problem)
    scorer = CompiledScorer(problem, costs)
    plan = get_planner(planner)(problem, scorer, Budget(CALLS), np.random.default_rng(0))
    trace = CompiledRuntime(costs).run(problem, plan, 1)
    check_schedule(problem, costs, plan, trace)
    optimum_ns = 1000 * OPTIMA[file, processors]
    assert trace.makespan_ns >= optimum_ns, f"{planner} on {file} with {processors} processors"
    return trace.makespan_ns - optimum_ns


def rows(files):
    """Each file with one of its processor counts, taken in turn."""
    chosen = []
    for index, file in enumerate(files):
        counts = [count for name, count in OPTIMA if name == file]
        chosen.append((file, counts[index % len(counts)]))
    return chosen


def test_all_forty_graphs_are_here():
    assert len(NAMES) == 40
    assert {name for name, _ in OPTIMA} == set(NAMES)


@pytest.mark.parametrize("planner", PLANNERS)
def test_no_planner_is_below_an_optimum(planner):
    files = NAMES[::5] if planner in FEW else NAMES
    for file, processors in rows(files):
        check(planner, file, processors)


def test_the_optimum_is_reached():
    """A check that nothing reaches would prove little: HEFT solves most of the large graphs."""
    gaps = [check("heft", file, 8) for file in NAMES if file.startswith("100_")]
    assert sum(gap == 0 for gap in gaps) > len(gaps) // 2
