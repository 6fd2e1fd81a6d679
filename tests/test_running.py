"""`doppler run`: checkpoints, resume, recovery, and what is refused."""

import dataclasses
import io
import json
import os
import signal
import threading
import time

import numpy as np
import psutil
import pytest
from rich.console import Console

from doppler.calibration import calibrate, job_problem, save_calibration, spread_plan
from doppler.cli import main
from doppler.config import JOBS, CalibrationSettings, RunConfig, RunSettings
from doppler.config import OnFailure as Policy
from doppler.console import View
from doppler.core.errors import ConfigError, FormatError, PlanError, WorkerDiedError
from doppler.core.layout import per_core_layout
from doppler.core.serialize import load_cluster, save
from doppler.jobs import build_job
from doppler.results import CHECKPOINT_FILE, CLUSTER_FILE, COSTS_FILE, METRICS_FILE, PLAN_FILE
from doppler.running import load_checkpoint, run_plan
from executor.options import ExecutorOptions
from executor.probe import probe

pytestmark = pytest.mark.timeout(180)
JOB = dataclasses.replace(
    JOBS["ppo_pendulum"], envs_per_shard=4, horizon=16, chunk=8, minibatches=2, hidden=[16]
)
COMMAND = ["doppler", "run", "job=ppo_pendulum"]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A folder with plan, cluster and cost table."""
    folder = tmp_path_factory.mktemp("stored")
    hardware = probe().hardware
    cpu = hardware.processors[0]
    if cpu.num_units < 2:
        pytest.skip("needs two usable cores")
    calibration = calibrate(
        JOB,
        hardware,
        CalibrationSettings(warmup=1, iterations=3, env_counts=[1.0]),
        seed=0,
        options=ExecutorOptions(),
        progress=lambda note: None,
    )
    save_calibration(folder / COSTS_FILE, calibration)
    job = build_job(JOB, 0)
    problem = job_problem(job, calibration.hardware(hardware), per_core_layout(cpu))
    save(problem.cluster, folder / CLUSTER_FILE)
    save(spread_plan(problem), folder / PLAN_FILE, problem)
    return folder


def config_of(stored, tmp_path, **changes):
    return RunConfig(
        plan=str(stored), job=JOB, run=RunSettings(**changes), results=str(tmp_path / "results")
    )


def run(config):
    view = View(Console(file=io.StringIO(), width=200))
    return run_plan(config, COMMAND, view)


def rewards(folder):
    lines = (folder / METRICS_FILE).read_text().splitlines()
    return [json.loads(line) for line in lines]


def no_worker_left():
    return not [p for p in psutil.Process().children(recursive=True) if "executor" in p.name()]


def test_resuming_a_run_gives_what_one_long_run_gives(stored, tmp_path):
    whole = run(config_of(stored, tmp_path, iterations=8))
    first = run(config_of(stored, tmp_path, iterations=5))
    second = run(config_of(stored, tmp_path, iterations=3, resume=str(first)))
    assert rewards(first) + rewards(second) == rewards(whole)
    a, b = load_checkpoint(whole), load_checkpoint(second)
    assert a.iteration == b.iteration == 8
    assert a.tokens.keys() == b.tokens.keys()
    assert all(np.array_equal(a.tokens[key], b.tokens[key]) for key in a.tokens)
    assert no_worker_left()


def test_a_target_reward_ends_the_run(stored, tmp_path):
    folder = run(config_of(stored, tmp_path, iterations=500, target_reward=1.0))
    assert load_checkpoint(folder).iteration < 500


def kill_a_running_worker(results):
    """Kills a worker as soon as the run has written rewards; returns a thread to join."""

    def kill():
        until = time.monotonic() + 90
        while time.monotonic() < until:
            if list(results.glob(f"*/{METRICS_FILE}")):
                workers = [
                    p for p in psutil.Process().children() if "executor.workers.cpu" in p.cmdline()
                ]
                os.kill(workers[0].pid, signal.SIGKILL)
                return
            time.sleep(0.02)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def test_a_killed_worker_ends_the_run_by_name(stored, tmp_path):
    thread = kill_a_running_worker(tmp_path / "results")
    with pytest.raises(WorkerDiedError, match="core"):
        run(config_of(stored, tmp_path, iterations=100_000))
    thread.join()
    assert no_worker_left()


def test_a_killed_worker_is_replaced_by_a_plan_for_the_rest(stored, tmp_path):
    thread = kill_a_running_worker(tmp_path / "results")
    config = config_of(
        stored, tmp_path, iterations=120, checkpoint_every=10, on_failure=Policy.replan
    )
    folder = run(config)
    thread.join()
    assert load_checkpoint(folder).iteration == 120
    assert load_cluster(folder / CLUSTER_FILE).num_devices == 1
    assert no_worker_left()


def test_a_plan_for_another_job_is_refused(stored, tmp_path):
    config = config_of(stored, tmp_path)
    config.job = dataclasses.replace(JOB, num_trainers=4)
    with pytest.raises(PlanError, match="graph"):
        run(config)


def test_a_damaged_plan_is_refused(stored, tmp_path):
    for name in (CLUSTER_FILE, COSTS_FILE):
        (tmp_path / name).write_bytes((stored / name).read_bytes())
    (tmp_path / PLAN_FILE).write_text((stored / PLAN_FILE).read_text()[:-40])
    with pytest.raises(FormatError, match=PLAN_FILE):
        run(config_of(tmp_path, tmp_path))


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"\x80\x04K\x01."])
def test_a_damaged_checkpoint_is_refused(stored, tmp_path, content):
    (tmp_path / CHECKPOINT_FILE).write_bytes(content)
    with pytest.raises(FormatError, match="checkpoint"):
        run(config_of(stored, tmp_path, resume=str(tmp_path)))


def test_recovery_without_a_cost_table_is_refused_before_anything_starts(stored, tmp_path):
    for name in (CLUSTER_FILE, PLAN_FILE):
        (tmp_path / name).write_bytes((stored / name).read_bytes())
    with pytest.raises(ConfigError, match=COSTS_FILE):
        run(config_of(tmp_path, tmp_path, on_failure=Policy.replan))


def test_the_command_line_says_what_is_missing(capsys):
    assert main(["run"]) == 2
    assert "needs a plan" in capsys.readouterr().err
    assert main(["run", "nowhere/plan.json"]) == 2
    assert "no plan at" in capsys.readouterr().err
    assert main(["lern"]) == 2
    assert "did you mean 'learn'" in capsys.readouterr().err
