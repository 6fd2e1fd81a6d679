"""Noise keeps medians, comes from the generator alone, and reaches both engines."""

from dataclasses import replace

import numpy as np
import pytest

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import Costs, make_costs
from doppler.core.errors import ConfigError
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Problem
from simulator.compiled import CompiledRuntime
from simulator.noise import LognormalNoise, draw_durations
from simulator.runtime import SimPyRuntime
from simulator.scorer import CompiledScorer


def case() -> tuple[Problem, Costs, Plan]:
    devices = tuple(Device(name=f"d{i}", kind="cpu", parent="p") for i in range(2))
    problem = Problem(
        graph=DataflowGraph(
            name="noisy",
            ops=(
                Op(kind="exact", name="a", outputs=(1,)),
                Op(kind="rough", name="b", outputs=(1,)),
                Op(kind="plain", name="c"),
            ),
            edges=(Edge(0, 0, 2), Edge(1, 0, 2), Edge(0, 0, 1, 1)),
        ),
        cluster=Cluster(
            name="two", devices=devices, links=(Link(src="d1", dst="d0"), Link(src="d0", dst="d1"))
        ),
    )
    costs = make_costs(problem, ((1000, 9000), (9000, 2000), (3000, 9000)))
    return problem, costs, make_plan(problem, (0, 1, 0), (0, 0, 0), "hand")


NOISE = LognormalNoise(sigma=0.1, sigma_by_kind={"exact": 0.0, "rough": 0.5})


def test_medians_are_the_costs_of_the_plans_devices_and_spreads_are_by_kind() -> None:
    problem, costs, plan = case()
    drawn = draw_durations(NOISE, problem, costs, plan, 2000, 2, np.random.default_rng(0))
    assert drawn.shape == (2000, 2, 3)
    assert drawn.dtype == np.int64
    assert (drawn[:, :, 0] == 1000).all()
    logs = np.log(drawn[:, :, 1:] / np.array([2000, 3000])).reshape(-1, 2)
    # Standard errors: 0.5 / sqrt(4000) < 0.01 for the mean, less for the deviation.
    assert np.abs(logs.mean(axis=0)).max() < 0.04
    assert np.abs(logs.std(axis=0) - [0.5, 0.1]).max() < 0.04


def test_the_same_generator_gives_the_same_luck_to_two_plans() -> None:
    problem, costs, plan = case()
    other = make_plan(problem, (0, 0, 0), (0, 0, 0), "hand")
    first = draw_durations(NOISE, problem, costs, plan, 3, 4, np.random.default_rng(7))
    again = draw_durations(NOISE, problem, costs, plan, 3, 4, np.random.default_rng(7))
    moved = draw_durations(NOISE, problem, costs, other, 3, 4, np.random.default_rng(7))
    assert (first == again).all()
    assert np.abs(moved[:, :, 1] / 9000 - first[:, :, 1] / 2000).max() < 1e-3
    assert (
        draw_durations(NOISE, problem, costs, plan, 3, 4, np.random.default_rng(8)) != first
    ).any()


def test_both_engines_and_the_scorer_run_what_was_drawn() -> None:
    problem, costs, plan = case()
    drawn = draw_durations(NOISE, problem, costs, plan, 5, 4, np.random.default_rng(1))
    scores = CompiledScorer(problem, costs).score_replicas(plan.placement, plan.priority, drawn)
    assert len(set(scores.tolist())) > 1
    for row, score in zip(drawn, scores, strict=True):
        trace = SimPyRuntime(costs).run(problem, plan, 4, row.tolist())
        compiled = CompiledRuntime(costs).run(problem, plan, 4, row)
        assert replace(compiled, runtime="simpy") == trace
        assert trace.makespan_ns == score


def test_settings_are_checked() -> None:
    problem, costs, plan = case()
    with pytest.raises(ConfigError, match="that of every kind is -1"):
        LognormalNoise(sigma=-1.0)
    with pytest.raises(ConfigError, match="that of rough is inf"):
        LognormalNoise(sigma_by_kind={"rough": float("inf")})
    with pytest.raises(ConfigError, match="are 0 and 4"):
        draw_durations(NOISE, problem, costs, plan, 0, 4, np.random.default_rng(0))
