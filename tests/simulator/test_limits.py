"""Numbers beyond 63 bits, damaged inputs and blocked plans are refused in words, never computed.

Seen to fail with each of these taken out: the check for integers, for blocked plans, for the end of
a run, for products, for large numbers.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import Costs, make_costs
from doppler.core.errors import ConfigError, DeadlockError, PlanError
from doppler.core.graph import DataflowGraph, Edge, InputResidency, Op
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Objective, Problem
from simulator import compiled, runtime, scorer
from simulator.compiled import CompiledRuntime
from simulator.engine.lanes import Engine
from simulator.runtime import SimPyRuntime
from simulator.scorer import CompiledScorer


def chain(num_bytes: int = 4, **device: int) -> Problem:
    """Two ops and an edge; two sibling devices and one bus."""
    names = ("d0", "d1")
    return Problem(
        graph=DataflowGraph(
            name="chain",
            ops=(Op(kind="w", name="a", outputs=(num_bytes,)), Op(kind="w", name="b")),
            edges=(Edge(0, 0, 1),),
        ),
        cluster=Cluster(
            name="two",
            devices=tuple(Device(name=n, kind="cpu", parent="p", **device) for n in names),
            links=(Link(src="d0", dst="d1", bytes_per_s=10**9, buses=("bus",)),),
        ),
    )


def costs_of(problem: Problem, ns: int = 1, slowdown: int = 0) -> Costs:
    return make_costs(problem, ((ns,) * 2,) * 2, (slowdown,) * 2)


@pytest.mark.parametrize(
    ("problem", "ns", "slowdown", "message"),
    [
        (chain(), 1 << 70, 0, "op_ns fit in 63 bits"),
        (chain(), 1 << 53, 1000, "the product of times and"),
        (chain(memory_bytes=1 << 63), 1, 0, "memory_bytes fit in 63 bits"),
        (chain(1 << 63), 1, 0, "output bytes fit in 63 bits"),
        (chain(1 << 61), 1, 0, "the bytes of all versions on one device"),
    ],
)
def test_what_does_not_fit_in_63_bits_is_refused_when_built(
    problem: Problem, ns: int, slowdown: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        CompiledScorer(problem, costs_of(problem, ns, slowdown))


def test_runs_whose_end_or_queue_keys_overflow_are_refused() -> None:
    problem = chain()
    engine = Engine(problem, costs_of(problem, 1 << 50))
    engine.check_run(1000)
    with pytest.raises(ConfigError, match="a run ends before 4611686018427387904 ns, and 10000"):
        engine.check_run(10_000)
    with pytest.raises(ConfigError, match=r"iterations . ops . tensors . devices"):
        Engine(problem, costs_of(problem, 0)).check_run(1 << 62)
    large = chain(1 << 42)
    with pytest.raises(ConfigError, match="a run ends before"):
        CompiledScorer(large, costs_of(large), memory_penalty_ns_per_mib=1 << 42)
    scoring = CompiledScorer(problem, costs_of(problem))
    with pytest.raises(ConfigError, match="a run ends before"):
        scoring.score_replicas((0, 0), (0, 0), [[[1 << 52] * 2] * 2000])
    slowed = CompiledScorer(problem, costs_of(problem, 1, 1000))
    with pytest.raises(ConfigError, match="the product of times and"):
        slowed.score_replicas((0, 0), (0, 0), [[[1 << 53, 0]]])


def test_dispatch_costs_count_in_the_end_of_a_run() -> None:
    problem = chain()
    slow = make_costs(problem, ((1, 1), (1, 1)), dispatch_ns=(1 << 61, 1 << 61))
    with pytest.raises(ConfigError, match="a run ends before 4611686018427387904 ns, and 1 iter"):
        CompiledScorer(problem, slow)


def test_a_tensor_may_go_to_every_other_device() -> None:
    """Each of two copies holds the bus for a little over 2**61 ns, so both take over 2**62 ns."""
    names = ("d0", "d1", "d2")
    problem = Problem(
        graph=DataflowGraph(
            name="fan",
            ops=(Op(kind="w", name="a", outputs=(1 << 51,)), Op(kind="w", name="b")),
            edges=(Edge(0, 0, 1),),
        ),
        cluster=Cluster(
            name="three",
            devices=tuple(Device(name=n, kind="cpu", parent=n) for n in names),
            links=tuple(
                Link(src="d0", dst=n, bytes_per_s=10**9 >> 10, buses=("bus",)) for n in names[1:]
            ),
        ),
    )
    with pytest.raises(ConfigError, match="a run ends before"):
        CompiledScorer(problem, make_costs(problem, ((1,) * 3,) * 2))


def test_the_largest_times_are_exact() -> None:
    problem = chain()
    costs = costs_of(problem, 1 << 52)
    plan = make_plan(problem, (0, 1), (0, 0), "x")
    expected = (1 << 53) + 4
    assert SimPyRuntime(costs).run(problem, plan, 1).makespan_ns == expected
    assert CompiledScorer(problem, costs).score_plans([plan]).tolist() == [expected]


@pytest.mark.parametrize("make", [CompiledRuntime, SimPyRuntime])
def test_durations_of_another_shape_are_refused(
    make: Callable[[Costs], CompiledRuntime | SimPyRuntime],
) -> None:
    problem = chain()
    plan = make_plan(problem, (0, 1), (0, 0), "x")
    for durations, message in (
        ([[1, 1], [1, 1]], "and it has 2 rows"),
        ([[1]], r"rows of \[1\] times"),
        ([[1, 2, 3]], r"rows of \[3\] times"),
        ([[1, -1]], "op 1 takes -1 in iteration 0"),
    ):
        with pytest.raises(PlanError, match=message):
            make(costs_of(problem)).run(problem, plan, 1, np.array(durations))  # type: ignore[arg-type]


def test_what_is_no_integer_is_refused_by_the_scorer() -> None:
    problem = chain()
    scoring = CompiledScorer(problem, costs_of(problem))
    with pytest.raises(PlanError, match="placements are integers, and these are float64"):
        scoring.score([[0.0, 0.9]], [[0, 0]])
    with pytest.raises(PlanError, match="priorities are integers"):
        scoring.score([[0, 1]], [[0.5, 0.0]])
    with pytest.raises(PlanError, match="a hold orders two placed ops"):
        scoring.score_replicas((0, 1), (0, 0), [[[1, 1]]], ((0, 9),))
    with pytest.raises(PlanError, match="a hold orders two ops of one device"):
        scoring.score_replicas((0, 1), (0, 0), [[[1, 1]]], ((0, 1),))
    with pytest.raises(PlanError, match="duration_ns has -1"):
        scoring.score_replicas((0, 1), (0, 0), [[[1, -1]]])
    with pytest.raises(ConfigError, match="priorities fit in 63 bits"):
        scoring.score_plans([make_plan(problem, (0, 1), (1 << 70, 0), "x")])
    assert scoring.score(np.array([[0, 1]], np.uint8), [[0, 0]]).tolist() == [6]


def test_a_graph_of_inputs_alone_takes_no_time() -> None:
    graph = DataflowGraph(
        name="inputs",
        ops=(Op(kind="input", name="x", outputs=(3,)),),
        inputs=InputResidency.everywhere,
    )
    for objective in (Objective.makespan, Objective.period):
        problem = replace(chain(), graph=graph, objective=objective)
        costs = make_costs(problem, ((0, 0),))
        assert CompiledScorer(problem, costs).score([[0]], [[0]]).tolist() == [0]
        plan = make_plan(problem, (0,), (0,), "x")
        trace = CompiledRuntime(costs).run(problem, plan, 3)
        assert replace(trace, runtime="simpy") == SimPyRuntime(costs).run(problem, plan, 3)


def test_a_blocked_run_lists_its_ops_and_what_they_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """b is held before a, which it reads: `check_plan` refuses that, and is switched off here."""
    for module in (compiled, runtime, scorer):
        monkeypatch.setattr(module, "check_plan", lambda *_: None)
    problem = chain()
    costs = costs_of(problem)
    good = make_plan(problem, (0, 0), (0, 0), "x")
    blocked: Plan = replace(good, holds=((1, 0),))
    runs: list[Callable[[], object]] = [
        lambda: SimPyRuntime(costs).run(problem, blocked, 1),
        lambda: CompiledRuntime(costs).run(problem, blocked, 1),
        lambda: CompiledRuntime(costs).run(problem, blocked, 1, np.array([[1, 1]])),
        lambda: CompiledScorer(problem, costs).score_plans([good, blocked]),
        lambda: CompiledScorer(problem, costs).score_replicas(
            (0, 0), (0, 0), [[[1, 1]]], blocked.holds
        ),
    ]
    for run in runs:
        with pytest.raises(DeadlockError, match=r"a@0 waits for hold b@0; b@0 waits for a@0"):
            run()
