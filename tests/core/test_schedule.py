"""Schedules of both engines pass; a schedule with one fault is refused by the rule that it breaks.

The rules that need no costs have their faults in tests/simulator/test_traces_are_valid.py.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.errors import PlanError, TraceError
from doppler.core.graph import DataflowGraph, Edge, EdgeMode, Group, InputResidency, Op
from doppler.core.plan import make_plan
from doppler.core.problem import Problem
from doppler.core.schedule import check_schedule
from simulator.compiled import CompiledRuntime
from simulator.runtime import SimPyRuntime
from tests.strategies import cases


@settings(max_examples=200, deadline=None)
@given(case=cases())
def test_schedules_of_both_engines_pass(case):
    """Fails if an engine, the durations or the lives of tensors are changed by one unit."""
    for runtime in (SimPyRuntime(case.costs), CompiledRuntime(case.costs)):
        trace = runtime.run(case.problem, case.plan, case.iterations)
        check_schedule(case.problem, case.costs, case.plan, trace)


def hand_case(dispatch=(0, 0)):
    """x -> a, b; a -> c. Device 0 runs a (0-5), b (5-9); device 1 runs c, which reads a's 10 bytes.

    The transfer takes 10 ns (5-15), so c runs 15-18. Device 0 holds x (20 bytes) and the state of
    b's group (7); a's output (10) lives from 0 to the end of its send, b's (3) from 5 to 9: the
    peak is 20 + 7 + 10 + 3. Device 1 holds a's copy from 5 to 18 and c's output (2) from 15: 12.
    """
    graph = DataflowGraph(
        name="hand",
        ops=(
            Op(kind="input", name="x", outputs=(20,)),
            Op(kind="w", name="a", outputs=(10,)),
            Op(kind="w", name="b", outputs=(3,), group="g"),
            Op(kind="w", name="c", outputs=(2,)),
        ),
        edges=(Edge(0, 0, 1), Edge(0, 0, 2), Edge(1, 0, 3)),
        groups=(Group("g", 7),),
    )
    devices = tuple(Device(name=f"d{i}", kind="cpu", parent="p", memory_bytes=40) for i in range(2))
    cluster = Cluster(
        name="two",
        devices=devices,
        links=(Link(src="d0", dst="d1", bytes_per_s=10**9, buses=("bus",)),),
    )
    problem = Problem(graph=graph, cluster=cluster)
    plan = make_plan(problem, (0, 0, 0, 1), (0, 3, 2, 1), "hand")
    slow = (0, 0, 0, 500)
    costs = make_costs(problem, ((0, 0), (5, 5), (4, 4), (3, 3)), slow, dispatch)
    return problem, costs, plan, CompiledRuntime(costs).run(problem, plan, 1)


def span(trace, which, **changes):
    spans = tuple(replace(s, **changes) if s.op == which else s for s in trace.op_spans)
    return replace(trace, op_spans=tuple(sorted(spans, key=lambda s: (s.start_ns, s.device))))


def sent(trace, **changes):
    return replace(trace, transfers=(replace(trace.transfers[0], **changes),))


def test_the_hand_case_is_as_its_docstring_says():
    problem, costs, plan, trace = hand_case()
    assert trace.peak_bytes == (40, 12)
    assert trace.makespan_ns == 18
    check_schedule(problem, costs, plan, trace)


FAULTS = {
    "takes the time of its costs .3 ns., and op 3 .'c'": lambda t: span(t, 3, end_ns=17),
    "takes the time of its costs .4 ns., and op 2 .'b'": lambda t: span(t, 2, end_ns=10),
    "peak of device 'd0' .* .40 to 40 bytes., and the trace has 39": lambda t: replace(
        t, peak_bytes=(39, 12)
    ),
    "peak of device 'd1' .* .12 to 12 bytes., and the trace has 13": lambda t: replace(
        t, peak_bytes=(40, 13)
    ),
    "an op waits for input a@0": lambda t: span(t, 3, ready_ns=14, start_ns=14, end_ns=17),
    "was idle from 15 ns": lambda t: span(t, 3, start_ns=16, end_ns=19),
    "was idle from 5 ns": lambda t: span(t, 2, start_ns=6, end_ns=10),
    "runs one op at a time": lambda t: span(t, 2, start_ns=4, end_ns=8),
    "a transfer takes 10 ns": lambda t: span(
        sent(t, release_ns=14, arrival_ns=14), 3, ready_ns=14, start_ns=14, end_ns=17
    ),
    "starts when its buses are free": lambda t: span(
        sent(t, start_ns=6, release_ns=16, arrival_ns=16), 3, ready_ns=16, start_ns=16, end_ns=19
    ),
    "a send is requested when the producer ends": lambda t: sent(t, request_ns=4),
    "was not sent to device 1": lambda t: replace(t, transfers=()),
    "only tensors with a remote reader": lambda t: sent(t, op=2),
    "a tensor is sent once per destination": lambda t: replace(t, transfers=t.transfers * 2),
    "runs where it is placed": lambda t: span(t, 2, device=1),
    "did not run": lambda t: replace(t, op_spans=t.op_spans[:-1]),
    "runs once per iteration": lambda t: replace(t, op_spans=(*t.op_spans, t.op_spans[0])),
    "only ops of the graph run": lambda t: span(t, 3, op=0),
    "the trace is of cluster x": lambda t: replace(t, cluster_digest="x"),
}


@pytest.mark.parametrize("message", FAULTS)
def test_a_fault_is_refused_by_name(message):
    problem, costs, plan, trace = hand_case()
    with pytest.raises(TraceError, match=message):
        check_schedule(problem, costs, plan, FAULTS[message](trace))


def test_the_schedule_of_another_order_or_another_plan_is_refused():
    problem, costs, plan, trace = hand_case()
    other = make_plan(problem, (0, 0, 0, 1), (0, 2, 3, 1), "hand")
    with pytest.raises(TraceError, match="ready work goes by"):
        check_schedule(problem, costs, other, trace)
    held = make_plan(problem, (0, 0, 0, 1), (0, 3, 2, 1), "hand", ((2, 1),))
    with pytest.raises(TraceError, match="an op waits for the hold on b"):
        check_schedule(problem, costs, held, trace)
    with pytest.raises(PlanError, match="the plan was made for graph x"):
        check_schedule(problem, costs, replace(plan, graph_digest="x"), trace)


def test_dispatch_costs_leave_no_slack():
    """With 2 ns of dispatch a starts at 2; nothing may be later by one of them."""
    problem, costs, plan, trace = hand_case(dispatch=(2, 0))
    check_schedule(problem, costs, plan, trace)
    assert trace.op_spans[0].start_ns == 2
    with pytest.raises(TraceError, match="was idle from 7 ns"):
        check_schedule(problem, costs, plan, span(trace, 2, start_ns=10, end_ns=14))
    free = make_costs(problem, costs.op_ns, costs.slowdown_permille)
    with pytest.raises(TraceError, match="was idle from 0 ns"):
        check_schedule(problem, free, plan, trace)


def test_a_busy_sibling_slows_an_op():
    """c may start while b runs: 3 ns become 4; a time of 3 is then wrong."""
    problem, costs, plan, _ = hand_case()
    costs = make_costs(problem, ((0, 0), (5, 5), (20, 20), (3, 3)), costs.slowdown_permille)
    trace = SimPyRuntime(costs).run(problem, plan, 1)
    check_schedule(problem, costs, plan, trace)
    with pytest.raises(TraceError, match=r"takes the time of its costs .4 ns., and op 3"):
        check_schedule(problem, costs, plan, span(trace, 3, end_ns=18))


def test_memory_over_the_limit_is_refused():
    problem, costs, plan, trace = hand_case()
    devices = tuple(replace(d, memory_bytes=39) for d in problem.cluster.devices)
    small = replace(problem, cluster=replace(problem.cluster, devices=devices))
    plan = make_plan(small, plan.placement, plan.priority, "hand")
    trace = replace(trace, cluster_digest=small.cluster.digest)
    with pytest.raises(TraceError, match=r"holds at most 39 bytes, and 'd0' needs 40 when .*'b'"):
        check_schedule(small, costs, plan, trace)


def test_pinned_inputs_are_tensors_like_others():
    problem, costs, _, _ = hand_case()
    graph = replace(problem.graph, inputs=InputResidency.pinned)
    devices = tuple(replace(d, memory_bytes=400) for d in problem.cluster.devices)
    cluster = replace(problem.cluster, devices=devices)
    problem = Problem(graph=graph, cluster=cluster, pins={"x": "d0"})
    plan = make_plan(problem, (0, 0, 0, 1), (4, 3, 2, 1), "hand")
    trace = CompiledRuntime(costs).run(problem, plan, 3)
    check_schedule(problem, costs, plan, trace)


def schedule(ops, edges, placement, priority, times, streams=1, window=3, iterations=1):
    """A run on two devices that are joined by a zero-copy link without latency."""
    graph = DataflowGraph(name="g", ops=ops, edges=edges, window=window)
    devices = tuple(
        Device(name=f"d{i}", kind="cpu", parent=f"p{i}", num_streams=streams) for i in range(2)
    )
    links = (Link(src="d0", dst="d1"), Link(src="d1", dst="d0"))
    problem = Problem(graph=graph, cluster=Cluster(name="c", devices=devices, links=links))
    costs = make_costs(problem, tuple((time, time) for time in times))
    plan = make_plan(problem, placement, priority, "hand")
    return problem, costs, plan, SimPyRuntime(costs).run(problem, plan, iterations)


def works(count):
    return tuple(Op(kind="w", name=f"op{i}", outputs=(1,)) for i in range(count))


def test_what_becomes_ready_in_a_later_round_of_an_instant_is_not_overtaken():
    """At 5 op 1 ends and op 2 starts on device 1; op 3, more urgent, is ready a round later."""
    case = schedule(
        works(4), (Edge(0, 0, 3), Edge(1, 0, 2)), (0, 1, 1, 1), (0, 0, 1, 2), (5, 5, 4, 4)
    )
    trace = case[3]
    ready = {span.op: (span.ready_ns, span.start_ns) for span in trace.op_spans}
    assert (ready[2], ready[3]) == ((5, 5), (5, 9))
    check_schedule(*case)


def test_what_waits_for_an_op_of_no_time_is_not_overtaken():
    """At 5 op 1 (no time) and op 4 take both streams; ops 2 and 3 become ready a round later."""
    edges = (Edge(0, 0, 1), Edge(0, 0, 4), Edge(1, 0, 2), Edge(1, 0, 3))
    case = schedule(works(5), edges, (0,) * 5, (0, 9, 5, 4, 1), (5, 0, 3, 3, 3), streams=2)
    starts = {span.op: (span.ready_ns, span.start_ns) for span in case[3].op_spans}
    assert (starts[4], starts[2], starts[3]) == ((5, 5), (5, 5), (5, 8))
    check_schedule(*case)


def test_a_version_lives_as_long_as_it_is_read():
    """op 1 reads op 0's newest version for 10 ns, while op 0 makes a newer one every 2 ns."""
    edges = (Edge(0, 0, 1, 0, EdgeMode.latest),)
    case = schedule(works(2), edges, (0, 0), (1, 0), (2, 10), streams=2, window=4, iterations=6)
    problem, costs, plan, trace = case
    check_schedule(*case)
    peak = trace.peak_bytes[0]
    with pytest.raises(TraceError, match="the peak of device 'd0'"):
        check_schedule(problem, costs, plan, replace(trace, peak_bytes=(peak - 1, 0)))
