"""Bounds: hand-worked values, and never above what the best of all plans needs."""

import dataclasses
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.errors import CapacityError
from doppler.core.graph import DataflowGraph, Edge, Group, Op
from doppler.core.problem import Objective, Problem
from doppler.planners import exhaustive
from doppler.planners.base import Budget
from doppler.planners.bounds import ALL_BOUNDS, QUICK_BOUNDS, Bound, lower_bounds
from doppler.planners.cycle_ratio import max_cycle_ratio
from doppler.planners.mask import make_mask
from simulator.compiled import CompiledRuntime
from simulator.scorer import CompiledScorer
from tests.planners.slow_scorer import ITERATIONS, SlowScorer
from tests.random_problems import problems_with_costs


def problem_of(num_ops, edges=(), num_devices=2, objective=Objective.makespan, window=3):
    devices = tuple(Device(name=f"d{i}", kind="cpu", parent="p") for i in range(num_devices))
    links = tuple(Link(src=a.name, dst=b.name) for a in devices for b in devices if a is not b)
    graph = DataflowGraph(
        name="g",
        ops=tuple(Op(kind="k", name=f"o{i}", outputs=(1,)) for i in range(num_ops)),
        edges=tuple(Edge(src, 0, dst, distance) for src, dst, distance in edges),
        window=window,
    )
    cluster = Cluster(name="c", devices=devices, links=links)
    return Problem(graph=graph, cluster=cluster, objective=objective)


def test_area_on_equal_devices_is_work_over_devices():
    problem = problem_of(3)
    bounds = lower_bounds(problem, make_costs(problem, ((4, 4), (4, 4), (5, 5))))
    assert (bounds.area_ns, bounds.critical_path_ns, bounds.group_ns) == (7, 5, 5)
    assert bounds.best_ns == 7


def test_area_on_unequal_devices_gives_each_op_its_device():
    # op 0 is fast on d0 and op 1 on d1: (2 + 2) / 2 with weights 1, 1
    problem = problem_of(2)
    bounds = lower_bounds(problem, make_costs(problem, ((2, 9), (9, 2))))
    assert bounds.area_ns == 2
    # d0 is twice as fast: T = x 6, T = (1 - x) 12 for both ops together: 3 * 2 * 2/3 = 4
    bounds = lower_bounds(problem, make_costs(problem, ((3, 6), (3, 6))))
    assert bounds.area_ns == 4


def with_memory(problem, memory_bytes):
    devices = tuple(
        dataclasses.replace(device, memory_bytes=memory_bytes) for device in problem.cluster.devices
    )
    cluster = dataclasses.replace(problem.cluster, devices=devices)
    return dataclasses.replace(problem, cluster=cluster)


def test_memory_moves_work_to_the_slow_device():
    # Two units of 10 bytes of state, 2 on d0 and 6 on d1; d0 holds one of them, so the other's 6
    # run on d1. Without memory all run on d0 for 4 or on both for less: (2 + 2) * 3 / 4 = 3.
    graph = DataflowGraph(
        name="g",
        ops=tuple(Op(kind="k", name=f"o{i}", group=f"g{i}") for i in range(2)),
        groups=(Group("g0", 10), Group("g1", 10)),
    )
    devices = tuple(
        Device(name=f"d{i}", kind="cpu", parent="p", memory_bytes=memory)
        for i, memory in enumerate((10, 20))
    )
    problem = Problem(graph=graph, cluster=Cluster(name="c", devices=devices))
    bounds = lower_bounds(problem, make_costs(problem, ((2, 6), (2, 6))), QUICK_BOUNDS)
    assert (bounds.area_ns, bounds.memory_ns) == (3, 6)
    assert bounds.best is Bound.memory


