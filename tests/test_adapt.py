"""Following a job that changes speed: corrections, triggers, adoption; stage III's bookkeeping."""

from dataclasses import replace

import numpy as np
import pytest

from doppler.adapt import AdaptiveJob, device_speeds
from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import Costs
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.plan import make_plan
from doppler.core.problem import Objective, Problem
from doppler.measure import Margins
from doppler.planners.learned import LearnedPlanner
from doppler.stage3 import tune_on_job
from simulator.compiled import CompiledRuntime
from simulator.costs.measured import CostEntry, CostTable

NUM_OPS = 6
OP_NS = 1_000_000


@pytest.fixture
def problem():
    """Six equal loop-carried ops, no edge between them, on two cores of one host."""
    ops = tuple(Op(kind="work", name=f"work{i}", outputs=(8,), flop=100) for i in range(NUM_OPS))
    edges = tuple(Edge(i, 0, i, 1) for i in range(NUM_OPS))
    devices = tuple(
        Device(name=f"core{i}", kind="cpu", parent="cpu", copy_engines=0, cores=(i,))
        for i in range(2)
    )
    links = (Link(src="core0", dst="core1"), Link(src="core1", dst="core0"))
    graph = DataflowGraph(name="six", ops=ops, edges=edges)
    cluster = Cluster(name="two", devices=devices, links=links)
    return Problem(graph=graph, cluster=cluster, objective=Objective.period)


@pytest.fixture
def table():
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
    return CostTable(entries=(entry,), dispatch_ns={("cpu", 1): 0}, provenance={})


class Machine:
    """A simulated machine whose cores have speeds of their own; runs plans like an executor."""

    def __init__(self, problem):
        self.slowness = [1, 1]
        self.runs = []
        self._problem = problem

    def run(self, plan, iterations):
        times = tuple(tuple(OP_NS * slow for slow in self.slowness) for _ in range(NUM_OPS))
        costs = Costs(op_ns=times, slowdown_permille=(0,) * NUM_OPS, dispatch_ns=(0, 0))
        self.runs.append(plan)
        return CompiledRuntime(costs).run(self._problem, plan, iterations)


def plan_with(problem, on_first):
    placement = tuple(int(op >= on_first) for op in range(NUM_OPS))
    return make_plan(problem, placement, (0,) * NUM_OPS, f"{on_first} on core0")


def best_split(problem, costs, present):
    loads = [max(k * costs.op_ns[0][0], (NUM_OPS - k) * costs.op_ns[0][1]) for k in range(7)]
    return plan_with(problem, int(np.argmin(loads)))


def test_device_speeds_are_ratios_of_all_work():
    before = Costs(op_ns=((10, 20), (30, 20)))
    after = Costs(op_ns=((20, 20), (60, 10)))
    assert device_speeds(before, after) == [2.0, 0.75]


def test_a_job_that_runs_as_predicted_keeps_its_plan(problem, table):
    machine = Machine(problem)
    job = AdaptiveJob(machine.run, problem, table, plan_with(problem, 3), best_split)
    for _ in range(3):
        job.step(6)
    assert not any(record.replanned for record in job.records)
    assert job.records[0].measured_ns == pytest.approx(3 * OP_NS)
    assert job.records[0].predicted_ns == 3 * OP_NS


def test_one_slow_window_is_an_accident_two_in_a_row_are_a_drift(problem, table):
    machine = Machine(problem)
    asked = []

    def replan(problem, costs, present):
        asked.append(len(machine.runs))
        return best_split(problem, costs, present)

    job = AdaptiveJob(machine.run, problem, table, plan_with(problem, 3), replan, drift=0.6)
    for slowness in (1, 2, 1, 1, 2, 2):
        machine.slowness = [1, slowness]
        job.step(6)
    assert asked == [6]


def test_a_core_that_becomes_slow_gets_less_work_and_gets_it_back(problem, table):
    machine = Machine(problem)
    job = AdaptiveJob(machine.run, problem, table, plan_with(problem, 3), best_split)
    machine.slowness = [1, 2]
    for _ in range(5):
        job.step(6)
    assert job.plan.source == "4 on core0"  # 4 x 1 = 2 x 2
    assert job.records[-1].measured_ns == pytest.approx(4 * OP_NS)
    # The fast core stays the bottleneck when the slow one recovers: the period does not move,
    # the speed of the device does.
    machine.slowness = [1, 1]
    for _ in range(6):
        job.step(6)
    assert job.plan.source == "3 on core0"
    assert job.records[-1].measured_ns == pytest.approx(3 * OP_NS)


def test_a_new_plan_that_is_no_better_is_not_adopted(problem, table):
    machine = Machine(problem)
    machine.slowness = [2, 2]
    job = AdaptiveJob(
        machine.run, problem, table, plan_with(problem, 3), lambda p, c, present: present
    )
    for _ in range(2):
        job.step(6)
    assert not any(record.replanned for record in job.records)
    assert job.records[0].measured_ns == pytest.approx(6 * OP_NS)


def test_stage_three_finds_the_better_split_and_counts_what_it_cost(problem, table):
    machine = Machine(problem)
    machine.slowness = [1, 2]
    start = plan_with(problem, 3)
    result = tune_on_job(
        machine.run,
        problem,
        table,
        LearnedPlanner(),
        start,
        num_windows=4,
        window_iterations=6,
        replan_budget=200,
        rng=np.random.default_rng(0),
    )
    assert sum(device == 0 for device in result.plan.placement) == 4
    own = [window.period_ns for window in result.windows if window.is_incumbent]
    assert own == pytest.approx([6 * OP_NS] * len(own))
    worse = [w for w in result.windows if w.period_ns > 6 * OP_NS + 1]
    assert result.worse_iterations == 6 * len(worse)
    assert result.iterations == 6 * len(result.windows) == 6 * len(machine.runs)
    assert 0 < result.simulations <= 200
    costs = result.table.costs(problem)
    assert costs.op_ns[0][1] > 1.5 * costs.op_ns[0][0]


def test_margins_lengthen_the_windows_of_stage_three_and_do_not_count(problem, table):
    """What a window does ahead in its margins is not its period: here they take no time."""
    machine = Machine(problem)
    lengths = []

    def run(plan, iterations):
        lengths.append(iterations)
        trace = machine.run(plan, iterations)
        last = trace.iteration_ends_ns()[iterations - 3]
        spans = (replace(s, end_ns=min(s.end_ns, last)) for s in trace.op_spans)
        return replace(
            trace,
            op_spans=tuple(replace(s, start_ns=min(s.start_ns, s.end_ns)) for s in spans),
        )

    result = tune_on_job(
        run,
        problem,
        table,
        LearnedPlanner(),
        plan_with(problem, 3),
        num_windows=4,
        window_iterations=6,
        replan_budget=200,
        rng=np.random.default_rng(0),
        margins=Margins(head=2, tail=2),
    )
    assert set(lengths) == {9}
    assert result.iterations == 9 * len(result.windows)
    own = [window.period_ns for window in result.windows if window.is_incumbent]
    assert own == pytest.approx([3 * OP_NS] * len(own))
