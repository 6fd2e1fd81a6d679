"""`doppler run`: checkpoints, resume, recovery, and what is refused."""

import contextlib
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
from omegaconf import OmegaConf
from rich.console import Console

from doppler import running
from doppler.calibration import calibrate, load_calibration, save_calibration
from doppler.cli import main
from doppler.compose import compose_config
from doppler.config import (
    JOBS,
    CalibrationSettings,
    JobConfig,
    LearnConfig,
    RunConfig,
    RunSettings,
)
from doppler.config import OnFailure as Policy
from doppler.console import View
from doppler.core.cluster import Cluster, Device, Link, Route
from doppler.core.errors import ConfigError, DopplerError, FormatError, PlanError, WorkerDiedError
from doppler.core.layout import per_core_layout
from doppler.core.problem import Objective, Problem
from doppler.core.serialize import load_cluster, load_graph, load_plan, save
from doppler.jobs import build_job
from doppler.report.html import PAGE_FILE
from doppler.report.model import load_report
from doppler.results import (
    CHECKPOINT_FILE,
    CLUSTER_FILE,
    CONFIG_FILE,
    COSTS_FILE,
    GRAPH_FILE,
    LATEST,
    METRICS_FILE,
    PLAN_FILE,
    write_settings,
)
from doppler.running import _resolved, load_checkpoint, run_plan, surviving_cluster
from doppler.session import RewardRecord, mean_return
from doppler.simple_plans import job_problem, single_plan, spread_plan
from doppler.tensor_file import write_tensors
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


def run(config, command=COMMAND, said=None):
    return run_plan(config, command, View(Console(file=said or io.StringIO(), width=200)))


def rewards(folder):
    lines = (folder / METRICS_FILE).read_text().splitlines()
    return [json.loads(line) for line in lines]


def no_worker_left():
    return not [p for p in psutil.Process().children(recursive=True) if "executor" in p.name()]


def test_resuming_a_run_gives_what_one_long_run_gives(stored, tmp_path):
    whole = run(config_of(stored, tmp_path, iterations=8))
    said = io.StringIO()
    first = run(config_of(stored, tmp_path, iterations=5, limit_memory=True), said=said)
    assert "ppo_pendulum: environment pendulum; " in said.getvalue()
    assert "the most that it may take" in said.getvalue()
    second = run(config_of(stored, tmp_path, iterations=3, resume=str(first)))
    assert rewards(first) + rewards(second) == rewards(whole)
    a, b = load_checkpoint(whole), load_checkpoint(second)
    assert a.iteration == b.iteration == 8
    assert a.tokens.keys() == b.tokens.keys()
    assert all(np.array_equal(a.tokens[key], b.tokens[key]) for key in a.tokens)
    assert no_worker_left()
    report = load_report(whole)
    assert [(row.name, row.measured.num_windows) for row in report.planners] == [("dp_only", 1)]
    assert [point.iteration for point in report.reward] == list(range(8))
    (whole / PAGE_FILE).unlink()
    assert main(["report", str(whole)]) == 0
    assert "plan dp_only" in (whole / PAGE_FILE).read_text()
    assert not (second / PAGE_FILE).exists()  # three iterations fill the pipeline, no more


def test_a_result_folder_can_be_run_and_resumed_again_without_naming_the_job(stored, tmp_path):
    first = run(config_of(stored, tmp_path, iterations=3))
    assert (tmp_path / "results" / LATEST).resolve() == first.resolve()
    assert (first / COSTS_FILE).read_bytes() == (stored / COSTS_FILE).read_bytes()
    assert load_graph(first / GRAPH_FILE) == build_job(JOB, 0).graph
    again = RunConfig(
        plan=str(first),
        run=RunSettings(iterations=2, resume=str(first)),
        results=str(tmp_path / "results"),
    )
    second = run(again, ["doppler", "run", str(first)])
    assert load_checkpoint(second).iteration == 5
    for name in (CONFIG_FILE, CLUSTER_FILE, PLAN_FILE, GRAPH_FILE):
        assert (second / name).exists()
    document = OmegaConf.load(second / CONFIG_FILE)["job"]
    assert OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(JobConfig), document)) == JOB


def test_words_of_the_command_line_change_the_stored_job_and_nothing_else(tmp_path):
    write_settings(tmp_path, LearnConfig(job=JOB, seed=7), ["doppler", "learn"])
    words = ["doppler", "run", "results/latest", "job.gamma=0.5", "job.chunk=16"]
    config = compose_config(RunConfig, words[3:])
    resolved = _resolved(config, words, tmp_path)
    assert resolved.job == dataclasses.replace(JOB, gamma=0.5, chunk=16)
    assert resolved.seed == 7
    assert _resolved(config, [*words, "seed=0"], tmp_path).seed == 0
    named = ["job=ppo_ant", "job.gamma=0.5"]
    config = compose_config(RunConfig, named)
    assert _resolved(config, named, tmp_path).job == dataclasses.replace(JOBS["ppo_ant"], gamma=0.5)


def test_a_stored_job_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / CONFIG_FILE).write_text("job: {gama: 1}")
    with pytest.raises(FormatError, match=CONFIG_FILE):
        _resolved(RunConfig(), ["doppler", "run"], tmp_path)


