"""The check of a calibration: which plans it runs, how errors are counted, what it shows.

Seen to fail: plans without the look at those already taken, medians with the first iteration left
in, biases of means in place of sums, and noise of the table where a number was given.
"""

import dataclasses
import json

import pytest
from test_calibration import stored

from doppler.calibration import load_calibration, save_calibration
from doppler.calibration_check import (
    CalibrationCheck,
    OpPoint,
    PlanPoint,
    held_out_plans,
    kind_errors,
    op_medians_ns,
    save_check,
)
from doppler.calibration_view import check_tables, draw_check, fit_table, launch_table
from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.errors import ConfigError
from doppler.core.graph import DataflowGraph, Op
from doppler.core.plan import make_plan
from doppler.core.problem import Objective, Problem
from doppler.core.trace import OpSpan, Trace
from doppler.cost_choice import CostChoice
from doppler.graphs.imported import ImportedGraph
from doppler.measure import Interval
from simulator.calibration.held_out import FoldShift, HeldOutError
from simulator.calibration.launch import LaunchFit
from simulator.calibration.noise import KindNoise
from simulator.costs.roofline import RooflineModel
from simulator.noise import LognormalNoise


class EqualTimes:
    """Every op takes 100 ns."""

    def costs(self, problem):
        row = (100,) * problem.cluster.num_devices
        return make_costs(problem, (row,) * problem.graph.num_ops)


def problem_of(num_ops):
    devices = tuple(
        Device(name=f"d{i}", kind="cpu", parent="cpu", share=0.5, cores=(i,)) for i in range(2)
    )
    return Problem(
        graph=DataflowGraph(
            name="g", ops=tuple(Op(name=f"o{i}", kind="mul") for i in range(num_ops)), edges=()
        ),
        cluster=Cluster(
            name="c", devices=devices, links=(Link(src="d0", dst="d1"), Link(src="d1", dst="d0"))
        ),
    )


@pytest.mark.parametrize("seed", range(5))
def test_held_out_plans_differ_from_each_other_and_from_those_of_calibration(seed):
    problem = problem_of(5)
    seen = [
        make_plan(problem, placement, (0,) * 5, "seen")
        for placement in ((0,) * 5, (0, 1, 0, 1, 0), (1, 0, 1, 0, 1))
    ]
    plans = held_out_plans(problem, EqualTimes(), seen, 29, seed)
    placements = {tuple(plan.placement) for _, plan in plans}
    assert len(plans) == len(placements) == len({name for name, _ in plans}) == 29
    assert not placements & {tuple(plan.placement) for plan in seen}
    assert held_out_plans(problem, EqualTimes(), seen, 29, seed) == plans


def test_more_plans_than_there_are_placements_are_refused():
    with pytest.raises(ConfigError, match=r"a check runs 9 placements.*lower check\.plans"):
        held_out_plans(problem_of(1), EqualTimes(), (), 9, 0)


def span(op, iteration, start, end, device=0):
    return OpSpan(
        op=op,
        iteration=iteration,
        device=device,
        stream=0,
        ready_ns=start,
        start_ns=start,
        end_ns=end,
    )


def test_medians_leave_the_first_iteration_of_every_window_out():
    def window(first, *durations):
        return Trace(
            graph_digest="",
            cluster_digest="",
            source="hand",
            runtime="executor",
            iterations=len(durations),
            op_spans=tuple(span(0, first + i, 0, ns) for i, ns in enumerate(durations)),
            transfers=(),
            peak_bytes=(),
        )

    assert op_medians_ns([window(0, 900, 10, 20), window(7, 900, 30)]) == {(0, 0): 20}


def point(kind, measured, *predicted):
    return OpPoint(
        plan="p", op="o", kind=kind, device="d0", measured_ns=measured, predicted_ns=predicted
    )


def test_errors_per_kind_by_hand():
    """mul: 50 of 100 and 300 of 200 before: |-0.5|, |0.5|, 350 of 300; exact after."""
    rows = kind_errors(
        [
            point("mul", 100, 50, 100),
            point("mul", 200, 300, 200),
            point("add", 10, 20, 11),
            point("add", 0, 5, 5),
        ],
        2,
    )
    assert [(row.kind, row.count, row.measured_ns) for row in rows] == [
        ("mul", 2, 300),
        ("add", 1, 10),
        ("all", 3, 310),
    ]
    assert rows[0].median_error == pytest.approx((0.5, 0.0))
    assert rows[0].bias == pytest.approx((350 / 300 - 1, 0.0))
    assert rows[1].median_error == pytest.approx((1.0, 0.1))
    assert rows[2].bias == pytest.approx((370 / 310 - 1, 311 / 310 - 1))
    assert kind_errors([], 2) == ()


