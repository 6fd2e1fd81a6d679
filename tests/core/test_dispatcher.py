"""The rules of one device's dispatcher, as lists of events and commands, and its corner cases."""

import pytest

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.dispatcher import (
    CreditArrived,
    Dispatcher,
    FreeTensor,
    OpDone,
    ReturnCredit,
    RunOp,
    SendTensor,
    TensorArrived,
    TensorSent,
)
from doppler.core.errors import DeadlockError
from doppler.core.graph import DataflowGraph, Edge, EdgeMode, Op
from doppler.core.plan import make_plan
from doppler.core.problem import Problem
from doppler.core.program import Program, compile_program
from doppler.core.validate import check_trace
from simulator.compiled import CompiledRuntime
from simulator.runtime import SimPyRuntime


def two_devices(
    names: str,
    edges: tuple[Edge, ...],
    window: int = 3,
    num_streams: int = 1,
    copy_engines: int = 1,
    latency_ns: int = 0,
) -> Problem:
    """Ops with one output of a byte each; zero-copy links, or copies on the sender's streams."""
    devices = tuple(
        Device(
            name=f"d{i}", kind="cpu", parent="p", num_streams=num_streams, copy_engines=copy_engines
        )
        for i in range(2)
    )
    rate = None if copy_engines else 1_000_000_000
    return Problem(
        graph=DataflowGraph(
            name="tiny",
            window=window,
            ops=tuple(Op(kind="w", name=name, outputs=(1,)) for name in names),
            edges=edges,
        ),
        cluster=Cluster(
            name="two",
            devices=devices,
            links=tuple(
                Link(src=f"d{i}", dst=f"d{1 - i}", latency_ns=latency_ns, bytes_per_s=rate)
                for i in range(2)
            ),
        ),
    )


def program_of(
    problem: Problem,
    placement: tuple[int, ...],
    priority: tuple[int, ...] | None = None,
    holds: tuple[tuple[int, int], ...] = (),
) -> Program:
    priorities = (0,) * len(placement) if priority is None else priority
    return compile_program(problem, make_plan(problem, placement, priorities, "hand", holds))


def test_commands_of_a_producer_and_its_two_consumers() -> None:
    """a feeds b on the same device and c, d on the other one: one send for both."""
    problem = two_devices("abcd", (Edge(0, 0, 1), Edge(0, 0, 2), Edge(0, 0, 3)), window=1)
    program = program_of(problem, (0, 0, 1, 1))
    first, second = Dispatcher(program, 0, 2), Dispatcher(program, 1, 2)
    assert first.dispatch() == [RunOp(0, 0, 0, ())]
    first.post(OpDone(0, 0))
    assert first.dispatch() == [SendTensor(0, 0, 0, 1, -1), RunOp(1, 0, 0, ())]
    first.post(TensorSent(0, 0, 0, 1))
    first.post(OpDone(1, 0))
    # b is the last local reader and has no reader itself; a@1 waits for credits of c and d.
    assert first.dispatch() == [FreeTensor(1, 0, 0), FreeTensor(0, 0, 0)]
    assert first.blocked() == [
        "a@1 waits for credit of c@0, credit of d@0",
        "b@1 waits for a@1",
    ]
    assert second.dispatch() == []
    second.post(TensorArrived(0, 0, 0))
    assert second.dispatch() == [RunOp(2, 0, 0, ())]
    second.post(OpDone(2, 0))
    assert second.dispatch() == [
        ReturnCredit(2, 0, 0),
        FreeTensor(2, 0, 0),
        RunOp(3, 0, 0, ()),
    ]
    first.post(CreditArrived(2, 0))
    assert first.dispatch() == []
    first.post(CreditArrived(3, 0))
    assert first.dispatch() == [RunOp(0, 1, 0, ())]


def test_ready_ops_go_by_iteration_then_priority_then_id() -> None:
    problem = two_devices("abc", ())
    dispatcher = Dispatcher(program_of(problem, (0, 0, 0), (1, 5, 1)), 0, 2)
    order = []
    for _ in range(6):
        (command,) = (c for c in dispatcher.dispatch() if isinstance(c, RunOp))
        order.append((command.op, command.iteration))
        dispatcher.post(OpDone(command.op, command.iteration))
    assert order == [(1, 0), (0, 0), (2, 0), (1, 1), (0, 1), (2, 1)]
    assert dispatcher.is_done


def test_the_lowest_free_stream_is_taken() -> None:
    problem = two_devices("abc", (), num_streams=2)
    dispatcher = Dispatcher(program_of(problem, (0, 0, 0)), 0, 1)
    assert dispatcher.dispatch() == [RunOp(0, 0, 0, ()), RunOp(1, 0, 1, ())]
    dispatcher.post(OpDone(1, 0))
    dispatcher.post(OpDone(0, 0))
    assert dispatcher.dispatch()[-1] == RunOp(2, 0, 0, ())


