"""HEFT: a hand-worked schedule, gaps, streams, dead ends; and pure Python as its reference."""

import numpy as np
import pytest
from hypothesis import given, settings

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.errors import CapacityError
from doppler.core.graph import DataflowGraph, Edge, Group, Op
from doppler.core.plan import check_plan
from doppler.core.problem import Problem
from doppler.planners import heft
from doppler.planners.base import Budget
from doppler.planners.list_schedule import Fit, make_list_scheduler
from doppler.planners.mask import NO_UNIT
from tests.planners.slow_scorer import SlowScorer
from tests.random_problems import problems_with_costs


def problem_of(num_ops, edges, num_devices=2, latency=0, num_streams=1, groups=(), memory=1 << 40):
    devices = tuple(
        Device(name=f"d{i}", kind="cpu", parent="p", num_streams=num_streams, memory_bytes=memory)
        for i in range(num_devices)
    )
    links = tuple(
        Link(src=a.name, dst=b.name, latency_ns=latency)
        for a in devices
        for b in devices
        if a is not b
    )
    member = {op: name for name, _, ops in groups for op in ops}
    ops = tuple(
        Op(kind="k", name=f"o{i}", outputs=(1,), group=member.get(i)) for i in range(num_ops)
    )
    graph = DataflowGraph(
        name="g",
        ops=ops,
        edges=tuple(Edge(src, 0, dst) for src, dst in edges),
        groups=tuple(Group(name, size) for name, size, _ in groups),
    )
    return Problem(graph=graph, cluster=Cluster(name="c", devices=devices, links=links))


def scheduler(problem, op_ns, **options):
    return make_list_scheduler(problem, make_costs(problem, op_ns, **options))


def test_earliest_finish_weighs_speed_against_transfer():
    # o0 on d0 (3 against 9); o1 takes 10 there, or 2 + transfer 4 on d1: finish 13 against 9
    problem = problem_of(2, [(0, 1)], latency=4)
    schedule = scheduler(problem, ((3, 9), (10, 2))).heft()
    assert schedule.devices_U.tolist() == [0, 1]
    assert schedule.makespan_ns == 3 + 4 + 2
    assert schedule.priority_V.tolist() == [2, 1]


def test_insertion_uses_a_gap_that_append_leaves():
    # o0 (5) feeds o1 (9) on the other device; o2 (4) has the lowest rank and fits before o1
    problem = problem_of(3, [(0, 1)], latency=0)
    op_ns = ((5, 50), (90, 9), (60, 4))
    lists = scheduler(problem, op_ns)
    ranks_V = np.array([3.0, 2.0, 1.0])
    spans = [lists.heft(ranks_V, insertion=insertion).makespan_ns for insertion in (True, False)]
    assert spans == [14, 18]


def test_streams_run_side_by_side():
    problem = problem_of(2, [], num_devices=1, num_streams=2)
    assert scheduler(problem, ((5,), (7,))).heft().makespan_ns == 7


def test_dispatch_time_counts():
    problem = problem_of(2, [(0, 1)], num_devices=1)
    assert scheduler(problem, ((5,), (7,)), dispatch_ns=(2,)).heft().makespan_ns == 16


def test_a_group_goes_where_its_first_op_went():
    problem = problem_of(3, [(0, 2)], groups=[("g", 0, (0, 2))])
    schedule = scheduler(problem, ((1, 9), (5, 5), (90, 1))).heft()
    assert len(schedule.devices_U) == 2
    assert schedule.devices_U[0] == 0


def test_state_that_greedy_choices_strand_is_packed():
    # each op alone prefers d0, but 4 + 5 on it leave 6 nowhere to go
    groups = [("a", 4, (0,)), ("b", 5, (1,)), ("c", 6, (2,)), ("d", 5, (3,))]
    problem = problem_of(4, [], groups=groups, memory=10)
    op_ns = ((9, 90), (8, 80), (1, 2), (1, 2))
    lists = scheduler(problem, op_ns)
    assert lists.mask.is_legal(lists.heft().devices_U)


def test_tensors_are_spread_where_they_do_not_fit_together():
    # four tensors of one byte; one device may hold two
    problem = problem_of(4, [], memory=2)
    costs = make_costs(problem, ((1, 9),) * 4)
    plan = heft.plan(problem, SlowScorer(problem, costs), Budget(4), np.random.default_rng(0))
    assert sorted(plan.placement) == [0, 0, 0, 0] or sorted(plan.placement) == [0, 0, 1, 1]
    lists = make_list_scheduler(problem, costs)
    assert sorted(lists.heft(fit=Fit.all).devices_U.tolist()) == [0, 0, 1, 1]
    assert lists.heft().devices_U.tolist() == [0, 0, 0, 0]