def a_check():
    ops = (point("mul", 100, 50, 100), point("add", 10, 20, 11))
    return CalibrationCheck(
        job="a job",
        machine="a CPU",
        seed=0,
        windows=2,
        iterations=3,
        models=("roofline", "calibrated"),
        kinds=kind_errors(ops, 2),
        plans=(
            PlanPoint(plan="x", measured_ns=Interval(100.0, 90.0, 105.0), predicted_ns=(50, 110)),
            PlanPoint(plan="y", measured_ns=Interval(200.0, 190.0, 205.0), predicted_ns=(60, 204)),
        ),
        ops=ops,
    )


def test_a_check_is_stored_and_drawn(tmp_path):
    check = a_check()
    assert check.period_errors == pytest.approx(((0.5 + 0.7) / 2, (0.1 + 0.02) / 2))
    save_check(tmp_path / "c.json", check)
    document = json.loads((tmp_path / "c.json").read_text())
    assert document["plans"][0]["measured_ns"] == {"value": 100.0, "low": 90.0, "high": 105.0}
    assert document["kinds"][-1]["kind"] == "all"
    draw_check(tmp_path / "c.png", check)
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    kinds, plans = check_tables(check)
    assert list(kinds.columns[3].cells) == ["50.0% (-50.0%)", "100.0% (+100.0%)", "75.0% (-36.4%)"]
    assert list(plans.columns[3].cells)[-1] == "6.0%"


def fitted():
    return dataclasses.replace(
        stored(),
        noise=(KindNoise(kind="mul", sigma=0.25, tail_share=0.02, count=9),),
        launches=(
            LaunchFit(
                kind="mul", device_kind="cpu", cores=1, share=1.0, launch_ns=1500,
                flop_per_s=2 * 10**9, median_error=0.01, count=9,
            ),
        ),
        held_out=(HeldOutError(kind="mul", median_error=0.1, bias=-0.02, count=9),),
        shifts=(FoldShift(fold=1, is_shared=True, ratio=1.3, count=9),),
    )  # fmt: skip


def test_what_was_fitted_is_stored_and_shown(tmp_path):
    save_calibration(tmp_path / "t.json", fitted())
    assert load_calibration(tmp_path / "t.json") == fitted()
    assert [next(iter(c.cells)) for c in fit_table(fitted()).columns] == [
        "mul", "0.250", "2.0%", "10.0%", "-2.0%", "9",
    ]  # fmt: skip
    assert [next(iter(c.cells)) for c in launch_table(fitted()).columns][2:4] == ["1.5", "2.00"]


def test_a_table_from_windows_that_disagree_warns():
    assert "took 1.30 times what the other windows say" in fitted().warning
    assert stored().warning is None


def test_a_table_of_the_version_before_is_read_with_nothing_fitted(tmp_path):
    save_calibration(tmp_path / "t.json", fitted())
    document = json.loads((tmp_path / "t.json").read_text())
    document["schema_version"] = 3
    del document["calibration"]["shifts"]
    (tmp_path / "t.json").write_text(json.dumps(document))
    assert load_calibration(tmp_path / "t.json") == dataclasses.replace(fitted(), shifts=())
    document["schema_version"] = 2
    for key in ("noise", "launches", "links", "held_out"):
        del document["calibration"][key]
    (tmp_path / "t.json").write_text(json.dumps(document))
    assert load_calibration(tmp_path / "t.json") == stored()


def test_the_slow_tail_takes_measured_noise_where_no_number_is_given(tmp_path):
    def choice(path):
        graph = problem_of(1).graph
        return CostChoice(
            path=path, fallback=False, imported=ImportedGraph(graph=graph), roofline=RooflineModel()
        )

    path = str(tmp_path / "t.json")
    save_calibration(tmp_path / "t.json", fitted())
    measured = LognormalNoise(sigma=0.25, sigma_by_kind={"mul": 0.25})
    assert choice(path).noise(0.0, Objective.p95) == measured
    assert choice(path).noise(0.1, Objective.p95) == LognormalNoise(sigma=0.1)
    assert choice(path).noise(0.0, Objective.period) == LognormalNoise(sigma=0.0)
    save_calibration(tmp_path / "t.json", stored())
    for given in (path, None):
        with pytest.raises(ConfigError, match="needs the spread of op times, and costs="):
            choice(given).noise(0.0, Objective.p95)
