"""Isaac Gym's and Isaac Lab's adapters in the bridge, on modules that keep to their documentation.

The simulators need a GPU and another Python; the modules in `fake_simulators` have their interface.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

from doppler.core.errors import ConfigError, WorkerDiedError
from executor.drl.bridge import BridgeEnvironment, ForeignSource
from executor.drl.config import PPOJobConfig
from executor.drl.environments import TASKS
from executor.drl.isaac_names import ISAAC_NAMES, isaac_task
from executor.drl.sources import resolve_source
from executor.drl.vector_env import check_environment

FAKES = Path(__file__).with_name("fake_simulators")
SIMULATORS = ("isaacgym", "isaaclab")


@pytest.fixture
def fakes(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(FAKES))


def resolved(environment):
    return resolve_source(PPOJobConfig(environment=environment, env_python=sys.executable))


def actions(*rows):
    return np.array(rows, np.float32)


def test_our_six_names_mean_a_task_in_both_simulators():
    assert set(ISAAC_NAMES) == set(TASKS) - {"pendulum"}
    assert isaac_task("isaacgym:franka_cabinet") == ("isaacgym", "FrankaCabinet")
    assert isaac_task("isaaclab:ant") == ("isaaclab", "Isaac-Ant-Direct-v0")
    assert isaac_task("isaacgym:AllegroHand") == ("isaacgym", "AllegroHand")
    assert isaac_task("isaaclab:Isaac-Cartpole-v0") == ("isaaclab", "Isaac-Cartpole-v0")
    assert isaac_task("ant") is None
    assert isaac_task("mujoco_warp:ant") is None


def test_a_name_without_a_task_is_told():
    with pytest.raises(ConfigError, match="Isaac Lab has no task like 'ball_balance'"):
        isaac_task("isaaclab:ball_balance")
    with pytest.raises(ConfigError, match="'isaacgym:' names no task"):
        isaac_task("isaacgym:")


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_a_simulator_needs_its_interpreter(simulator):
    with pytest.raises(ConfigError, match="needs env_python"):
        resolve_source(PPOJobConfig(environment=f"{simulator}:ant"))


def test_an_environment_of_ours_needs_none():
    with pytest.raises(ConfigError, match="env_python must be empty"):
        resolved("ant")


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_a_simulator_that_is_not_installed_is_told(simulator):
    with pytest.raises(WorkerDiedError, match=f"No module named '{simulator}'"):
        resolved(f"{simulator}:ant")


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_sizes_and_protocol(fakes, simulator):
    source = resolved(f"{simulator}:ant")
    assert (source.spec.obs_dim, source.spec.act_dim) == (2, 2)
    environment = source.environment(3, 6)
    check_environment(environment, 0)
    environment.close()


def test_isaac_gym_tells_falls_from_time_limits_and_fills_the_first_observation(fakes):
    task = ForeignSource(simulator="isaacgym", task="Ant")
    environment = BridgeEnvironment(sys.executable, task, 2, 0)
    try:
        assert environment.reset(4).tolist() == [[0, 0], [0, 0]]  # not the NaN before a step
        step = environment.step(actions([0.25, 0], [0.5, 1]))
        assert step.obs.tolist() == [[1, 0.25], [1, 0.5]]
        assert step.reward.tolist() == [10, 10]
        assert (step.terminated.tolist(), step.truncated.tolist()) == ([False, True], [False] * 2)
        environment.step(actions([0, 0], [0, 1]))  # the task resets the second here
        step = environment.step(actions([0, 0], [0, 0]))
        assert (step.terminated.tolist(), step.truncated.tolist()) == ([False] * 2, [True, False])
    finally:
        environment.close()


def test_a_task_of_isaac_gym_without_time_outs_only_terminates(fakes):
    task = ForeignSource(simulator="isaacgym", task="Endless")
    environment = BridgeEnvironment(sys.executable, task, 1, 0)
    try:
        environment.reset(0)
        steps = [environment.step(actions([0, 0])).terminated.tolist() for _ in range(3)]
        assert steps == [[False], [False], [True]]
    finally:
        environment.close()


def test_isaac_gym_that_makes_another_number_of_copies_is_told(fakes):
    with pytest.raises(WorkerDiedError, match="task Wrong made 2 environments, not 1"):
        resolved("isaacgym:Wrong")


def test_isaac_lab_hands_on_what_a_step_says(fakes):
    task = ForeignSource(simulator="isaaclab", task="Isaac-Ant-Direct-v0")
    environment = BridgeEnvironment(sys.executable, task, 2, 3)
    try:
        assert environment.reset(4).tolist() == [[0, 7], [0, 7]]  # seed + first copy
        step = environment.step(actions([0.25, 0], [0.5, 1]))
        assert step.obs.tolist() == [[1, 0.25], [0, 0.5]]  # the second has begun anew
        assert step.reward.tolist() == [10, 10]
        assert (step.terminated.tolist(), step.truncated.tolist()) == ([False, True], [False] * 2)
        environment.step(actions([0, 0], [0, 0]))
        step = environment.step(actions([0, 0], [0, 1]))
        assert (step.terminated.tolist(), step.truncated.tolist()) == ([False, True], [True, False])
        environment.reset(0)  # a reset after steps
    finally:
        environment.close()


def test_isaac_lab_3_has_the_same_tasks_without_their_version(fakes):
    assert resolved("isaaclab:humanoid").spec.obs_dim == 2


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("Isaac-Ants-Direct-v0", "has no task 'Isaac-Ants-Direct-v0'; the nearest are Isaac-Ant-D"),
        ("Isaac-Cartpole-RGB-v0", r"must have flat observations and actions, not \(2, 2\)"),
    ],
)
def test_a_task_of_isaac_lab_that_does_not_fit_is_told(fakes, task, message):
    with pytest.raises(WorkerDiedError, match=message):
        resolved(f"isaaclab:{task}")
