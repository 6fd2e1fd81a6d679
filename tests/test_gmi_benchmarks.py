"""The figures of the GMI benchmarks, by hand-worked rows."""

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import gmi_templates
import training_quality
from support.template_cell import crowd, on_real_cores, variants_on

from doppler.coordinator.variants import DRLJob
from doppler.core.costs import make_costs
from doppler.core.hardware import Hardware, Processor
from doppler.core.job_mode import JobMode
from doppler.core.plan import check_plan
from doppler.graphs.builder import GraphBuilder


def row(measured, predicted, width=0.0, oversubscribed=False):
    return gmi_templates.Row(
        name="t",
        gmis=2,
        oversubscribed=oversubscribed,
        predicted=predicted,
        measured=measured,
        low=measured - width,
        high=measured + width,
    )


def cell(*rows, mode="serving", num_envs=6, policy_low=1.0, is_policy_chosen=True):
    return gmi_templates.Cell(
        job="j",
        mode=mode,
        num_envs=num_envs,
        rows=rows,
        policy=(row(1.0, 1.0),),
        best="t",
        policy_best="policy",
        policy_ratio=1.2,
        policy_low=policy_low,
        is_policy_chosen=is_policy_chosen,
        phases=(1.0, 2.0, 3.0),
    )


def test_pairs_of_one_job_and_mode_count_whatever_their_number_of_environments():
    cells = [
        cell(row(10, 100), row(20, 300)),  # one pair, in order
        cell(row(30, 200), num_envs=12),  # above 10: in order; above 20, and predicted below
        cell(row(5, 999), mode="asynchronous"),  # alone in its mode
    ]
    assert gmi_templates.concordance(cells) == (2 / 3, 3)


def test_overlapping_intervals_are_no_pair_and_oversubscribed_rows_count_apart():
    cells = [
        cell(
            row(10, 100, width=2),
            row(13, 50, width=2),  # 8-12 meets 11-15: nobody knows which is faster
            row(40, 10, width=1, oversubscribed=True),
        )
    ]
    share, pairs = gmi_templates.concordance(cells)
    assert math.isnan(share)
    assert pairs == 0
    assert gmi_templates.concordance(cells, oversubscribed=True) == (0.0, 2)


def test_the_worst_cell_decides_and_what_is_not_known_is_left_out():
    figures = gmi_templates.figures_of([cell(row(10, 11)), cell(row(10, 8), policy_low=0.9)])
    assert figures["worst_learned_over_best_template"] == 0.9
    assert figures["median_prediction_error"] == pytest.approx(0.15)
    assert "concordance" not in figures
    assert figures["seconds"] == 12.0
    assert figures["num_pairs"] == 0


def test_a_template_that_is_kept_is_as_fast_as_itself_and_the_policys_plan_counts_apart():
    kept = cell(row(10, 11), policy_low=0.7, is_policy_chosen=False)
    figures = gmi_templates.figures_of([kept, cell(row(10, 11), policy_low=1.1)])
    assert figures["worst_learned_over_best_template"] == 1.0
    assert figures["worst_policy_over_best_template"] == 0.7
    assert figures["num_cells_with_a_plan_of_the_policy"] == 1
    assert figures["median_learned_over_best_template"] == 1.1


def curve(plan, scale, values, kept=""):
    """8 windows of 5 iterations, `scale` seconds per iteration after the first window."""
    count = 8 * training_quality.WINDOW
    done = [max(0, i + 1 - training_quality.WINDOW) for i in range(count)]
    return training_quality.Curve(
        job="j",
        seed=0,
        plan=plan,
        samples=list(range(1, count + 1)),
        seconds=[scale * iterations for iterations in done],
        values=[None, *[values[0]] * 19, *[values[1]] * 19, values[2]],
        plan_seconds=0.0,
        kept=kept,
    )


def test_times_are_to_the_same_return_and_curves_equal_in_every_bit():
    curves = [
        curve("single_device", 1.0, [10.0, 101.0, 110.0]),
        curve("dp_only", 0.6, [10.0, 101.0, 110.0]),
        curve("learned", 0.5, [10.0, 101.0, 100.0]),
    ]
    figures = training_quality.figures_of(curves)  # 90 % of the rise: 100, at iteration 21
    assert figures["worst_reward_ratio"] == pytest.approx(100 / 110)
    assert figures["worst_time_ratio"] == pytest.approx(0.5)
    assert figures["median_time_over_dp_only"] == pytest.approx(0.5 / 0.6)
    assert figures["worst_window_ratio_high"] == pytest.approx(0.5)
    assert figures["least_rise_of_return"] == 11.0
    assert figures["curves_equal"] == 0.5
    assert figures["runs_that_kept_another_plan"] == 0
    assert training_quality.time_to(curves[2], 102.0) == math.inf
    assert training_quality.time_to(curves[0], 101.0) == 16.0
    assert curves[0].windows() == [5.0] * 7


def test_a_run_that_is_resumed_reads_what_was_written(tmp_path):
    path = tmp_path / "cells.json"
    assert gmi_templates.read(path) == []
    cells = [cell(row(10, 11), row(20, 5))]
    gmi_templates.write(path, cells)
    assert gmi_templates.read(path) == cells


def test_three_gmis_on_two_cores_bind_the_third_to_the_first_core():
    cores = (4, 7)  # ids of the operating system, with a gap
    cpu = Processor(
        name="cpu",
        kind="cpu",
        model="x",
        num_units=2,
        memory_bytes=10**9,
        copy_engines=0,
        core_ids=cores,
    )
    hardware = Hardware(name="host", processors=(cpu,), links=())
    builder = GraphBuilder("serving")
    for k in range(6):
        builder.op(f"rollout[{k},0]", "rollout", outputs=[8], group=f"env[{k}]")
    graph = builder.build()
    job = DRLJob(
        name="s",
        mode=JobMode.serving,
        steps_per_iteration=6,
        build=lambda cut: graph,
        num_shards=6,
        num_trainers=1,
    )

    def costs(problem):
        return make_costs(problem, ((100,) * problem.cluster.num_devices,) * problem.graph.num_ops)

    job_variants = variants_on(job, crowd(hardware), costs, (3,))
    assert job_variants
    for crowded in job_variants:
        variant = on_real_cores(crowded, hardware)
        devices = variant.problem.cluster.devices
        assert [device.cores for device in devices] == [(4,), (7,), (4,)]
        assert variant.plan.placement == crowded.plan.placement
        check_plan(variant.problem, variant.plan)
