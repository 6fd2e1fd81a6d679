"""Environments under another interpreter: the same protocol, exact moves, clear failures."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from foreign_job import Drift
from interpreter import Interpreter

from doppler.core.errors import ConfigError, ExecutionError, WorkerDiedError, WorkerHungError
from executor.drl.bridge import BridgeEnvironment, Deadlines, ForeignSource
from executor.drl.custom import UserEnvironment, custom_job_config
from executor.drl.vector_env import VectorEnvironment, check_environment

JOBS = str(Path(__file__).with_name("foreign_job.py"))
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"


DEADLINES = Deadlines()


def source(name):
    return ForeignSource(path=JOBS, name=name)


@pytest.fixture(scope="session")
def python38(tmp_path_factory):
    """A Python 3.8 with numpy: one that has it, or a new venv where pip can fetch it."""
    candidates = sorted(PYENV.glob("3.8.*/bin/python"))
    if not candidates:
        pytest.skip("no Python 3.8 is installed through pyenv")
    python = str(candidates[-1])
    if (
        subprocess.run([python, "-c", "import numpy"], check=False, capture_output=True).returncode
        == 0
    ):
        return python
    folder = tmp_path_factory.mktemp("python38") / "venv"
    subprocess.run([python, "-m", "venv", str(folder)], check=True, capture_output=True)
    fresh = str(folder / "bin" / "python")
    try:
        install = [fresh, "-m", "pip", "install", "-q", "numpy==1.24.4"]
        done = subprocess.run(install, check=False, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        pytest.skip("pip did not install numpy for Python 3.8 within 120 s")
    if done.returncode != 0:
        pytest.skip(f"pip cannot install numpy for Python 3.8: {done.stderr.strip()[-200:]}")
    return fresh


def same_as_here(python):
    """Holds a bridged environment to the same class in this process, a move half-way included."""
    bridged = BridgeEnvironment(python, source("DriftJob"), 4, 3)
    here = UserEnvironment(Drift(4, 3), "DriftJob", 4)
    try:
        assert isinstance(bridged, VectorEnvironment)
        check_environment(bridged, 0)
        assert np.array_equal(bridged.reset(5), here.reset(5))
        random = np.random.default_rng(0)
        ends = 0
        for t in range(60):
            if t == 30:
                state = bridged.export_state()
                bridged.close()
                bridged = BridgeEnvironment(python, source("DriftJob"), 4, 3)
                bridged.import_state(state)
            actions = random.uniform(-1.5, 1.5, (4, 2)).astype(np.float32)
            mine, theirs = here.step(actions), bridged.step(actions)
            for a, b in zip(mine, theirs, strict=True):
                assert a.tobytes() == b.tobytes()
            ends += int((mine.terminated | mine.truncated).sum())
        assert ends > 0
        assert bridged.state_bytes == 4 * 2 * 8 + 4 * 8
        bridged.set_threads(2)
    finally:
        bridged.close()


def test_this_interpreter_serves_the_same_protocol():
    same_as_here(sys.executable)


@pytest.mark.slow
def test_python_38_serves_the_same_protocol(python38):
    same_as_here(python38)


def test_nothing_is_left_behind():
    def segments():
        return sorted(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else []

    before, files = segments(), len(os.listdir("/proc/self/fd"))
    environment = BridgeEnvironment(sys.executable, source("DriftJob"), 2, 0)
    pid = environment._process.pid
    assert [name for name in segments() if "doppler-environments" in name] == []
    environment.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    del environment
    assert len(os.listdir("/proc/self/fd")) <= files + 1
    assert len(segments()) <= len(before) + 1


def test_a_worker_ends_when_its_environment_is_forgotten():
    environment = BridgeEnvironment(sys.executable, source("DriftJob"), 2, 0)
    pid = environment._process.pid
    del environment
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def step(name, deadlines=DEADLINES):
    environment = BridgeEnvironment(sys.executable, source(name), 2, 0, deadlines)
    try:
        environment.reset(0)
        environment.step(np.zeros((2, 2), np.float32))
    finally:
        environment.close()


def test_an_error_inside_brings_its_traceback():
    with pytest.raises(ExecutionError, match=r"RaisingJob failed in step: (.|\n)*left wheel"):
        step("RaisingJob")


def test_a_death_is_reported_with_exit_code_and_last_words():
    with pytest.raises(WorkerDiedError, match=r"exit code 3 during step; .* out of luck"):
        step("DyingJob")


def test_a_hang_is_ended_by_its_deadline():
    with pytest.raises(WorkerHungError, match=r"did not answer step within 0.3 s"):
        step("HangingJob", Deadlines(command_s=0.3))


def test_wrong_shapes_are_refused_not_broadcast():
    with pytest.raises(
        ExecutionError, match=r"observations must have shape \[2, 3\], not \[2, 2\]"
    ):
        step("WrongShapeJob")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("TooFewJob", ConfigError, "must make 2 copies, but made 3"),
        ("BrokenStartJob", WorkerDiedError, r"during start; (.|\n)*no licence found"),
        ("NoSuchJob", WorkerDiedError, "has no class 'NoSuchJob'"),
    ],
)
def test_a_bad_start_is_told(name, error, message):
    with pytest.raises(error, match=message):
        BridgeEnvironment(sys.executable, source(name), 2, 0)


def test_a_missing_interpreter_is_told():
    with pytest.raises(ConfigError, match="env_python '/no/python' cannot be started"):
        BridgeEnvironment("/no/python", source("DriftJob"), 2, 0)


def test_an_environment_without_state_refuses_to_move():
    environment = BridgeEnvironment(sys.executable, source("WrongShapeJob"), 2, 0)
    with pytest.raises(ExecutionError, match="cannot be moved: it has no export_state"):
        environment.export_state()
    with pytest.raises(ExecutionError, match="cannot be continued"):
        environment.import_state({})
    environment.close()
    with pytest.raises(ExecutionError, match="was closed"):
        environment.reset(0)


def test_a_foreign_state_is_refused():
    environment = BridgeEnvironment(sys.executable, source("DriftJob"), 2, 0)
    with pytest.raises(ExecutionError, match=r"state:elapsed must be int64\[2\]"):
        environment.import_state({"position": np.zeros((2, 2))})
    environment.close()


def test_a_job_learns_through_the_bridge_as_without_it():
    here = custom_job_config(JOBS, "DriftJob", {"num_shards": 2, "envs_per_shard": 2})
    there = here.with_settings({"env_python": sys.executable})
    runs = [Interpreter(config) for config in (here, there)]
    try:
        vectors = [run.run(2).vector().tobytes() for run in runs]
    finally:
        for k in range(2):
            runs[1].groups[f"env[{k}]"].close()
    assert vectors[0] == vectors[1]
