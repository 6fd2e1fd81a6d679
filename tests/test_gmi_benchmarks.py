"""The figures of the GMI benchmarks, by hand-worked rows."""

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import gmi_templates
import training_quality


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


def cell(*rows, mode="serving", num_envs=6, ratio_low=1.0):
    return gmi_templates.Cell(
        job="j",
        mode=mode,
        num_envs=num_envs,
        rows=rows,
        learned=(row(1.0, 1.0),),
        chosen="learned",
        best="t",
        ratio=1.0,
        ratio_low=ratio_low,
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
    figures = gmi_templates.figures_of([cell(row(10, 11)), cell(row(10, 8), ratio_low=0.9)])
    assert figures["worst_learned_over_best_template"] == 0.9
    assert figures["median_prediction_error"] == pytest.approx(0.15)
    assert "concordance" not in figures
    assert figures["seconds"] == 12.0
    assert figures["num_pairs"] == 0


def curve(plan, seconds, values):
    return training_quality.Curve(
        job="j",
        seed=0,
        plan=plan,
        samples=[1, 2, 3, 4],
        seconds=seconds,
        values=values,
        plan_seconds=0.0,
    )


def test_times_are_to_the_same_return_and_curves_equal_in_every_bit():
    values = [None, 10.0, 70.0, 110.0]
    curves = [
        curve("single_device", [1.0, 2.0, 4.0, 6.0], values),
        curve("dp_only", [0.5, 1.0, 2.0, 4.0], values),
        curve("learned", [0.5, 1.0, 3.0, 3.0], [None, 10.0, 70.0, 100.0]),
    ]
    figures = training_quality.figures_of(curves)  # 90 % of the rise: 100
    assert figures["worst_reward_ratio"] == pytest.approx(100 / 110)
    assert figures["worst_time_ratio"] == 0.5
    assert figures["median_time_over_dp_only"] == 0.75
    assert figures["least_rise_of_return"] == 11.0
    assert figures["curves_equal"] == 0.5
    assert training_quality.time_to(curves[2], 101.0) == math.inf


def test_a_run_that_is_resumed_reads_what_was_written(tmp_path):
    path = tmp_path / "cells.json"
    assert gmi_templates.read(path) == []
    cells = [cell(row(10, 11), row(20, 5))]
    gmi_templates.write(path, cells)
    assert gmi_templates.read(path) == cells
