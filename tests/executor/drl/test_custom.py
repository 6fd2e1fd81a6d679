"""Jobs of the user's own: one file, one class, and one clear sentence per mistake."""

import numpy as np
import pytest
from interpreter import Interpreter

from doppler.core.errors import ConfigError, ExecutionError
from executor.drl.custom import custom_job_config, load_custom, load_settings
from executor.drl.job import PPOJob

FILE = """
import gymnasium
import numpy as np
import torch


class Net(torch.nn.Module):
    def __init__(self, obs_dim, act_dim):
        super().__init__()
        self.mean = torch.nn.Linear(obs_dim, act_dim)
        self.value = torch.nn.Linear(obs_dim, 1)
        self.log_std = torch.nn.Parameter(torch.zeros(act_dim))

    def forward(self, obs):
        return self.mean(obs), self.log_std, self.value(obs)[:, 0]


class ById:
    environment = "gym:Pendulum-v1"
    settings = {"num_shards": 2, "envs_per_shard": 2, "horizon": 8, "chunk": 4}


class ByFactory:
    def environment(self):
        return gymnasium.make("Pendulum-v1")


class Grid:
    num_envs, obs_dim, act_dim = 0, 2, 1

    def __init__(self, num_envs):
        self.num_envs = num_envs

    def reset(self, seed):
        return np.zeros((self.num_envs, 2))

    def step(self, actions):
        n = self.num_envs
        return np.ones((n, 2)), actions[:, 0], np.zeros(n), np.ones(n)


class WithNet(ById):
    environment = lambda self, num_envs, first_env: Grid(num_envs)

    def policy(self, obs_dim, act_dim):
        return Net(obs_dim, act_dim)


class WrongNet(ById):
    def policy(self, obs_dim, act_dim):
        return Net(obs_dim, act_dim + 1)


class NoEnvironment:
    pass


class BadEnvironment:
    environment = 7


class BadArguments:
    def environment(self, a):
        return None


class BadSettings(ById):
    settings = ["horizon"]


class Typo(ById):
    settings = {"horizn": 8}


class BadPolicy(ById):
    policy = 3


class NeedsArguments(ById):
    def __init__(self, x):
        pass


class NotVector:
    def environment(self, num_envs, first_env):
        return object()


class WrongCount:
    def environment(self, num_envs, first_env):
        return Grid(num_envs + 1)


class ShortStep(Grid):
    def step(self, actions):
        return np.ones((self.num_envs, 2)), actions[:, 0]


class WrongShape(Grid):
    def reset(self, seed):
        return np.zeros((self.num_envs, 3))


class Short:
    def environment(self, num_envs, first_env):
        return ShortStep(num_envs)


class Shape:
    def environment(self, num_envs, first_env):
        return WrongShape(num_envs)
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "my_job.py"
    file.write_text(FILE)
    return str(file)


@pytest.mark.parametrize("name", ["ById", "ByFactory", "WithNet"])
def test_a_class_becomes_a_job_that_runs(path, name):
    small = {"num_shards": 2, "envs_per_shard": 2, "horizon": 8, "chunk": 4, "hidden": [8]}
    run = Interpreter(custom_job_config(path, name, small)).run(2)
    assert np.isfinite(run.vector()).all()
    assert run.metrics().rows == 32


def test_settings_lie_between_defaults_and_overrides(path):
    config = custom_job_config(path, "ById", {"horizon": 16})
    assert (config.num_shards, config.horizon, config.epochs) == (2, 16, 4)
    assert load_settings(path, "ByFactory") == {}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ByIdd", "has no class 'ByIdd'; did you mean 'ById'"),
        ("NoEnvironment", "needs an 'environment'"),
        ("BadEnvironment", "must be a name or a method, not 7"),
        ("BadArguments", r"takes \['a'\], but must take nothing or \(num_envs, first_env\)"),
        ("BadSettings", "must be a dict"),
        ("BadPolicy", "must be a method, not 3"),
        ("NeedsArguments", "cannot be made"),
    ],
)
def test_mistakes_in_the_class_are_told(path, name, message):
    with pytest.raises(ConfigError, match=message):
        load_custom(path, name)


def test_a_missing_or_broken_file_is_told(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        load_custom(str(tmp_path / "no.py"), "A")
    text = tmp_path / "job.txt"
    text.write_text("")
    with pytest.raises(ConfigError, match=r"ending in \.py"):
        load_custom(str(text), "A")
    broken = tmp_path / "broken.py"
    broken.write_text("import no_such_module_here")
    with pytest.raises(ConfigError, match="cannot be imported: ModuleNotFoundError"):
        load_custom(str(broken), "A")


def test_an_unknown_setting_suggests_the_nearest(path):
    with pytest.raises(ConfigError, match="did you mean 'horizon'"):
        custom_job_config(path, "Typo", {})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("WrongNet", r"mean for 2 observations has shape \[2, 2\], but must have \[2, 1\]"),
        ("NotVector", "needs 'num_envs'"),
        ("WrongCount", "must have 1 copies, but has 2"),
    ],
)
def test_parts_that_do_not_fit_are_told_when_the_job_is_built(path, name, message):
    with pytest.raises(ConfigError, match=message):
        PPOJob(custom_job_config(path, name, {}))


def test_wrong_arrays_are_told_when_they_appear(path):
    short = load_custom(path, "Short").environment(2, 0)
    with pytest.raises(ExecutionError, match=r"must return \(obs, reward, terminated, truncated\)"):
        short.step(np.zeros((2, 1), np.float32))
    with pytest.raises(ExecutionError, match=r"observations .* must have shape \[2, 2\], not"):
        load_custom(path, "Shape").environment(2, 0).reset(0)
    with pytest.raises(ExecutionError, match="it has no export_state"):
        short.export_state()
    with pytest.raises(ExecutionError, match="it has no import_state"):
        short.import_state({})