def test_a_copy_on_the_stream_goes_before_ready_ops_and_older_requests_go_first() -> None:
    """The second request has the higher priority and still waits for the first."""
    problem = two_devices("abcd", (Edge(0, 0, 3), Edge(1, 0, 3)), copy_engines=0)
    dispatcher = Dispatcher(program_of(problem, (0, 0, 0, 1), (5, 9, 1, 0)), 0, 1)
    assert dispatcher.dispatch() == [RunOp(1, 0, 0, ())]
    dispatcher.post(OpDone(1, 0))
    assert dispatcher.dispatch() == [SendTensor(1, 0, 0, 1, 0)]
    dispatcher.post(TensorSent(1, 0, 0, 1))
    assert dispatcher.dispatch() == [FreeTensor(1, 0, 0), RunOp(0, 0, 0, ())]
    dispatcher.post(OpDone(0, 0))
    assert dispatcher.dispatch() == [SendTensor(0, 0, 0, 1, 0)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_newest_version_wins_in_whatever_order_two_arrive(order: tuple[int, int]) -> None:
    """Two copies on two streams may arrive in one round; version 1 is read, version 0 is freed.

    It was broken: the version posted last was taken for the newest.
    """
    problem = two_devices("ab", (Edge(0, 0, 1, 2, EdgeMode.latest),), num_streams=2, copy_engines=0)
    dispatcher = Dispatcher(program_of(problem, (0, 1)), 1, 5)
    assert dispatcher.dispatch() == [FreeTensor(0, 0, -2), RunOp(1, 0, 0, (-1,))]
    for version in order:
        dispatcher.post(TensorArrived(0, 0, version))
    dispatcher.post(OpDone(1, 0))
    commands = dispatcher.dispatch()
    assert commands[-1] == RunOp(1, 1, 0, (1,))
    freed = {c.iteration for c in commands if isinstance(c, FreeTensor) and c.op == 0}
    assert freed == {-1, 0}


def test_a_version_that_is_read_outlives_newer_ones() -> None:
    problem = two_devices("ab", (Edge(0, 0, 1, 1, EdgeMode.latest),), num_streams=2)
    dispatcher = Dispatcher(program_of(problem, (0, 0)), 0, 3)
    assert dispatcher.dispatch() == [RunOp(0, 0, 0, ()), RunOp(1, 0, 1, (-1,))]
    dispatcher.post(OpDone(0, 0))
    assert dispatcher.dispatch() == [RunOp(0, 1, 0, ())]
    dispatcher.post(OpDone(0, 1))
    assert dispatcher.dispatch() == [FreeTensor(0, 0, 0)]  # nobody read it; a@2 waits for b@0
    dispatcher.post(OpDone(1, 0))
    assert dispatcher.dispatch() == [
        FreeTensor(1, 0, 0),
        FreeTensor(0, 0, -1),
        RunOp(1, 1, 0, (1,)),
        RunOp(0, 2, 1, ()),
    ]


def test_a_circle_without_time_ends_at_zero() -> None:
    """a -> b -> a over two devices, no latency, no duration: five iterations at t = 0."""
    problem = two_devices("ab", (Edge(0, 0, 1), Edge(1, 0, 0, 1)), window=2)
    plan = make_plan(problem, (0, 1), (0, 0), "hand")
    costs = make_costs(problem, ((0, 0), (0, 0)))
    for runtime in (SimPyRuntime(costs), CompiledRuntime(costs)):
        trace = runtime.run(problem, plan, 5)
        assert trace.makespan_ns == 0
        assert len(trace.op_spans) == len(trace.transfers) == 10
        check_trace(problem, plan, trace)


def test_window_one_runs_iterations_one_after_the_other() -> None:
    """A chain of two ops of 3 ns, 4 ns latency: the second iteration starts when b@0 has ended."""
    problem = two_devices("ab", (Edge(0, 0, 1),), window=1, latency_ns=4)
    plan = make_plan(problem, (0, 1), (0, 0), "hand")
    costs = make_costs(problem, ((3, 3), (3, 3)))
    trace = CompiledRuntime(costs).run(problem, plan, 3)
    assert trace.iteration_ends_ns() == (10, 20, 30)


def test_a_hold_keeps_the_window_too() -> None:
    """`before` may run at most `window` iterations ahead of `after`, edge or not."""
    problem = two_devices("ab", (), window=2, num_streams=2)
    plan = make_plan(problem, (0, 0), (0, 0), "hand", ((0, 1),))
    costs = make_costs(problem, ((1, 1), (10, 10)))
    trace = SimPyRuntime(costs).run(problem, plan, 4)
    starts = [span.start_ns for span in trace.op_spans if span.op == 0]
    # a@0 0-1, b@0 1-11, a@1 1-2, a@2 needs the credit of b@0 at 11, a@3 that of b@1 at 21.
    assert starts == [0, 1, 11, 21]


def test_a_lost_message_is_a_deadlock_that_names_who_waits_for_what(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = two_devices("abc", (Edge(0, 0, 1), Edge(1, 0, 2)))
    plan = make_plan(problem, (0, 1, 1), (0, 0, 0), "hand", ((1, 2),))
    post = Dispatcher.post

    def lossy(self: Dispatcher, event: object) -> None:
        if not isinstance(event, TensorArrived):
            post(self, event)  # type: ignore[arg-type]

    monkeypatch.setattr(Dispatcher, "post", lossy)
    costs = make_costs(problem, ((1, 1), (1, 1), (1, 1)))
    with pytest.raises(DeadlockError) as caught:
        SimPyRuntime(costs).run(problem, plan, 1)
    assert str(caught.value) == (
        "nothing is in flight at 1 ns and work is left: b@0 waits for tensor a:0@0; "
        "c@0 waits for b@0, hold b@0"
    )
