"""Every trace of both engines obeys every rule; a trace with one fault is refused by name."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.errors import TraceError
from doppler.core.graph import DataflowGraph, Edge, EdgeMode, Op
from doppler.core.plan import make_plan
from doppler.core.problem import Problem
from doppler.core.trace import OpSpan, Trace, TransferSpan
from doppler.core.validate import check_trace
from simulator.compiled import CompiledRuntime
from simulator.runtime import SimPyRuntime
from tests.strategies import Case, cases


@settings(max_examples=200, deadline=None)
@given(case=cases())
def test_traces_of_both_engines_are_valid(case: Case) -> None:
    for runtime in (SimPyRuntime(case.costs), CompiledRuntime(case.costs)):
        trace = runtime.run(case.problem, case.plan, case.iterations)
        check_trace(case.problem, case.plan, trace, max(case.costs.dispatch_ns))


def hand_case() -> tuple[Problem, Trace]:
    """Device 0 runs a, e, c; device 1 runs b, which reads a and e over one bus; c reads a `latest`.

    Spans, in the order of the trace (start to end): 0 a@0 0-5, 1 e@0 5-6, 2 c@0 6-8, 3 a@1 8-13,
    4 e@1 13-14, 5 c@1 14-16, 6 b@0 14-17, 7 b@1 22-25. Transfers (start to arrival): 0 a@0 5-10,
    1 e@0 9-14, 2 a@1 13-18, 3 e@1 17-22.
    """
    names = ("a", "b", "c", "e")
    graph = DataflowGraph(
        name="hand",
        window=2,
        ops=tuple(Op(kind="w", name=n, outputs=(4,) if n in "ae" else ()) for n in names),
        edges=(Edge(0, 0, 1), Edge(0, 0, 2, 1, EdgeMode.latest), Edge(3, 0, 1)),
    )
    cluster = Cluster(
        name="two",
        devices=tuple(Device(name=f"d{i}", kind="cpu", parent="p") for i in range(2)),
        links=(Link(src="d0", dst="d1", latency_ns=1, bytes_per_s=10**9, buses=("bus",)),),
    )
    problem = Problem(graph=graph, cluster=cluster)
    plan = make_plan(problem, (0, 1, 0, 0), (3, 0, 1, 2), "hand")
    costs = make_costs(problem, ((5, 5), (3, 3), (2, 2), (1, 1)))
    return problem, SimPyRuntime(costs).run(problem, plan, 2)


def op(index: int, **changes: object) -> tuple[str, int, dict[str, object]]:
    return ("op_spans", index, changes)


def sent(index: int, **changes: object) -> tuple[str, int, dict[str, object]]:
    return ("transfers", index, changes)


def broken(trace: Trace, changes: tuple[tuple[str, int, dict[str, object]], ...]) -> Trace:
    for field, index, values in changes:
        spans: list[OpSpan | TransferSpan] = list(getattr(trace, field))
        spans[index] = replace(spans[index], **values)
        trace = replace(trace, **{field: tuple(spans)})
    return trace


FAULTS = {
    "ran twice": (op(3, iteration=0),),
    "only ops of the graph run": (op(3, op=9),),
    "runs where it is placed": (op(3, device=1),),
    "a stream is one of its device": (op(3, stream=1),),
    "come in this order, and op 0": (op(3, end_ns=7),),
    "waits for its previous iteration": (op(4, ready_ns=5),),
    "waits for input e@1": (op(7, ready_ns=21),),
    "waits for the credit of c@0": (op(3, ready_ns=7),),
    "is ready when its last cause is there": (op(7, ready_ns=23, start_ns=23, end_ns=26),),
    "one version per `latest` edge": (op(5, versions=()),),
    "reads version 0 of a or a newer one": (op(5, versions=(-1,)),),
    "reads the newest version": (op(5, versions=(0,)),),
    "read after its arrival": (op(2, versions=(1,)),),
    "one op at a time": (op(4, start_ns=12),),
    "was idle from 22 ns": (op(7, start_ns=23, end_ns=26),),
    "started at 13 before op 3": (
        op(5, start_ns=13, end_ns=15),
        op(4, start_ns=15, end_ns=16),
        sent(3, request_ns=16),
    ),
    "only tensors with a remote reader": (sent(0, op=2),),
    "was twice": (sent(2, iteration=0, request_ns=5),),
    "the producer's device sends": (sent(0, src=1),),
    "requested when the producer ends": (sent(0, request_ns=4),),
    "request, start, release, arrival": (sent(0, release_ns=4),),
    "takes 4 ns and a latency of 1 ns": (sent(0, release_ns=8),),
    "starts when its buses are free": (
        sent(3, start_ns=18, release_ns=22, arrival_ns=23),
        op(7, ready_ns=23, start_ns=23, end_ns=26),
    ),
}


@pytest.mark.parametrize("message", FAULTS)
def test_a_fault_is_named(message: str) -> None:
    problem, trace = hand_case()
    plan = make_plan(problem, (0, 1, 0, 0), (3, 0, 1, 2), "hand")
    check_trace(problem, plan, trace)
    with pytest.raises(TraceError, match=message):
        check_trace(problem, plan, broken(trace, FAULTS[message]))


def test_missing_spans_and_foreign_traces_are_named() -> None:
    problem, trace = hand_case()
    plan = make_plan(problem, (0, 1, 0, 0), (3, 0, 1, 2), "hand")
    for message, fault in (
        ("op 1 .'b'. of iteration 1 did not run", {"op_spans": trace.op_spans[:-1]}),
        ("output 0 of op 3 .'e'. of iteration 1 was not sent", {"transfers": trace.transfers[:-1]}),
        ("the trace is of graph x", {"graph_digest": "x"}),
        ("one entry per device", {"peak_bytes": (0,)}),
    ):
        with pytest.raises(TraceError, match=message):
            check_trace(problem, plan, replace(trace, **fault))


def test_priorities_and_holds_are_checked_against_the_plan() -> None:
    problem, trace = hand_case()
    with pytest.raises(TraceError, match="goes by"):
        check_trace(problem, make_plan(problem, (0, 1, 0, 0), (3, 0, 2, 1), "hand"), trace)
    held = make_plan(problem, (0, 1, 0, 0), (3, 0, 1, 2), "hand", ((2, 3),))
    with pytest.raises(TraceError, match="waits for the hold on c"):
        check_trace(problem, held, trace)


def test_a_bus_serves_in_order() -> None:
    """Swaps the two transfers that wait for the bus at the same time: e@0 (6) and x@0 (7)."""
    graph = DataflowGraph(
        name="fifo",
        ops=tuple(Op(kind="w", name=n, outputs=(4,) if n != "b" else ()) for n in "aexb"),
        edges=tuple(Edge(src, 0, 3) for src in range(3)),
    )
    problem = replace(hand_case()[0], graph=graph)
    plan = make_plan(problem, (0, 0, 0, 1), (3, 2, 1, 0), "hand")
    costs = make_costs(problem, ((5, 5), (1, 1), (1, 1), (1, 1)))
    trace = SimPyRuntime(costs).run(problem, plan, 1)
    first, second = (
        {"start_ns": 9, "release_ns": 13, "arrival_ns": 14},
        {
            "start_ns": 13,
            "release_ns": 17,
            "arrival_ns": 18,
        },
    )
    check_trace(problem, plan, broken(trace, (sent(1, **first), sent(2, **second))))
    with pytest.raises(TraceError, match="was overtaken"):
        check_trace(problem, plan, broken(trace, (sent(1, **second), sent(2, **first))))
