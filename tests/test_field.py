"""The field of stage III: what is raced, and that a race finds what no simulator has told."""

from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints

import numpy as np
import pytest

from doppler.api import plan_problem
from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import Costs
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.plan import make_plan
from doppler.core.problem import Problem
from doppler.field import depth_first, distinct, is_same, make_field
from doppler.planners import registry
from doppler.planners.cheap import CHEAP
from doppler.planners.learned import LearnedPlanner
from doppler.planners.registry import ENTRY_POINT_GROUP, get_planner
from doppler.stage3 import MAX_RACE_WINDOWS, MIN_RACE_WINDOWS, race_length, tune_on_job
from simulator.compiled import CompiledRuntime
from simulator.costs.measured import CostEntry, CostTable

CHAINS, LENGTH = 6, 4
OP_NS = 1_000_000


@pytest.fixture
def problem():
    """Six chains of four ops, numbered level by level, on two cores of one host."""
    count = CHAINS * LENGTH
    ops = tuple(Op(kind="work", name=f"work{i}", outputs=(8,), flop=100) for i in range(count))
    edges = tuple(Edge(i, 0, i + CHAINS) for i in range(count - CHAINS))
    devices = tuple(
        Device(name=f"core{i}", kind="cpu", parent="cpu", copy_engines=0, cores=(i,))
        for i in range(2)
    )
    links = (Link(src="core0", dst="core1"), Link(src="core1", dst="core0"))
    graph = DataflowGraph(name="chains", ops=ops, edges=edges)
    return Problem(graph=graph, cluster=Cluster(name="two", devices=devices, links=links))


@pytest.fixture
def costs(problem):
    return equal_costs(problem)


def equal_costs(problem):
    return Costs(
        op_ns=((OP_NS, OP_NS),) * problem.graph.num_ops,
        slowdown_permille=(0,) * problem.graph.num_ops,
        dispatch_ns=(0, 0),
    )


def by_level(problem, source="by level"):
    """Chains dealt out to the cores, first all first ops, then all second ones."""
    count = problem.graph.num_ops
    placement = tuple(op % CHAINS % 2 for op in range(count))
    return make_plan(problem, placement, tuple(-op for op in range(count)), source)


def is_depth_first(problem, plan):
    """True if each core ends a chain before it begins another."""
    trace = CompiledRuntime(equal_costs(problem)).run(problem, plan, 1)
    for device in range(2):
        spans = sorted((s for s in trace.op_spans if s.device == device), key=lambda s: s.start_ns)
        chains = [span.op % CHAINS for span in spans]
        if chains != sorted(chains, key=chains.index):
            return False
    return True


