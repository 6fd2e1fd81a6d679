"""Every nanosecond of a device has one name, and the right one."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler.core.errors import DopplerError
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.plan import make_plan
from doppler.core.problem import Problem
from doppler.core.trace import OpSpan, Trace
from doppler.report.attribution import Category, Window, attribute, steady_window


def _shares(row):
    return {(share.category.value, share.label): share.time_ns for share in row.shares}


@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 10**9), cut=st.tuples(st.integers(0, 60), st.integers(1, 80)))
def test_shares_sum_to_the_window(random_cases, seed, cut):
    problem, plan, trace = random_cases(seed)
    window = Window(begin_ns=cut[0], end_ns=cut[0] + cut[1], iterations=1)
    for row in attribute(problem, plan, trace, window):
        assert sum(share.time_ns for share in row.shares) == row.window_ns == cut[1]
        assert all(share.time_ns > 0 for share in row.shares)
        assert 0 <= row.hidden_ns <= row.time_ns(Category.compute)


@settings(deadline=None, max_examples=100)
@given(seed=st.integers(0, 10**9), spans=st.lists(st.tuples(*[st.integers(0, 40)] * 3), max_size=9))
def test_shares_sum_even_where_measured_times_are_inconsistent(random_cases, seed, spans):
    problem, plan, trace = random_cases(seed)
    odd = tuple(
        OpSpan(0, index, plan.placement[0], 0, ready, start, start + dur)
        for index, (ready, start, dur) in enumerate(spans)
    )
    broken = dataclasses.replace(trace, op_spans=odd)
    for row in attribute(problem, plan, broken, Window(begin_ns=3, end_ns=50, iterations=1)):
        assert sum(share.time_ns for share in row.shares) == 47


@settings(deadline=None, max_examples=100)
@given(seed=st.integers(0, 10**9), split=st.integers(1, 60))
def test_attribution_is_additive_over_windows(random_cases, seed, split):
    problem, plan, trace = random_cases(seed)
    parts = [(0, split), (split, 61), (0, 61)]
    rows = [
        attribute(problem, plan, trace, Window(begin_ns=begin, end_ns=end, iterations=1))
        for begin, end in parts
    ]
    for left, right, whole in zip(*rows, strict=True):
        for category in Category:
            both = left.time_ns(category) + right.time_ns(category)
            assert both == whole.time_ns(category)
        assert left.hidden_ns + right.hidden_ns == whole.hidden_ns


@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 10**9))
def test_in_a_simulated_run_dispatch_is_the_dispatch_cost_and_nothing_else(random_cases, seed):
    problem, plan, trace = random_cases(seed)
    end = max(span.end_ns for span in trace.op_spans) + 1
    rows = attribute(problem, plan, trace, Window(begin_ns=0, end_ns=end, iterations=1))
    cost = trace.op_spans[0].start_ns  # the first op of a run is ready at 0
    for device, row in enumerate(rows):
        if problem.cluster.devices[device].num_streams == 1:
            count = sum(span.device == device for span in trace.op_spans)
            assert row.time_ns(Category.dispatch) == count * cost


@pytest.fixture
def pair(clusters):
    """make (core0, 10 ns) -> use (core1, 4 ns) -> make one iteration later; links take 3 ns."""
    graph = DataflowGraph(
        name="pair",
        ops=(Op(kind="make", name="make", outputs=(1,)), Op(kind="use", name="use", outputs=(1,))),
        edges=(Edge(0, 0, 1), Edge(1, 0, 0, 1)),
    )
    problem = Problem(graph=graph, cluster=clusters(2, 3, None))
    return problem, make_plan(problem, (0, 1), (0, 0), "hand")


def test_a_hand_worked_ping_pong(pair, runner):
    # dispatch 1: make 1-11, arrives 14, use 15-19, arrives 22, make 23-33: a period of 22 ns.
    # core0 from 11: use ends at 19 (8 ns: a producer of the earlier iteration), flies 3 ns,
    # dispatch 1 ns. core1 from 19: make starts at 23 and ends at 33 (14 ns), flies 3, dispatch 1.
    problem, plan = pair
    trace = runner(problem, plan, [10, 4], 6, 1)
    left, right = attribute(problem, plan, trace, Window(begin_ns=33, end_ns=77, iterations=2))
    assert _shares(left) == {
        ("compute", "make"): 20,
        ("dispatch", ""): 2,
        ("exposed", "use from core1"): 6,
        ("iteration_end", "use on core1"): 16,
    }
    assert _shares(right) == {
        ("compute", "use"): 8,
        ("dispatch", ""): 2,
        ("exposed", "make from core0"): 6,
        ("producer", "make on core0"): 28,
    }
    assert left.hidden_ns == right.hidden_ns == 0


def test_a_slow_consumer_shows_as_back_pressure_and_hides_communication(clusters, runner):
    # make 2 ns, use 10 ns, window 3: make runs ahead, then waits for credits of `use`.
    graph = DataflowGraph(
        name="pipe",
        ops=(Op(kind="make", name="make", outputs=(1,)), Op(kind="use", name="use")),
        edges=(Edge(0, 0, 1),),
    )
    problem = Problem(graph=graph, cluster=clusters(2, 1, None))
    plan = make_plan(problem, (0, 1), (0, 0), "hand")
    trace = runner(problem, plan, [2, 10], 10)
    left, right = attribute(problem, plan, trace, Window(begin_ns=43, end_ns=63, iterations=2))
    assert _shares(left) == {("compute", "make"): 4, ("back_pressure", "use on core1"): 16}
    assert _shares(right) == {("compute", "use"): 20}
    assert right.hidden_ns == 2  # two arrivals of 1 ns while `use` runs


def test_a_device_without_work_says_so(clusters, runner):
    graph = DataflowGraph(name="one", ops=(Op(kind="a", name="a"),))
    problem = Problem(graph=graph, cluster=clusters(2, 1, None))
    plan = make_plan(problem, (0,), (0,), "hand")
    trace = runner(problem, plan, [5], 3)
    rows = attribute(problem, plan, trace, Window(begin_ns=0, end_ns=20, iterations=3))
    assert _shares(rows[0]) == {("compute", "a"): 15, ("no_work", ""): 5}
    assert _shares(rows[1]) == {("no_work", ""): 20}


def test_copies_on_the_senders_stream_are_copy_time(clusters, runner):
    # 7 bytes at 1 byte/ns on the stream: make 0-2, copy 2-9, make again 9-11, copy 11-18, ...
    graph = DataflowGraph(
        name="copy",
        ops=(Op(kind="make", name="make", outputs=(7,)), Op(kind="use", name="use")),
        edges=(Edge(0, 0, 1),),
    )
    problem = Problem(graph=graph, cluster=clusters(2, 0, 1_000_000_000, copy_engines=0))
    plan = make_plan(problem, (0, 1), (0, 0), "hand")
    trace = runner(problem, plan, [2, 1], 6)
    left, _ = attribute(problem, plan, trace, Window(begin_ns=0, end_ns=18, iterations=2))
    assert _shares(left) == {("compute", "make"): 4, ("copy", ""): 14}


def test_of_two_streams_the_op_that_started_first_counts(clusters):
    graph = DataflowGraph(name="two", ops=(Op(kind="a", name="a"), Op(kind="b", name="b")))
    problem = Problem(graph=graph, cluster=clusters(1, 0, None, num_streams=2))
    plan = make_plan(problem, (0, 0), (0, 0), "hand")
    trace = Trace(
        graph_digest=graph.digest,
        cluster_digest=problem.cluster.digest,
        source="hand",
        runtime="executor",
        iterations=1,
        op_spans=(OpSpan(0, 0, 0, 0, 0, 0, 10), OpSpan(1, 0, 0, 1, 4, 4, 15)),
        transfers=(),
        peak_bytes=(0,),
    )
    (row,) = attribute(problem, plan, trace, Window(begin_ns=0, end_ns=15, iterations=1))
    assert _shares(row) == {("compute", "a"): 10, ("compute", "b"): 5}


def test_the_steady_window_leaves_out_start_and_tail(pair, runner):
    problem, plan = pair
    trace = runner(problem, plan, [10, 4], 12)
    ends = trace.iteration_ends_ns()
    window = steady_window(trace, tail=3)
    assert (window.begin_ns, window.end_ns, window.iterations) == (ends[4], ends[8], 4)


def test_a_short_trace_has_no_steady_window(pair, runner):
    problem, plan = pair
    with pytest.raises(DopplerError, match="two iterations before the last 3, and the trace has 4"):
        steady_window(runner(problem, plan, [1, 1], 4), tail=3)


def test_an_empty_window_is_refused(pair, runner):
    problem, plan = pair
    trace = runner(problem, plan, [1, 1], 4)
    with pytest.raises(DopplerError, match=r"ends after its begin, and it is \[5, 5\) ns"):
        attribute(problem, plan, trace, Window(begin_ns=5, end_ns=5, iterations=1))
