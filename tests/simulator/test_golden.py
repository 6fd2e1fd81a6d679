"""Traces worked out by hand; both engines must give exactly these numbers.

The examples of docs/simulator.md, one per rule, are the rest of this set (`test_docs`). Seen to
fail: versions never freed, interference that counts the device itself, no latency.
"""

from dataclasses import replace

import pytest

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import Costs, make_costs
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Objective, Problem
from doppler.core.trace import OpSpan, Period, Trace, TransferSpan
from doppler.core.validate import check_trace
from simulator.compiled import CompiledRuntime
from simulator.runtime import SimPyRuntime
from simulator.scorer import CompiledScorer


def problem_of(
    names: str,
    edges: tuple[tuple[int, int], ...],
    num_devices: int,
    num_bytes: int,
    latency_ns: int = 0,
) -> Problem:
    """Ops with one output each; a bus per ordered pair of devices, one byte per nanosecond."""
    devices = [f"d{index}" for index in range(num_devices)]
    return Problem(
        graph=DataflowGraph(
            name="golden",
            ops=tuple(Op(kind="w", name=name, outputs=(num_bytes,)) for name in names),
            edges=tuple(Edge(src, 0, dst) for src, dst in edges),
        ),
        cluster=Cluster(
            name="golden",
            devices=tuple(Device(name=name, kind="cuda", parent=name) for name in devices),
            links=tuple(
                Link(
                    src=a,
                    dst=b,
                    latency_ns=latency_ns,
                    bytes_per_s=1_000_000_000,
                    buses=(f"{a}{b}",),
                )
                for a in devices
                for b in devices
                if a != b
            ),
        ),
    )


def uniform(problem: Problem, times: tuple[int, ...]) -> Costs:
    return make_costs(problem, tuple((ns,) * problem.cluster.num_devices for ns in times))


def both(problem: Problem, costs: Costs, plan: Plan, iterations: int = 1) -> Trace:
    trace = SimPyRuntime(costs).run(problem, plan, iterations)
    compiled = CompiledRuntime(costs).run(problem, plan, iterations)
    assert replace(compiled, runtime="simpy") == trace
    check_trace(problem, plan, trace)
    return trace


def test_a_diamond_on_two_devices() -> None:
    """a feeds b and c, both feed d; a, b, d on device 0, c on device 1.

    t = 0   a starts (10)
    t = 10  a ends; b starts (20) on device 0; a's output of 6 bytes takes bus 01
    t = 16  the bus is free; 4 ns of latency hold nothing
    t = 20  a's output is on device 1; c starts (5)
    t = 25  c ends; its output takes bus 10
    t = 30  b ends; d waits for c's output
    t = 31  the bus is free
    t = 35  c's output is on device 0; d starts (7)
    t = 42  d ends

    Memory of device 0: a's 6 bytes while a runs; b allocates its own at 10: 12; at 16 a's send has
    left but b still reads; c's copy takes its bytes from 25 on: 18; at 30 b ends and a's output is
    freed; at 35 d allocates: b, c and d: 18. Device 1: a's copy from 10, c's output from 20: 12.
    """
    problem = problem_of("abcd", ((0, 1), (0, 2), (1, 3), (2, 3)), 2, 6, latency_ns=4)
    plan = make_plan(problem, (0, 0, 1, 0), (0, 0, 0, 0), "hand")
    trace = both(problem, uniform(problem, (10, 20, 5, 7)), plan)
    assert trace.op_spans == (
        OpSpan(0, 0, 0, 0, 0, 0, 10),
        OpSpan(1, 0, 0, 0, 10, 10, 30),
        OpSpan(2, 0, 1, 0, 20, 20, 25),
        OpSpan(3, 0, 0, 0, 35, 35, 42),
    )
    assert trace.transfers == (
        TransferSpan(0, 0, 0, 0, 1, 10, 10, 16, 20),
        TransferSpan(2, 0, 0, 1, 0, 25, 25, 31, 35),
    )
    assert trace.peak_bytes == (18, 12)
    assert trace.makespan_ns == 42


