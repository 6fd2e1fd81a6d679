"""Operands that have left the caches: counted by what was written since, priced by a fit."""

import numpy as np
import pytest

from doppler.core.cluster import Cluster, Device
from doppler.core.costs import Costs
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.problem import Problem
from doppler.core.trace import OpSpan, Trace
from simulator.costs.reuse import CAPACITIES, Reuse, ReuseSample, cold_bytes, fit_reuse

MIB = 1 << 20


@pytest.fixture
def problem() -> Problem:
    """An input feeds `make`; `use` reads 4 MiB of it; `other0` and `other1` write 3 MiB each."""
    ops = (
        Op(kind="input", name="x", outputs=(64 * MIB,)),
        Op(kind="make", name="make", outputs=(4 * MIB,)),
        Op(kind="other", name="other0", outputs=(3 * MIB,)),
        Op(kind="other", name="other1", outputs=(3 * MIB,)),
        Op(kind="use", name="use", outputs=(MIB,), flop=7),
    )
    cores = tuple(
        Device(name=f"core{c}", kind="cpu", parent="cpu", cores=(c,), copy_engines=0)
        for c in (0, 1)
    )
    edges = (Edge(0, 0, 1), Edge(1, 0, 4))
    graph = DataflowGraph(name="reuse", ops=ops, edges=edges)
    return Problem(graph=graph, cluster=Cluster(name="two", devices=cores))


def trace_of(problem: Problem, *rows: tuple[int, int, int, int]) -> Trace:
    """A trace of (op, device, start, end)."""
    return Trace(
        graph_digest=problem.graph.digest,
        cluster_digest=problem.cluster.digest,
        source="",
        runtime="simulator",
        iterations=1,
        op_spans=tuple(OpSpan(op, 0, dev, 0, start, start, end) for op, dev, start, end in rows),
        transfers=(),
        peak_bytes=(0, 0),
    )


@pytest.mark.parametrize(
    ("others", "written"),
    [
        ((), 0),
        (((2, 0, 10, 20),), 3 * MIB),
        (((2, 0, 10, 20), (3, 1, 12, 22)), 6 * MIB),  # the cores share a cache
        (((2, 0, 10, 20), (3, 1, 50, 60)), 3 * MIB),  # written after the read
        (((2, 1, 5, 20),), 0),  # begun before the producer had ended
    ],
)
def test_an_operand_is_cold_once_more_was_written_than_a_cache_holds(
    problem: Problem, others: tuple[tuple[int, int, int, int], ...], written: int
) -> None:
    trace = trace_of(problem, (1, 0, 0, 10), *others, (4, 0, 40, 50))
    limits = (written - 1, written, written + 1)
    assert cold_bytes(problem, trace, limits)[4, 0] == (4 * MIB, 0, 0)


def test_graph_inputs_are_never_cold(problem: Problem) -> None:
    trace = trace_of(problem, (2, 0, 0, 5), (1, 0, 5, 10))
    assert cold_bytes(problem, trace, (0,))[1, 0] == (0,)


def windows_of(extra_ns_per_byte: float, knee: int, seed: int = 0) -> list[list[ReuseSample]]:
    """Ops of two kinds whose operand was written 0 to 40 MiB ago; cold ones take longer."""
    rng = np.random.default_rng(seed)
    windows = []
    for _ in range(6):
        window = []
        for kind, base in (("a", 400_000), ("b", 150_000)):
            for distance in rng.integers(0, 40 * MIB, size=60).tolist():
                is_cold = distance > knee
                time = base * rng.lognormal(0.0, 0.03) + is_cold * 4 * MIB * extra_ns_per_byte
                cold = tuple(4 * MIB * (distance > capacity) for capacity in CAPACITIES)
                window.append(
                    ReuseSample(
                        kind=kind, size=9, is_beside=True, cold_bytes=cold, duration_ns=round(time)
                    )
                )
        windows.append(window)
    return windows


def test_the_fit_finds_price_and_capacity() -> None:
    found = fit_reuse(windows_of(0.03, 8 * MIB))
    assert found is not None
    assert found.capacity_bytes == 8 * MIB
    assert found.cold_ns_per_byte == pytest.approx(0.03, rel=0.05)
    assert found.error < 0.5 * found.error_without
    assert found.usual_bytes["a", 9] == pytest.approx(0.8 * 4 * MIB, rel=0.1)


def test_disturbed_executions_do_not_move_the_fit() -> None:
    windows = windows_of(0.03, 8 * MIB)
    for window in windows:
        window.extend(
            ReuseSample(
                kind="a", size=9, is_beside=True, cold_bytes=(0,) * 6, duration_ns=9_000_000
            )
            for _ in range(3)
        )
    found = fit_reuse(windows)
    assert found is not None
    assert found.cold_ns_per_byte == pytest.approx(0.03, rel=0.06)


@pytest.mark.parametrize("price", [0.0, -0.02])
def test_there_is_no_term_where_cold_operands_cost_nothing(price: float) -> None:
    for seed in range(5):
        found = fit_reuse(windows_of(price, 8 * MIB, seed))
        assert found is None or (price == 0.0 and found.cold_ns_per_byte < 0.002)


def test_there_is_no_term_that_the_left_out_windows_deny() -> None:
    pairs = zip(windows_of(0.03, 8 * MIB), windows_of(-0.01, 8 * MIB), strict=True)
    assert fit_reuse([window for pair in pairs for window in pair]) is None


def test_there_is_no_term_without_windows_to_leave_out() -> None:
    assert fit_reuse([]) is None
    assert fit_reuse(windows_of(0.03, 8 * MIB)[:1]) is None


def test_a_plan_pays_for_more_cold_bytes_than_usual_and_gains_by_fewer(problem: Problem) -> None:
    reuse = Reuse(
        capacity_bytes=5 * MIB,
        cold_ns_per_byte=0.25,
        usual_bytes={("use", 7): 2.0 * MIB},
        error_without=0.2,
        error=0.1,
    )
    costs = Costs(
        op_ns=((0, 0), (10, 10), (10, 10), (10, 10), (3 * MIB, 4 * MIB)),
        slowdown_permille=(0,) * 5,
        dispatch_ns=(0, 0),
    )
    warm = trace_of(problem, (1, 0, 0, 10), (4, 0, 40, 50), (2, 0, 60, 70), (3, 0, 70, 80))
    cold = trace_of(problem, (1, 0, 0, 10), (2, 0, 10, 20), (3, 0, 20, 30), (4, 0, 40, 50))
    half = MIB // 2
    assert reuse.costs(problem, costs, warm).op_ns[4] == (3 * MIB - half, 4 * MIB - half)
    assert reuse.costs(problem, costs, cold).op_ns[4] == (3 * MIB + half, 4 * MIB + half)
    assert reuse.costs(problem, costs, cold).op_ns[:4] == costs.op_ns[:4]