def test_memory_keeps_an_op_off_a_device_that_cannot_hold_its_tensors():
    graph = DataflowGraph(
        name="g",
        ops=(Op(kind="k", name="a", outputs=(8,)), Op(kind="k", name="b", outputs=(4,))),
        edges=(Edge(0, 0, 1),),
    )
    devices = tuple(
        Device(name=f"d{i}", kind="cpu", parent="p", memory_bytes=memory)
        for i, memory in enumerate((11, 12))
    )
    links = tuple(Link(src=a, dst=b) for a, b in (("d0", "d1"), ("d1", "d0")))
    problem = Problem(graph=graph, cluster=Cluster(name="c", devices=devices, links=links))
    bounds = lower_bounds(problem, make_costs(problem, ((1, 1), (1, 9))), [Bound.memory])
    # b needs 8 + 4 bytes, so it takes its 9 on d1; a may run on d0.
    assert bounds.memory_ns == 9
    assert bounds.area_ns is None
    assert bounds.best is Bound.memory


def test_only_the_bounds_that_are_named_are_worked_out():
    problem = problem_of(2, [(0, 1, 0)])
    costs = make_costs(problem, ((4, 4), (6, 6)))
    assert lower_bounds(problem, costs, [Bound.group]).by_name == {Bound.group: 6}
    none = lower_bounds(problem, costs, [])
    assert (none.best, none.best_ns) == (None, 0)


def test_path_takes_the_fastest_device_and_leaves_the_first_dispatch_out():
    problem = problem_of(2, [(0, 1, 0)])
    costs = make_costs(problem, ((5, 7), (9, 2)), dispatch_ns=(1, 1))
    assert lower_bounds(problem, costs).critical_path_ns == 5 + 1 + 2


def test_period_circles_worked_by_hand():
    # o0 -> o1 at distance 0, back at distance 2: (4 + 6) / 2; each alone: 4, 6
    edges = [(0, 1, 0), (1, 0, 2)]
    problem = problem_of(2, edges, objective=Objective.period)
    costs = make_costs(problem, ((4, 4), (6, 6)))
    assert lower_bounds(problem, costs).critical_path_ns == 6
    problem = problem_of(2, [(0, 1, 0), (1, 0, 1)], objective=Objective.period)
    assert lower_bounds(problem, costs).critical_path_ns == 10


def test_back_pressure_is_a_circle():
    # a window of 1 lets one iteration in: producer and consumer in turn
    problem = problem_of(2, [(0, 1, 0)], objective=Objective.period, window=1)
    costs = make_costs(problem, ((4, 4), (6, 6)))
    assert lower_bounds(problem, costs).critical_path_ns == 10


@pytest.mark.parametrize("distance", [0, 2])
def test_p95_has_the_bounds_of_the_run_without_noise(distance):
    """Of an acyclic graph they are a makespan's, first dispatch left out; of a loop a period's."""
    edges = [(0, 1, 0), (1, 0, distance)] if distance else [(0, 1, 0)]
    tail = problem_of(2, edges, objective=Objective.p95)
    median = Objective.period if distance else Objective.makespan
    costs = make_costs(tail, ((4, 4), (6, 6)), dispatch_ns=(1, 1))
    bounds = lower_bounds(tail, costs, ALL_BOUNDS, effort=1.0)
    assert bounds == lower_bounds(dataclasses.replace(tail, objective=median), costs, ALL_BOUNDS)
    assert bounds.critical_path_ns == (7 if distance else 4 + 1 + 6)


def brute_force_ratio(weights, distances):
    best = Fraction(0)
    arcs = {}
    for src, dst in distances:
        arcs.setdefault(src, []).append(dst)

    def walk(path):
        nonlocal best
        for after in arcs.get(path[-1], ()):
            if after == path[0]:
                pairs = list(zip(path, [*path[1:], path[0]], strict=True))
                total = sum(distances[pair] for pair in pairs)
                best = max(best, Fraction(sum(weights[node] for node in path), total))
            elif after > path[0] and after not in path:
                walk([*path, after])

    for first in range(len(weights)):
        walk([first])
    return best