@pytest.mark.parametrize(("transfer_ns", "spread", "together"), [(10, 13, 9), (90, 93, 9)])
def test_eight_sources_and_a_join(transfer_ns: int, spread: int, together: int) -> None:
    """Two unit sources on each of four devices and a join on device 0, against all on one device.

    The case has free links, so the transfer time is all latency: outputs without bytes hold their
    bus for no time. Spread: the sources end at 1 and 2, the last outputs arrive at 2 + transfer,
    the join takes 1. Together: 8 sources and the join, 9.
    """
    problem = problem_of("abcdefghj", tuple((op, 8) for op in range(8)), 4, 0, transfer_ns)
    costs = uniform(problem, (1,) * 9)
    priority = (0,) * 9
    plan = make_plan(problem, (0, 0, 1, 1, 2, 2, 3, 3, 0), priority, "spread")
    assert both(problem, costs, plan).makespan_ns == spread
    alone = make_plan(problem, (0,) * 9, priority, "alone")
    assert both(problem, costs, alone).makespan_ns == together


def test_a_hold_buys_what_no_priority_can() -> None:
    """Device 1: P (1), then S (10) after C. Device 0: C (1) after P, and L (10) without inputs.

    Work-conserving: L starts at 0 and ends at 10, C runs 10-11, S 11-21: makespan 21, whatever the
    priorities. With L held behind C: P 0-1, C 1-2, L 2-12 beside S 2-12: makespan 12.
    """
    problem = problem_of("pscl", ((0, 2), (2, 1)), 2, 0)
    costs = uniform(problem, (1, 10, 1, 10))
    placement = (1, 1, 0, 0)
    for priority in ((0, 0, 9, 0), (0, 0, 0, 9)):
        plan = make_plan(problem, placement, priority, "free")
        assert both(problem, costs, plan).makespan_ns == 21
    held = make_plan(problem, placement, (0,) * 4, "held", holds=((2, 3),))
    trace = both(problem, costs, held)
    assert trace.makespan_ns == 12
    assert [(s.op, s.start_ns, s.end_ns) for s in trace.op_spans] == [
        (0, 0, 1),
        (2, 1, 2),
        (3, 2, 12),
        (1, 2, 12),
    ]
    scorer = CompiledScorer(problem, costs)
    free = make_plan(problem, placement, (0,) * 4, "free")
    assert scorer.score_plans([free, held, free]).tolist() == [21, 12, 21]


def test_a_pipeline_has_the_period_of_its_slowest_stage() -> None:
    """a (3 ns) on device 0 feeds b (5 ns) on device 1: one iteration ends every 5 ns."""
    problem = replace(problem_of("ab", ((0, 1),), 2, 2), objective=Objective.period)
    costs = uniform(problem, (3, 5))
    plan = make_plan(problem, (0, 1), (0, 0), "hand")
    assert CompiledRuntime(costs).period(problem, plan, 20) == Period(5, 1, exact=True)
    # a 0-3, its copy 3-5, b 5-10, then b is never idle.
    assert both(problem, costs, plan, 4).iteration_ends_ns() == (10, 15, 20, 25)
    assert CompiledScorer(problem, costs).score([[0, 1]], [[0, 0]]).tolist() == [5]


def test_busy_siblings_slow_an_op_that_starts() -> None:
    """a and b start together on two core groups of one processor: each finds one busy sibling.

    1.3 times 10 ns is 13 ns for both. c starts at 13 beside nobody: 10 ns, end at 23.
    """
    problem = problem_of("abc", ((0, 2),), 2, 0)
    devices = tuple(replace(d, parent="socket") for d in problem.cluster.devices)
    problem = replace(problem, cluster=replace(problem.cluster, devices=devices))
    costs = make_costs(problem, ((10, 10),) * 3, (300, 300, 300))
    plan = make_plan(problem, (0, 1, 0), (0, 0, 0), "hand")
    trace = both(problem, costs, plan)
    assert [(s.op, s.start_ns, s.end_ns) for s in trace.op_spans] == [
        (0, 0, 13),
        (1, 0, 13),
        (2, 13, 23),
    ]
