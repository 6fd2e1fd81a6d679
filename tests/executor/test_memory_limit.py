"""Core groups that may take no more private memory than they own: seen from outside and inside."""

import os
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from allocating_gmi import Allocates
from core_clusters import problem_of
from toy_job import toy_graph

from doppler import running
from doppler.compose import compose_config
from doppler.config import JOBS, RunConfig
from doppler.console import View
from doppler.core.cluster import Cluster, Device
from doppler.core.errors import CapacityError, ClusterError, KernelError
from doppler.gmi import GMIManager, core_groups
from doppler.jobs import build_job
from executor.core_trial import TRIAL_LIMIT_BYTES, verify_memory_limit
from executor.job_spec import JobSpec
from executor.launch.local import (
    LEAST_LIMIT_BYTES,
    LIMIT_VARIABLE,
    check_bound,
    memory_limit,
    worker_environment,
)
from executor.launch.seats import Seat
from executor.options import ExecutorOptions
from executor.probe import Finding
from executor.runtime import CoreExecutor

SHARE = 700 << 20
MORE = 800 << 20


def owning(num_bytes):
    """A device of one core that owns so much memory."""
    (device,) = core_groups(1).devices[:1]
    core = min(os.sched_getaffinity(0))
    return replace(device, cores=(core,), memory_bytes=num_bytes)


def manager_of(num_bytes, wanted, limit_memory=True):
    cluster = Cluster(name="one core", devices=(owning(num_bytes),))
    manager = GMIManager(cluster=cluster, limit_memory=limit_memory)
    manager.add_gmi(Allocates, "learner", 0, {"bytes": wanted})
    return manager


@pytest.mark.parametrize(("wanted", "limited"), [(MORE, False), (SHARE // 8, True)])
def test_a_gmi_takes_what_it_may(wanted, limited):
    assert manager_of(SHARE, wanted, limited).run(1, 1) == (wanted,)


def test_a_gmi_that_takes_more_than_its_share_is_named():
    with pytest.raises(KernelError, match=r"GMI 0 .* raised .*MemoryError.*Unable to allocate 800"):
        manager_of(SHARE, MORE).run(1, 1)


def test_a_share_that_holds_no_worker_is_refused():
    with pytest.raises(
        CapacityError, match=r"holds its worker \(536870912 bytes\), .* owns 1048576"
    ):
        manager_of(1 << 20, 1).run(1, 1)


@pytest.mark.parametrize("limited", [True, False])
def test_workers_of_an_executor_are_limited_to_their_share(limited):
    problem = problem_of(toy_graph())
    devices = tuple(replace(d, memory_bytes=SHARE + 4096) for d in problem.cluster.devices)
    problem = replace(problem, cluster=replace(problem.cluster, devices=devices))
    options = ExecutorOptions(limit_memory=limited)
    spec = JobSpec(path="toy_job:ToyJob")
    with CoreExecutor(spec, problem, options):
        seen = set()
        for child in psutil.Process().children():
            for line in Path(f"/proc/{child.pid}/limits").read_text().splitlines():
                if line.startswith("Max data size"):
                    seen.add(line.split()[3])
    assert seen == {str(SHARE + 4096) if limited else "unlimited"}


def test_a_worker_without_its_limit_refuses_to_run(monkeypatch):
    device = Device(name="core0", kind="cpu", parent="cpu")
    check_bound(device)
    monkeypatch.setenv(LIMIT_VARIABLE, "1234567")
    with pytest.raises(
        ClusterError, match="'core0' is limited to 1234567 bytes, and its limit is n"
    ):
        check_bound(device)


def test_a_limit_is_told_to_nobody_else():
    inherited = {"A": "b", LIMIT_VARIABLE: "1"}
    assert LIMIT_VARIABLE not in worker_environment(inherited, 1, [])
    assert worker_environment(inherited, 1, [], 5)[LIMIT_VARIABLE] == "5"
    assert Seat(devices=(0,)).environment(worker_environment({}, 1, [], 5))[LIMIT_VARIABLE] == "5"


def test_a_limit_above_what_this_process_may_take_is_refused(monkeypatch):
    device = owning(2 * LEAST_LIMIT_BYTES)
    assert memory_limit([device]) == 2 * LEAST_LIMIT_BYTES
    hard = LEAST_LIMIT_BYTES + 1
    monkeypatch.setattr("resource.getrlimit", lambda which: (hard, hard))
    with pytest.raises(CapacityError, match=rf"\({hard} bytes: ulimit -d\), and device .* owns"):
        memory_limit([device])


def test_the_limit_is_seen_from_inside():
    finding = verify_memory_limit(min(os.sched_getaffinity(0)))
    assert finding.is_present
    assert f"limited to {TRIAL_LIMIT_BYTES} bytes of private memory is refused more" in (
        finding.detail
    )


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        ({"error": "it ended"}, "absent: it ended"),
        ({"memory_bytes": None, "refuses": False}, "bytes sees None"),
        ({"memory_bytes": TRIAL_LIMIT_BYTES, "refuses": False}, "can take as much beside its own"),
    ],
)
def test_a_limit_that_does_not_hold_is_told(seen, text):
    finding = verify_memory_limit(0, lambda cores: seen)
    assert isinstance(finding, Finding)
    assert not finding.is_present
    assert text in finding.detail


@pytest.mark.parametrize("limited", [True, False])
def test_doppler_run_hands_the_setting_to_its_executor(tmp_path, limited):
    config = compose_config(RunConfig, [f"run.limit_memory={str(limited).lower()}"])
    job = build_job(JOBS["ppo_pendulum"], seed=0)
    runner = running._Runner(config, job, None, tmp_path, View())
    assert runner._options.limit_memory is limited


@pytest.mark.parametrize("static", [True, False])
def test_settings_of_the_executor_reach_it(static):
    config = compose_config(
        RunConfig, [f"executor.static_mps={str(static).lower()}", "executor.shm_dir=/tmp"]
    )
    assert config.executor.options() == ExecutorOptions(shm_dir="/tmp", static_mps=static)
    assert config.executor.options(limit_memory=True).limit_memory