def test_what_fits_nowhere_is_refused():
    problem = problem_of(2, [(0, 1)], memory=1)
    costs = make_costs(problem, ((1, 1), (1, 1)))
    with pytest.raises(CapacityError, match="fits in the memory"):
        heft.plan(problem, SlowScorer(problem, costs), Budget(4), np.random.default_rng(0))


def test_perturbed_is_never_worse_than_its_first_try():
    problem = problem_of(6, [(0, 2), (1, 2), (2, 3), (2, 4), (4, 5)], latency=3)
    costs = make_costs(problem, tuple((3 + i, 9 - i) for i in range(6)))
    scorer = SlowScorer(problem, costs)
    values = []
    for calls in (1, 10):
        plan = heft.perturbed(problem, scorer, Budget(calls), np.random.default_rng(0))
        values += scorer.score([plan.placement], [plan.priority])
    assert values[1] <= values[0]


def reference_heft(lists, problem, costs, insertion):
    """HEFT on fully linked clusters with one op at a time per stream, in plain Python."""
    graph, cluster = problem.graph, problem.cluster
    busy = [[[] for _ in range(device.num_streams)] for device in cluster.devices]
    unit_device, end = {}, {}
    for op in lists.order(lists.ranks_V).tolist():
        unit = int(lists.mask.unit_V[op])
        best = None
        for device in range(cluster.num_devices):
            if unit_device.get(unit, device) != device or not problem.allowed[op][device]:
                continue
            if not lists.mask.allowed_UD[unit, device]:
                continue
            ready = 0.0
            for edge_id in graph.in_edges[op]:
                edge = graph.edges[edge_id]
                if edge.distance or lists.mask.unit_V[edge.src] == NO_UNIT:
                    continue
                at = unit_device[int(lists.mask.unit_V[edge.src])]
                arrival = end[edge.src]
                if at != device:
                    link = cluster.link_table[at, device]
                    size = graph.ops[edge.src].outputs[edge.output]
                    per_byte = 1e9 / link.bytes_per_s if link.bytes_per_s else 0.0
                    arrival += link.latency_ns + size * per_byte
                ready = max(ready, arrival)
            time = costs.op_ns[op][device] + costs.dispatch_ns[device]
            for stream, slots in enumerate(busy[device]):
                start = ready
                for begin, stop in sorted(slots) if insertion else []:
                    if stop > start and start + time > begin:
                        start = max(start, stop)
                if not insertion:
                    start = max([ready, *(stop for _, stop in slots)])
                if best is None or start + time < best[0]:
                    best = (start + time, start, device, stream)
        finish, start, device, stream = best
        busy[device][stream].append((start, finish))
        end[op] = finish
        unit_device[unit] = device
    return max(end.values(), default=0.0), unit_device


@given(problems_with_costs(max_ops=10, max_devices=3))
@settings(max_examples=100, deadline=None)
def test_compiled_equals_the_reference(case):
    problem, costs = case
    lists = make_list_scheduler(problem, costs)
    for insertion in (True, False):
        makespan, unit_device = reference_heft(lists, problem, costs, insertion)
        found = lists.heft(insertion=insertion)
        assert found.makespan_ns == pytest.approx(makespan)
        assert dict(enumerate(found.devices_U.tolist())) == unit_device


@given(problems_with_costs(max_ops=10, max_devices=4, full_links=False))
@settings(max_examples=60, deadline=None)
def test_plans_are_legal_with_missing_links(case):
    problem, costs = case
    lists = make_list_scheduler(problem, costs)
    try:
        lists.mask.complete(lists.mask.prefer_device(0))
    except ValueError:
        return
    scorer = SlowScorer(problem, costs)
    check_plan(problem, heft.plan(problem, scorer, Budget(2), np.random.default_rng(0)))
    run = lists.critical_path(np.random.default_rng(1))
    assert lists.mask.is_legal(run.devices_U)


def test_given_ranks_against_the_edges_still_put_predecessors_first():
    problem = problem_of(4, [(0, 1), (1, 2), (3, 2)])
    lists = scheduler(problem, ((1, 1),) * 4)
    order = lists.order(np.array([0.0, 1.0, 5.0, 2.0])).tolist()
    assert sorted(order) == [0, 1, 2, 3]
    assert order.index(0) < order.index(1) < order.index(2)
    assert order.index(3) < order.index(2)