@pytest.mark.parametrize("seed", range(60))
def test_cycle_ratio_equals_brute_force(seed):
    rng = random.Random(seed)
    count = rng.randint(1, 6)
    weights = [rng.randint(0, 20) for _ in range(count)]
    distances = {}
    for _ in range(rng.randint(0, 12)):
        src, dst = rng.randrange(count), rng.randrange(count)
        distances[src, dst] = rng.randint(0 if src < dst else 1, 3)
    assert max_cycle_ratio(weights, distances) == brute_force_ratio(weights, distances)


def num_plans(problem):
    mask = make_mask(problem)
    options = math.prod(int(row.sum()) for row in mask.allowed_UD)
    return options * math.factorial(len(problem.graph.placeable))


@given(problems_with_costs(cyclic=False, max_ops=6, max_devices=3))
@settings(max_examples=60, deadline=None)
def test_makespan_bounds_are_never_above_the_best_of_all_plans(case):
    problem, costs = case
    assume(problem.graph.placeable and num_plans(problem) <= 1500)
    scorer = SlowScorer(problem, costs)
    best = exhaustive.plan(problem, scorer, Budget(1500), np.random.default_rng(0))
    (value,) = scorer.score([best.placement], [best.priority])
    bounds = lower_bounds(problem, costs, ALL_BOUNDS, effort=1.0)
    assert set(bounds.by_name) == set(ALL_BOUNDS)
    assert max(bounds.by_name.values()) == bounds.best_ns <= value


@given(problems_with_costs(cyclic=False, max_ops=5, max_devices=2), st.sampled_from([30, 50, 80]))
@settings(max_examples=40, deadline=None)
def test_makespan_bounds_hold_where_memory_is_short(case, memory_bytes):
    problem, costs = case
    assume(problem.graph.placeable and num_plans(problem) <= 500)
    problem = with_memory(problem, memory_bytes)
    scorer = SlowScorer(problem, costs)
    try:
        best = exhaustive.plan(problem, scorer, Budget(500), np.random.default_rng(0))
    except CapacityError:
        return
    (value,) = scorer.score([best.placement], [best.priority])
    assert lower_bounds(problem, costs, ALL_BOUNDS, effort=1.0).best_ns <= value


@given(problems_with_costs(cyclic=True, max_ops=5, max_devices=2))
@settings(max_examples=60, deadline=None)
def test_exact_periods_are_never_below_the_bounds(case):
    problem, costs = case
    assume(problem.graph.placeable and num_plans(problem) <= 1500)
    scorer = CompiledScorer(problem, costs)
    best = exhaustive.plan(problem, scorer, Budget(1500), np.random.default_rng(0))
    period = CompiledRuntime(costs).period(problem, best, 60)
    if period.exact:
        bounds = lower_bounds(problem, costs, ALL_BOUNDS, effort=1.0)
        assert bounds.best_ns <= -(-period.time_ns // period.iterations)


@given(problems_with_costs(cyclic=True, max_ops=5, max_devices=2))
@settings(max_examples=60, deadline=None)
def test_period_bounds_hold_for_the_whole_run(case):
    problem, costs = case
    assume(problem.graph.placeable)
    rng = random.Random(problem.graph.num_ops)
    mask = make_mask(problem)
    devices = mask.complete(mask.prefer_random(np.random.default_rng(rng.randint(0, 99))))
    one_pass = Problem(
        graph=problem.graph,
        cluster=problem.cluster,
        pins=problem.pins,
        objective=Objective.period,
    )
    value = SlowScorer(one_pass, costs).makespan_ns(
        mask.placement(devices).tolist(), [0] * problem.graph.num_ops
    )
    bounds = lower_bounds(problem, costs)
    # Circles of up to `num_ops` windows are cut off at both ends of a run.
    whole_turns = ITERATIONS - 2 * problem.graph.window
    assert value >= bounds.best_ns * whole_turns - bounds.best_ns
    assert value >= (bounds.area_ns - 1) * ITERATIONS - max(costs.dispatch_ns)