def test_the_last_return_weighs_iterations_by_their_episodes():
    def record(episodes, value):
        return RewardRecord(
            iteration=0,
            env_steps=1,
            num_episodes=episodes,
            mean_return=value,
            reward_per_step=0.0,
            mean_length=None,
        )

    assert mean_return([record(1, 10.0), record(0, None), record(3, 2.0)]) == 4.0
    assert mean_return([record(0, None)]) is None


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / CHECKPOINT_FILE
    write_tensors(path, {"a": np.arange(3)})
    old = path.read_bytes()
    with pytest.raises(AttributeError):
        write_tensors(path, {"a": "no array"})
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_a_target_reward_ends_the_run(stored, tmp_path):
    folder = run(config_of(stored, tmp_path, iterations=500, target_reward=1.0))
    assert load_checkpoint(folder).iteration < 500


def running_workers():
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it may have ended meanwhile
            if "executor.workers.cpu" in child.cmdline():
                found.append(child)
    return found


def kill_a_running_worker(results):
    """Kills a worker as soon as the run has written rewards; returns a thread to join."""

    def kill():
        until = time.monotonic() + 90
        while time.monotonic() < until:
            workers = running_workers() if list(results.glob(f"*/{METRICS_FILE}")) else []
            if workers:
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
    assert not (tmp_path / "results" / LATEST).exists()


def test_a_killed_worker_is_replaced_by_a_plan_for_the_rest(stored, tmp_path):
    thread = kill_a_running_worker(tmp_path / "results")
    config = config_of(
        stored, tmp_path, iterations=120, checkpoint_every=10, on_failure=Policy.replan
    )
    folder = run(config)
    thread.join()
    assert load_checkpoint(folder).iteration == 120
    assert load_cluster(folder / CLUSTER_FILE).num_devices == 1
    assert [record["iteration"] for record in rewards(folder)] == list(range(120))
    assert no_worker_left()


def test_a_worker_that_dies_while_the_new_plan_starts_ends_the_run_by_name(
    stored, tmp_path, monkeypatch
):
    """Who is left is known by the numbers of the old devices only, so nobody goes on with them."""
    real, begun = running.JobSession, []

    def session(*arguments):
        begun.append(arguments)
        if len(begun) == 2:
            raise WorkerDiedError("the worker of device 'core' ended at its start")
        return real(*arguments)

    monkeypatch.setattr(running, "JobSession", session)
    thread = kill_a_running_worker(tmp_path / "results")
    with pytest.raises(WorkerDiedError, match="at its start"):
        run(config_of(stored, tmp_path, iterations=100_000, on_failure=Policy.replan))
    thread.join()
    assert len(begun) == 2
    assert no_worker_left()


def test_a_run_that_follows_drift_leaves_a_plan_that_its_costs_no_longer_explain(stored, tmp_path):
    """The stored table says a quarter of the truth, and the plan leaves one of two cores idle."""
    problem = Problem(
        graph=build_job(JOB, 0).graph,
        cluster=load_cluster(stored / CLUSTER_FILE),
        objective=Objective.period,
    )
    calibration = load_calibration(stored / COSTS_FILE)
    quarter = tuple(dataclasses.replace(e, median_ns=e.median_ns // 4) for e in calibration.entries)
    save_calibration(tmp_path / COSTS_FILE, dataclasses.replace(calibration, entries=quarter))
    save(problem.cluster, tmp_path / CLUSTER_FILE)
    save(single_plan(problem), tmp_path / PLAN_FILE, problem)
    folder = run(config_of(tmp_path, tmp_path, iterations=40, adapt=True))
    windows = [line for line in rewards(folder) if line["record"] == "WindowRecord"]
    assert [line["first_iteration"] for line in windows] == [0, 10, 20, 30]
    assert [line["replanned"] for line in windows][:2] == [False, True]
    assert windows[0]["measured_ns"] > 2 * windows[0]["predicted_ns"]
    assert set(load_plan(folder / PLAN_FILE, problem).placement) == {0, 1}


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


def test_recovery_with_a_cost_table_of_another_job_is_refused_before_anything_starts(
    stored, tmp_path
):
    for name in (CLUSTER_FILE, PLAN_FILE):
        (tmp_path / name).write_bytes((stored / name).read_bytes())
    table = load_calibration(stored / COSTS_FILE)
    save_calibration(tmp_path / COSTS_FILE, dataclasses.replace(table, entries=table.entries[:1]))
    with pytest.raises(DopplerError, match="the cost table has no op kind"):
        run(config_of(tmp_path, tmp_path, on_failure=Policy.replan))
    assert not (tmp_path / "results").exists()


def test_links_and_routes_among_the_survivors_are_kept():
    devices = [Device(name=name, kind="cpu", parent=name) for name in "abcd"]
    pairs = ["ab", "ba", "bc", "cb", "cd"]
    cluster = Cluster(
        name="line",
        devices=tuple(devices),
        links=tuple(Link(src=src, dst=dst) for src, dst in pairs),
        routes=(Route("a", "c", ("b",)), Route("a", "d", ("b", "c"))),
    )
    left = surviving_cluster(cluster, devices[:3])
    assert [link.src + link.dst for link in left.links] == ["ab", "ba", "bc", "cb"]
    assert left.routes == (Route("a", "c", ("b",)),)
    assert surviving_cluster(cluster, [devices[0], devices[2]]).routes == ()


def test_the_command_line_says_what_is_missing(capsys):
    assert main(["run"]) == 2
    assert "needs a plan" in capsys.readouterr().err
    assert main(["run", "nowhere/plan.json"]) == 2
    assert "no plan at" in capsys.readouterr().err
    assert main(["lern"]) == 2
    assert "did you mean 'learn'" in capsys.readouterr().err
