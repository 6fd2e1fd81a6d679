"""Alpha-beta transfers: times by hand, fits that find what made the samples, samples of a trace."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.errors import DopplerError
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.plan import make_plan
from doppler.core.problem import Problem
from simulator.compiled import CompiledRuntime
from simulator.costs.alpha_beta import (
    AlphaBeta,
    TransferSample,
    fit_alpha_beta,
    transfer_samples,
    with_fitted_links,
)

SIZES = [2**power for power in range(6, 27)]


def samples(alpha, beta, sizes=SIZES, noise=0.0, seed=0):
    rng = random.Random(seed)
    return [
        TransferSample(
            num_bytes=n,
            duration_ns=max(1, round((alpha + n * 1e9 / beta) * (1 + rng.uniform(-noise, noise)))),
        )
        for n in sizes
    ]


@pytest.mark.parametrize(
    ("latency", "bandwidth", "num_bytes", "expected"),
    [
        (1900, 25 * 10**9, 0, 1900),
        (1900, 25 * 10**9, 25_000, 2900),
        (1900, 25 * 10**9, 25_001, 2901),  # rounded up
        (0, 1, 2, 2 * 10**9),
        (5, 4 * 10**9, 20, 10),  # n = alpha x beta: half of the bandwidth
    ],
)
def test_times_by_hand(latency, bandwidth, num_bytes, expected):
    assert AlphaBeta(latency_ns=latency, bytes_per_s=bandwidth).time_ns(num_bytes) == expected


@given(
    alpha=st.integers(200, 10**6),
    beta=st.integers(10**8, 10**12),
    seed=st.integers(0, 2**32),
)
def test_a_fit_finds_the_model_that_made_the_samples(alpha, beta, seed):
    fit = fit_alpha_beta(samples(alpha, beta, noise=0.02, seed=seed))
    assert fit.median_error < 0.02
    for n in (64, 2**26):
        assert fit.model.time_ns(n) == pytest.approx(alpha + n * 1e9 / beta, rel=0.05, abs=5)


def test_outliers_move_nothing():
    """Seen to fail with plain least squares: weights kept at their start."""
    clean = samples(2000, 10**10)
    dirty = [
        replace(s, duration_ns=s.duration_ns * 20) if index % 5 == 0 else s
        for index, s in enumerate(clean)
    ]
    fit = fit_alpha_beta(dirty)
    assert fit.model.latency_ns == pytest.approx(2000, rel=0.01)
    assert fit.model.bytes_per_s == pytest.approx(10**10, rel=0.01)
    assert fit.num_samples == len(dirty)


def test_small_messages_count_as_much_as_large_ones():
    sizes = [10, 20, 40, 10**9]
    rows = [*samples(1000, 10**9, sizes), TransferSample(num_bytes=10**9, duration_ns=10**9 + 9000)]
    assert fit_alpha_beta(rows).model.latency_ns == pytest.approx(1000, abs=30)


def test_a_negative_latency_is_none():
    rows = [
        TransferSample(num_bytes=n, duration_ns=t)
        for n, t in ((1000, 900), (2000, 2000), (4000, 4200))
    ]
    fit = fit_alpha_beta(rows)
    assert fit.model == AlphaBeta(latency_ns=0, bytes_per_s=10**9)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "two sizes or more, and there are 0 samples of 0"),
        ([(8, 5), (8, 6)], "2 samples of 1"),
        ([(8, 5), (16, 0)], "more than 0 ns, and one took 0"),
        ([(8, 50), (16, 50), (32, 50)], r"over 3 samples the time grows by 0 ns per byte"),
        ([(8, 50), (16, 40), (32, 20)], r"the time grows by -"),
    ],
)
def test_samples_that_show_no_bandwidth_are_refused(rows, message):
    with pytest.raises(DopplerError, match=message):
        fit_alpha_beta([TransferSample(num_bytes=n, duration_ns=t) for n, t in rows])


def test_numbers_out_of_range_are_refused():
    for latency, bandwidth in ((-1, 5), (5, 0)):
        with pytest.raises(DopplerError, match="alpha is at least 0 ns and beta above 0"):
            AlphaBeta(latency_ns=latency, bytes_per_s=bandwidth)


def test_samples_of_a_trace_give_its_link_back():
    """Two sizes from `a` to `b` over one bus; waiting for the bus is not part of a sample."""
    sizes = (1000, 5000, 9000)
    ops = tuple(Op(name=f"p{n}", kind="make", outputs=(n,)) for n in sizes)
    ops += tuple(Op(name=f"c{n}", kind="take", outputs=(4,)) for n in sizes)
    ops += (Op(name="back", kind="take"),)  # over the zero-copy link, which is no sample
    edges = tuple(Edge(index, 0, index + len(sizes)) for index in range(len(sizes)))
    edges += (Edge(len(sizes), 0, 2 * len(sizes)),)
    link = Link(src="a", dst="b", latency_ns=70, bytes_per_s=2 * 10**9, buses=("wire",))
    back = Link(src="b", dst="a", latency_ns=7)
    cluster = Cluster(
        name="two",
        devices=tuple(Device(name=name, kind="cuda", parent=name) for name in "ab"),
        links=(link, back),
    )
    problem = Problem(graph=DataflowGraph(name="g", ops=ops, edges=edges), cluster=cluster)
    plan = make_plan(problem, (0, 0, 0, 1, 1, 1, 0), (0,) * 7, "hand")
    costs = make_costs(problem, ((1, 1),) * 7)
    trace = CompiledRuntime(costs).run(problem, plan, 1)
    found = transfer_samples(problem, trace)
    assert set(found) == {("a", "b")}
    fit = fit_alpha_beta(found["a", "b"])
    assert fit.model == AlphaBeta(latency_ns=70, bytes_per_s=2 * 10**9)
    slower = with_fitted_links(cluster, {("a", "b"): AlphaBeta(latency_ns=9, bytes_per_s=5)})
    assert slower.link_table[0, 1] == replace(link, latency_ns=9, bytes_per_s=5)
    assert slower.link_table[1, 0] == back
    with pytest.raises(DopplerError, match="has none from 'b' to 'c'"):
        with_fitted_links(cluster, {("b", "c"): fit.model})
