"""`executor.static_mps=true` is refused at once where nobody is an MPS client."""

import dataclasses

import pytest
from test_coordinate import HARDWARE, SETTINGS
from test_coordinate import calibration as calibration_by_hand

from doppler import calibration as module
from doppler.calibration import calibration_key, load_or_calibrate
from doppler.cli import main
from doppler.config import CalibrationSettings, ExecutorSettings, RunConfig
from doppler.console import View
from doppler.core.errors import ConfigError
from doppler.core.layout import per_core_layout
from doppler.core.serialize import save
from doppler.jobs import build_job
from doppler.results import CLUSTER_FILE, PLAN_FILE
from doppler.running import run_plan
from doppler.simple_plans import job_problem, single_plan
from doppler.static_mps import check_static_mps
from executor.options import ExecutorOptions


def test_clients_of_mps_can_have_them():
    asked = ExecutorSettings(static_mps=True)
    check_static_mps(asked, {"mps"}, "it")
    check_static_mps(asked, {"cpu", "mps"}, "it")
    check_static_mps(ExecutorSettings(), {"cpu"}, "it")
    with pytest.raises(ConfigError, match=r"and it has none \(its devices are cpu, cuda\)"):
        check_static_mps(asked, {"cuda", "cpu"}, "it")


@pytest.mark.parametrize("command", ["learn", "calibrate"])
def test_what_runs_on_cores_refuses_them(command, capsys):
    assert main([command, "job=ppo_pendulum", "executor.static_mps=true"]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert f"and a layout of doppler {command} has none (its devices are cpu)" in err


def test_a_plan_for_cores_is_not_run_with_them(tmp_path):
    problem = job_problem(build_job(SETTINGS, 0), HARDWARE, per_core_layout(HARDWARE.processors[0]))
    save(problem.cluster, tmp_path / CLUSTER_FILE)
    save(single_plan(problem), tmp_path / PLAN_FILE, problem)
    config = RunConfig(
        job=SETTINGS,
        plan=str(tmp_path),
        results=str(tmp_path / "results"),
        executor=ExecutorSettings(static_mps=True),
    )
    with pytest.raises(ConfigError, match=r"cluster 'two/.*' has none"):
        run_plan(config, ["doppler", "run", "job=ppo_pendulum"], View())
    assert not (tmp_path / "results").exists()


def test_times_of_static_partitions_are_stored_apart(tmp_path, monkeypatch):
    def calibrate(settings, hardware, calibration, *, options, layouts, **_):
        key = calibration_key(
            settings, hardware, calibration, layouts, static_mps=options.static_mps
        )
        return dataclasses.replace(calibration_by_hand(True), key=key)

    monkeypatch.setattr(module, "calibrate", calibrate)
    for static in (False, True):
        options = ExecutorOptions(static_mps=static)
        for is_stored in (False, True):
            _, found = load_or_calibrate(
                SETTINGS,
                HARDWARE,
                CalibrationSettings(),
                tmp_path,
                seed=0,
                options=options,
                progress=lambda note: None,
            )
            assert found is is_stored
    assert len(list(tmp_path.iterdir())) == 2
