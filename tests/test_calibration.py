"""Cost tables as they are stored: what the key covers, what a table says, what is refused."""

import dataclasses

import pytest

from doppler import calibration as module
from doppler import provenance
from doppler.calibration import (
    Calibration,
    DispatchCost,
    calibration_key,
    load_calibration,
    load_or_calibrate,
    save_calibration,
)
from doppler.config import JOBS, CalibrationSettings
from doppler.core.cluster import Cluster, Device
from doppler.core.errors import ConfigError, FormatError
from doppler.core.graph import DataflowGraph, Op
from doppler.core.hardware import Hardware, Processor
from doppler.core.problem import Problem
from executor.options import ExecutorOptions
from simulator.costs.measured import CostEntry

JOB = JOBS["ppo_pendulum"]
SETTINGS = CalibrationSettings()


def hardware_of(name="here", model="a CPU"):
    cpu = Processor(
        name="cpu", kind="cpu", model=model, num_units=2, memory_bytes=1, core_ids=(0, 1)
    )
    return Hardware(name=name, processors=(cpu,))


def stored(publish_ns=5000, kind="mul"):
    entry = CostEntry(
        kind=kind,
        flop=10,
        device_kind="cpu",
        cores=1,
        median_ns=700,
        spread_ns=1,
        slowdown_permille=0,
        count=9,
    )
    return Calibration(
        key="k",
        entries=(entry,),
        dispatch=(DispatchCost(device_kind="cpu", cores=1, time_ns=30),),
        publish_ns=publish_ns,
        provenance=(),
    )


def one_op_problem():
    graph = DataflowGraph(name="g", ops=(Op(name="a", kind="mul", flop=10),), edges=())
    device = Device(name="d", kind="cpu", parent="cpu", cores=(0,))
    return Problem(graph=graph, cluster=Cluster(name="c", devices=(device,)))


@pytest.mark.parametrize(
    "changes", [{"warmup": 4}, {"iterations": 9}, {"env_counts": [1.0]}, {"env_counts": [3.0]}]
)
def test_the_key_covers_how_it_is_measured(changes):
    assert calibration_key(JOB, hardware_of(), CalibrationSettings(**changes)) != calibration_key(
        JOB, hardware_of(), SETTINGS
    )


def test_the_key_covers_job_processors_and_package_but_not_the_host_name(monkeypatch):
    key = calibration_key(JOB, hardware_of(), SETTINGS)
    assert calibration_key(JOB, hardware_of(name="there"), SETTINGS) == key
    assert calibration_key(JOB, hardware_of(), CalibrationSettings(refresh=True)) == key
    assert calibration_key(JOB, hardware_of(model="another"), SETTINGS) != key
    assert calibration_key(dataclasses.replace(JOB, gamma=0.5), hardware_of(), SETTINGS) != key
    monkeypatch.setattr(provenance, "__version__", "0.0.0")
    assert calibration_key(JOB, hardware_of(), SETTINGS) != key


def test_the_key_covers_what_a_custom_job_file_says_and_not_where_it_lies(tmp_path):
    paths = [tmp_path / "a.py", tmp_path / "b.py"]
    for path in paths:
        path.write_text("class A: pass\n")
    jobs = [dataclasses.replace(JOBS["custom"], name="A", path=str(path)) for path in paths]
    keys = [calibration_key(job, hardware_of(), SETTINGS) for job in jobs]
    assert keys[0] == keys[1]
    paths[0].write_text("class A: environment = 'ant'\n")
    assert calibration_key(jobs[0], hardware_of(), SETTINGS) != keys[0]
    paths[0].unlink()
    with pytest.raises(ConfigError, match=r"a\.py"):
        calibration_key(jobs[0], hardware_of(), SETTINGS)


def test_a_stored_table_is_taken_unless_it_is_to_be_refreshed(tmp_path, monkeypatch):
    made = []

    def calibrate(settings, hardware, calibration, **_):
        made.append(1)
        key = calibration_key(settings, hardware, calibration)
        return dataclasses.replace(stored(), key=key)

    monkeypatch.setattr(module, "calibrate", calibrate)

    def load(settings):
        return load_or_calibrate(
            JOB,
            hardware_of(),
            settings,
            tmp_path,
            seed=0,
            options=ExecutorOptions(),
            progress=lambda note: None,
        )[1]

    assert [load(SETTINGS), load(SETTINGS)] == [False, True]
    assert load(CalibrationSettings(refresh=True)) is False
    assert len(made) == 2
    key = calibration_key(JOB, hardware_of(), SETTINGS)
    save_calibration(tmp_path / f"{key}.json", stored())
    with pytest.raises(FormatError, match="was made for key k"):
        load(SETTINGS)


def test_the_jobs_own_environment_count_is_always_measured():
    assert CalibrationSettings(env_counts=[2.0, 0.5]).env_counts == [0.5, 1.0, 2.0]
    with pytest.raises(ConfigError, match="env_counts are above 0"):
        CalibrationSettings(env_counts=[0.0])


def test_a_latency_that_was_not_measured_is_said_and_changes_no_hardware():
    hardware = hardware_of()
    assert stored(publish_ns=0).publish_text == "not measured"
    assert stored(publish_ns=0).hardware(hardware) == hardware
    assert stored().publish_text == "5.0 us"
    assert stored().hardware(hardware).processors[0].publish_ns == 5000


def test_a_table_of_another_version_is_refused(tmp_path):
    (tmp_path / "y.json").write_text('{"schema_version": 1, "calibration": {}}')
    with pytest.raises(FormatError, match="schema_version 1, and this version reads 2"):
        load_calibration(tmp_path / "y.json")


def test_the_revision_is_unknown_where_no_repository_tracks_this_file(tmp_path, monkeypatch):
    provenance._git(tmp_path, "init", "-q")
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    provenance._git(tmp_path, *who, "commit", "-q", "--allow-empty", "--no-verify", "-m", "first")
    copy = tmp_path / "provenance.py"
    copy.write_text("")
    monkeypatch.setattr(provenance, "__file__", str(copy))
    assert provenance.revision() == "unknown"


def test_corrections_of_the_running_job_are_stored_with_the_table(tmp_path):
    entry = CostEntry(
        kind="grad",
        flop=10,
        device_kind="cpu",
        cores=1,
        median_ns=100,
        spread_ns=0,
        slowdown_permille=0,
        count=5,
    )
    measured = Calibration(key="k", entries=(entry,), dispatch=(), publish_ns=5, provenance=())
    table = dataclasses.replace(measured.table(), factors_permille={("grad", "core1"): 1500})
    save_calibration(tmp_path / "t.json", measured.with_factors_of(table))
    assert load_calibration(tmp_path / "t.json").table() == table