def unequal_costs(problem, seed):
    rng = np.random.default_rng(seed)
    times = rng.integers(OP_NS // 2, 2 * OP_NS, size=(problem.graph.num_ops, 2))
    return replace(equal_costs(problem), op_ns=tuple(map(tuple, times.tolist())))


def refuse_to_plan(problem, scorer, budget, rng):
    raise AssertionError("nobody has asked for this planner")


class CachedMachine:
    """A machine where an op is faster right after the op whose output it reads."""

    def __init__(self, problem):
        self._problem = problem

    def run(self, plan, iterations):
        costs = equal_costs(self._problem)
        trace = CompiledRuntime(costs).run(self._problem, plan, iterations)
        before = {}
        times = {}
        for span in sorted(trace.op_spans, key=lambda s: (s.iteration, s.start_ns)):
            is_warm = before.get(span.device) == span.op - CHAINS
            times.setdefault(span.op, OP_NS if is_warm else 2 * OP_NS)
            before[span.device] = span.op
        seen = Costs(
            op_ns=tuple((times[op],) * 2 for op in range(self._problem.graph.num_ops)),
            slowdown_permille=costs.slowdown_permille,
            dispatch_ns=costs.dispatch_ns,
        )
        return CompiledRuntime(seen).run(self._problem, plan, iterations)


def test_depth_first_keeps_placements_and_leaves_out_plans_with_holds(problem, costs):
    plan = by_level(problem)
    held = make_plan(problem, plan.placement, plan.priority, "held", holds=((0, 2),))
    found = depth_first(problem, costs, [plan, held])
    assert [made.source for made in found] == [
        "heft in depth-first order",
        "by level, depth first",
    ]
    assert found[1].placement == plan.placement
    assert not is_depth_first(problem, plan)
    assert all(is_depth_first(problem, made) for made in found)


def test_plans_are_the_same_if_they_run_alike(problem):
    plan = by_level(problem)
    count = problem.graph.num_ops
    scaled = make_plan(problem, plan.placement, tuple(9 * p for p in plan.priority), "other")
    held = make_plan(problem, plan.placement, plan.priority, "by level", holds=((0, 2),))
    other = make_plan(problem, plan.placement, tuple(range(count)), "by level")
    assert is_same(plan, scaled)
    assert not is_same(plan, held)
    assert not is_same(plan, other)
    assert distinct([plan, scaled, other], known=[other]) == [plan]


def test_own_plans_come_first_and_the_same_in_depth_first_order_is_among_the_rest(problem, costs):
    own = by_level(problem)
    field = make_field(problem, costs, costs, [own, own], [], size=30, calls=150, seed=0)
    assert field.plans[0] == own
    assert distinct(field.plans) == list(field.plans)
    assert not all(is_depth_first(problem, plan) for plan in field.plans)
    assert distinct(depth_first(problem, costs, [own]), known=field.plans) == []
    assert 0 < field.simulations <= 150
    none = make_field(problem, costs, costs, [own], [], size=30, calls=0, seed=0)
    assert (none.plans, none.simulations) == ((own,), 0)


@pytest.mark.parametrize("seed", [100, 101])
@pytest.mark.parametrize("size", [1, 40])
def test_what_a_cheap_planner_makes_is_in_the_field_whatever_it_simulates_at(problem, seed, size):
    """The costs that plans were made with and those of now lead to other plans."""
    planned, measured = unequal_costs(problem, 1), unequal_costs(problem, 2)
    own = by_level(problem)
    field = make_field(problem, planned, measured, [own], [], size=size, calls=200, seed=seed)
    for name in set(CHEAP) - {"dp_only"}:
        plan = plan_problem(problem, planned, name, 1000, seed).plan
        assert distinct([plan], known=field.plans) == [], name
    made = {plan.source for plan in field.plans}
    assert size > 1 or made - {own.source} <= set(CHEAP)
    assert field.simulations <= 200
    if size > 1:
        again = plan_problem(problem, measured, "etf", 1000, seed).plan
        assert distinct([again], known=field.plans) == []


def test_planners_of_other_packages_are_not_run_unasked(problem, costs, monkeypatch):
    point = EntryPoint("other", "test_field:refuse_to_plan", ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([point]))
    assert get_planner("other") is refuse_to_plan
    make_field(problem, costs, costs, [by_level(problem)], [], size=40, calls=200, seed=0)


def test_a_race_lasts_as_long_as_the_job_may_and_has_limits():
    assert race_length(1.0, 20e6) == 50
    assert race_length(1.0, 5e9) == MIN_RACE_WINDOWS
    assert race_length(100.0, 1e6) == MAX_RACE_WINDOWS


def test_stage_three_finds_the_order_that_the_cache_likes(problem):
    entry = CostEntry(
        kind="work",
        flop=100,
        device_kind="cpu",
        cores=1,
        median_ns=OP_NS,
        spread_ns=0,
        slowdown_permille=0,
        count=9,
    )
    machine = CachedMachine(problem)
    start = by_level(problem)
    result = tune_on_job(
        machine.run,
        problem,
        CostTable(entries=(entry,), dispatch_ns={("cpu", 1): 0}, provenance={}),
        LearnedPlanner(),
        start,
        num_windows=0,
        window_iterations=5,
        replan_budget=60,
        rng=np.random.default_rng(0),
    )
    assert is_depth_first(problem, result.plan)
    seen_ns = machine.run(result.plan, 1).makespan_ns
    assert seen_ns < 0.75 * machine.run(start, 1).makespan_ns
    assert result.ranking[0] == result.plan
    raced = [window for window in result.windows if window.purpose == "race"]
    assert len(raced) == result.race_windows <= MAX_RACE_WINDOWS
    assert result.iterations == 5 * len(result.windows)
    assert 2 * 10 < result.simulations <= 60  # planning again took 10 twice
