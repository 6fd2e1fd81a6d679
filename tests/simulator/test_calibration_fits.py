"""Fits of calibration find what made a trace: synthetic traces of the simulator, with noise and
with gross outliers (every tenth execution takes 20 times as long).

Seen to fail: noise with the plain standard deviation in place of `robust_sigma`, and without the
slowdown divided out; launch overheads with the weights of `fit_affine` kept at their start (least
squares), and without an intercept; links with the error of a falling line passed on; the held-out
error with the fold itself left in the fit.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Problem
from doppler.core.trace import Trace
from simulator.calibrate import Observation, fit_dispatch_ns, observe
from simulator.calibration.affine import fit_affine
from simulator.calibration.held_out import fold_shifts, held_out_errors, unsteady_text
from simulator.calibration.launch import fit_launches
from simulator.calibration.links import fit_links
from simulator.calibration.noise import KindNoise, fit_noise, lognormal_noise, robust_sigma
from simulator.compiled import CompiledRuntime
from simulator.costs.alpha_beta import TransferSample, transfer_samples
from simulator.costs.measured import fit_entries
from simulator.noise import LognormalNoise, draw_durations

FLOPS = (100_000, 200_000, 400_000, 800_000)
ITERATIONS = 60
OUTLIER = 20
SLOW = {"walk": (20_000, 2 * 10**9), "learn": (5_000, 10**9)}
"""Op kind -> launch_ns, flop_per_s."""

SEEDS = st.integers(0, 2**32 - 1)
FEW = settings(max_examples=15, deadline=None)


def time_of(op: Op) -> int:
    launch_ns, flop_per_s = SLOW[op.kind]
    return launch_ns + op.flop * 10**9 // flop_per_s


def machine(latency_ns: int = 1000, bytes_per_s: int = 10**9) -> Cluster:
    names = ("d0", "d1")
    return Cluster(
        name="two",
        devices=tuple(
            Device(name=n, kind="cpu", parent="cpu", cores=(i,)) for i, n in enumerate(names)
        ),
        links=tuple(
            Link(
                src=a,
                dst=b,
                latency_ns=latency_ns,
                bytes_per_s=bytes_per_s,
                buses=(f"{a}.out",),
            )
            for a in names
            for b in names
            if a != b
        ),
    )


def job(cluster: Cluster) -> Problem:
    """Ops of two kinds and four sizes; each sends a tensor of another size to a last op."""
    ops = tuple(
        Op(kind=kind, name=f"{kind}{flop}", flop=flop, outputs=(1000 * flop // 100_000,))
        for kind in SLOW
        for flop in FLOPS
    )
    last = Op(kind="learn", name="last", flop=100_000, outputs=(1,))
    edges = tuple(Edge(op, 0, len(ops)) for op in range(len(ops)))
    return Problem(graph=DataflowGraph(name="job", ops=(*ops, last), edges=edges), cluster=cluster)


def run(
    problem: Problem, plan: Plan, *, sigma: dict[str, float], seed: int, dispatch_ns: int = 0
) -> Trace:
    """A simulated run whose times are lognormal, and 20 times as long in every tenth execution."""
    costs = make_costs(
        problem,
        tuple((time_of(op),) * 2 for op in problem.graph.ops),
        dispatch_ns=(dispatch_ns,) * 2,
    )
    rng = np.random.default_rng(seed)
    noise = LognormalNoise(sigma_by_kind=sigma)
    drawn = draw_durations(noise, problem, costs, plan, 1, ITERATIONS, rng)[0]
    drawn = np.where(rng.random(drawn.shape) < 0.1, drawn * OUTLIER, drawn)
    return CompiledRuntime(costs).run(problem, plan, ITERATIONS, drawn.tolist())


def on_one(problem: Problem) -> Plan:
    count = problem.graph.num_ops
    return make_plan(problem, (0,) * count, (0,) * count, "one")


def on_two(problem: Problem) -> Plan:
    count = problem.graph.num_ops
    return make_plan(problem, (0,) * (count - 1) + (1,), (0,) * count, "two")


@FEW
@given(walk=st.floats(0.01, 0.3), learn=st.floats(0.01, 0.3), seed=SEEDS)
def test_noise_is_found_per_op_kind_among_outliers(walk: float, learn: float, seed: int) -> None:
    problem = job(machine())
    trace = run(problem, on_one(problem), sigma={"walk": walk, "learn": learn}, seed=seed)
    seen = observe(problem, trace)
    found = {row.kind: row for row in fit_noise(seen, fit_entries(seen))}
    # 240 executions: a standard error of 5 %, and outliers move it by less than that.
    assert found["walk"].sigma == pytest.approx(walk, rel=0.25)
    assert found["learn"].sigma == pytest.approx(learn, rel=0.25)
    assert found["walk"].tail_share == pytest.approx(0.1, abs=0.07)
    drawn = lognormal_noise(tuple(found.values()))
    assert drawn.sigma_by_kind["walk"] == found["walk"].sigma
    assert drawn.sigma == pytest.approx((found["walk"].sigma + found["learn"].sigma) / 2)


@given(sigma=st.floats(0.001, 2.0), scale=st.floats(10.0, 100.0), seed=SEEDS)
def test_a_robust_sigma_scales_and_ignores_outliers(sigma: float, scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    clean = rng.normal(0.0, sigma, 4000)
    assert robust_sigma(clean) == pytest.approx(sigma, rel=0.08)
    assert robust_sigma(scale * clean) == pytest.approx(scale * robust_sigma(clean))
    dirty = np.where(rng.random(4000) < 0.1, 20 * sigma, clean)
    assert robust_sigma(dirty) == pytest.approx(sigma, rel=0.08)


def test_without_scatter_there_is_no_noise() -> None:
    assert robust_sigma(np.zeros(7)) == 0.0
    assert lognormal_noise(()) == LognormalNoise(sigma=0.0, sigma_by_kind={})


def observation(duration_ns: int, overlap: float = 0.0, flop: int = 10) -> Observation:
    return Observation(
        kind="walk",
        flop=flop,
        device="d0",
        device_kind="cpu",
        cores=1,
        busy=0,
        siblings=1,
        overlap=overlap,
        duration_ns=duration_ns,
    )


def test_the_slowdown_beside_a_sibling_is_no_noise() -> None:
    """Alone 1000, beside a sibling 1500: exact once the slowdown is known."""
    seen = [observation(1000)] * 5 + [observation(1500, 1.0)] * 5 + [observation(1250, 0.5)] * 5
    (found,) = fit_noise(seen, fit_entries(seen))
    assert (found.kind, found.count) == ("walk", 15)
    assert found.sigma == pytest.approx(0.0, abs=1e-12)


def test_sizes_are_centred_apart_and_rare_ones_left_out() -> None:
    seen = [observation(1000 * flop, flop=flop) for flop in (1, 5, 9) for _ in range(4)]
    seen += [observation(7, flop=2)]
    (found,) = fit_noise(seen, fit_entries(seen))
    assert (found.sigma, found.count) == (0.0, 12)
    assert fit_noise([observation(7, flop=2)], ()) == ()


@FEW
@given(sigma=st.floats(0.0, 0.1), seed=SEEDS)
def test_launch_and_rate_are_found_among_outliers(sigma: float, seed: int) -> None:
    problem = job(machine())
    spread = dict.fromkeys(SLOW, sigma)
    trace = run(problem, on_one(problem), sigma=spread, seed=seed)
    found = {fit.kind: fit for fit in fit_launches(observe(problem, trace))}
    for kind, (launch_ns, flop_per_s) in SLOW.items():
        smallest = launch_ns + 100_000 * 10**9 // flop_per_s
        assert found[kind].launch_ns == pytest.approx(
            launch_ns, abs=0.01 + 0.8 * sigma * smallest + 2
        )
        assert found[kind].flop_per_s == pytest.approx(flop_per_s, rel=0.001 + sigma)
        for op in problem.graph.ops:
            if op.kind == kind:
                expected = pytest.approx(time_of(op), rel=0.002 + sigma / 2)
                assert found[kind].time_ns(op.flop) == expected


def test_one_size_or_falling_times_have_no_launch() -> None:
    assert fit_launches([observation(5)] * 4) == ()
    assert fit_launches([observation(90, flop=1)] * 4 + [observation(9, flop=50)] * 4) == ()


@FEW
@given(dispatch_ns=st.integers(1, 10**6), seed=SEEDS)
def test_dispatch_is_found_whatever_the_times(dispatch_ns: int, seed: int) -> None:
    problem = job(machine())
    spread = dict.fromkeys(SLOW, 0.2)
    trace = run(problem, on_one(problem), sigma=spread, seed=seed, dispatch_ns=dispatch_ns)
    assert fit_dispatch_ns(trace, 1) == dispatch_ns


@FEW
@given(latency_ns=st.integers(100, 10**4), bytes_per_s=st.integers(10**8, 2 * 10**9), seed=SEEDS)
def test_links_are_found_among_outliers(latency_ns: int, bytes_per_s: int, seed: int) -> None:
    """Transfers of the trace with 2 % noise, and 20 times as long in every tenth."""
    problem = job(machine(latency_ns, bytes_per_s))
    trace = run(problem, on_two(problem), sigma={}, seed=seed)
    rng = np.random.default_rng(seed)
    (pair, clean), *others = transfer_samples(problem, trace, 1).items()
    assert (pair, others) == (("d0", "d1"), [])
    dirty = [
        TransferSample(
            num_bytes=row.num_bytes,
            duration_ns=round(
                row.duration_ns
                * math.exp(0.02 * rng.standard_normal())
                * (OUTLIER if rng.random() < 0.1 else 1)
            ),
        )
        for row in clean
    ]
    (found,) = fit_links({pair: dirty})
    assert (found.src, found.dst, found.count) == ("d0", "d1", len(clean))
    for num_bytes in (1000, 8000):
        true_ns = latency_ns + num_bytes * 1e9 / bytes_per_s
        assert found.model.time_ns(num_bytes) == pytest.approx(true_ns, rel=0.02, abs=2)


def test_a_link_of_one_size_or_with_falling_times_keeps_its_numbers() -> None:
    same = [TransferSample(num_bytes=5, duration_ns=9)] * 4
    falling = [TransferSample(num_bytes=n, duration_ns=1000 - n) for n in (1, 100, 500)]
    assert fit_links({("a", "b"): same, ("b", "a"): falling}) == ()


@given(
    intercept=st.integers(0, 10**6),
    slope=st.integers(1, 1000),
    sizes=st.lists(st.integers(0, 10**6), min_size=2, max_size=20, unique=True),
)
def test_a_line_through_its_points_is_found(intercept: int, slope: int, sizes: list[int]) -> None:
    times = [1 + intercept + slope * size for size in sizes]
    line = fit_affine(sizes, times)
    for size, time in zip(sizes, times, strict=True):
        assert line.intercept_ns + line.slope_ns * size == pytest.approx(time, rel=1e-4)


def test_folds_are_judged_by_the_others() -> None:
    """100 in one fold, 110 in the other: off by +10 % and by -1/11; by their own tables by none."""
    rows = held_out_errors([[observation(100)] * 4, [observation(110)] * 4])
    assert [row.kind for row in rows] == ["walk", "all"]
    assert rows[0].median_error == pytest.approx((10 / 100 + 10 / 110) / 2)
    assert rows[0].bias == pytest.approx(0.0)
    assert rows[1] == replace(rows[0], kind="all")


def test_what_the_other_folds_have_not_seen_is_left_out() -> None:
    far = [observation(100, flop=10**6)] * 4
    rows = held_out_errors([[observation(100)] * 4 + far, [observation(100)] * 3])
    assert [(row.kind, row.count, row.median_error) for row in rows] == [
        ("walk", 7, 0.0),
        ("all", 7, 0.0),
    ]
    assert held_out_errors([far, [observation(100)] * 3]) == ()


def test_windows_that_disagree_are_told_in_one_sentence() -> None:
    """Alone 100 in both folds; beside a sibling 150 in one and 240 in the other.

    By the other's table (50 % and 140 % slower) the folds take 150 / 240 and 240 / 150.
    """
    alone = [observation(100)] * 4
    calm, slowed = ([observation(time, overlap=1.0)] * 4 for time in (150, 240))
    shifts = fold_shifts([alone + calm, alone + slowed])
    assert [(s.fold, s.is_shared, s.count) for s in shifts] == [
        (0, False, 4),
        (0, True, 4),
        (1, False, 4),
        (1, True, 4),
    ]
    assert [s.ratio for s in shifts] == pytest.approx([1.0, 150 / 240, 1.0, 240 / 150])
    assert [s.factor for s in shifts] == pytest.approx([1.0, 1.6, 1.0, 1.6])
    text = unsteady_text(shifts)
    assert text is not None
    assert "ops beside busy siblings took" in text
    assert "calibration.refresh=true" in text
    busy = fold_shifts([alone, [observation(130)] * 4])
    assert "ops alone on their cores took" in (unsteady_text(busy) or "")
    assert unsteady_text(fold_shifts([alone, [observation(120)] * 4])) is None
    assert unsteady_text(()) is None


def test_noise_rows_are_plain_data() -> None:
    row = KindNoise(kind="walk", sigma=0.2, tail_share=0.01, count=9)
    assert lognormal_noise((row,)) == LognormalNoise(sigma=0.2, sigma_by_kind={"walk": 0.2})
