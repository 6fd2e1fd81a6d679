"""A job of the user's own: one Python file with one class.

::

    class MyJob:
        environment = "gym:Hopper-v5"             # or a method, see below
        settings = {"horizon": 64}                # optional: fields of PPOJobConfig

        def policy(self, obs_dim, act_dim):       # optional: a torch module
            ...

`environment` is the name of an environment, or a method: without arguments it returns one
gymnasium environment, with `(num_envs, first_env)` a vector environment (see `vector_env.py`).
"""

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from doppler.core.errors import ConfigError, ExecutionError, nearest
from executor.drl.config import PPOJobConfig
from executor.drl.environments import make_environment
from executor.drl.gym_env import GymEnvironment
from executor.drl.vector_env import EnvironmentFactory, EnvironmentStep, VectorEnvironment

Scalar = TypeVar("Scalar", np.float32, np.bool_)
_VECTOR_ARGUMENTS = 2
_UNKNOWN_STEP_FLOP_PER_VALUE = 1000.0  # a guess for a simulator that we cannot look into


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomJob:
    """What a user's class gives.

    Attributes:
        environment: Makes environments.
        policy: Makes a network from (obs_dim, act_dim); None for the built-in one.
        settings: Fields of `PPOJobConfig`.
    """

    environment: EnvironmentFactory
    policy: Callable[[int, int], nn.Module] | None
    settings: Mapping[str, object]


def custom_job_config(path: str, name: str, overrides: Mapping[str, object]) -> PPOJobConfig:
    """Returns the config of a user's job: defaults, then the class's settings, then `overrides`.

    Raises:
        ConfigError: File, class or settings do not keep to the protocol.
    """
    base = PPOJobConfig(environment="", custom_path=path, custom_name=name)
    return base.with_settings({**load_settings(path, name), **overrides})


def load_settings(path: str, name: str) -> Mapping[str, object]:
    """Returns the settings of a user's class; empty where it has none.

    Raises:
        ConfigError: File or class do not exist, or the settings are not a dict.
    """
    return _settings(_load_class(path, name), name)


def load_custom(path: str, name: str) -> CustomJob:
    """Returns what class `name` in the file `path` gives.

    Raises:
        ConfigError: The file or the class does not exist, the file fails, or the class does not
            keep to the protocol.
    """
    job_class = _load_class(path, name)
    try:
        job = job_class()
    except Exception as error:
        raise ConfigError(f"class {name!r} of {path} cannot be made: {error}") from error
    if not hasattr(job, "environment"):
        raise ConfigError(f"class {name!r} of {path} needs an 'environment': a name or a method")
    policy = getattr(job, "policy", None)
    if policy is not None and not callable(policy):
        raise ConfigError(f"'policy' of class {name!r} must be a method, not {policy!r}")
    return CustomJob(
        environment=_environment_factory(job.environment, name),
        policy=policy,
        settings=_settings(job_class, name),
    )


def _settings(job_class: type, name: str) -> Mapping[str, object]:
    settings = getattr(job_class, "settings", {})
    if not isinstance(settings, dict):
        raise ConfigError(f"'settings' of class {name!r} must be a dict, not {settings!r}")
    return settings


def _load_class(path: str, name: str) -> type:
    module = _load_file(Path(path))
    classes = [key for key, value in vars(module).items() if isinstance(value, type)]
    if name not in classes:
        raise ConfigError(f"{path} has no class {name!r}; {nearest(name, classes)}")
    found: type = getattr(module, name)
    return found


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"custom_path must be a Python file, but {str(path)!r} does not exist")
    module_name = f"doppler_custom_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"custom_path must be a Python file ending in .py, but is {str(path)!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise ConfigError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _environment_factory(environment: object, name: str) -> EnvironmentFactory:
    if isinstance(environment, str):
        return partial(make_environment, environment)
    if not callable(environment):
        raise ConfigError(
            f"'environment' of class {name!r} must be a name or a method, not {environment!r}"
        )
    parameters = inspect.signature(environment).parameters
    if not parameters:
        return partial(GymEnvironment, environment)
    if len(parameters) != _VECTOR_ARGUMENTS:
        raise ConfigError(
            f"'environment' of class {name!r} takes {list(parameters)}, but must take nothing or "
            "(num_envs, first_env)"
        )
    return partial(_user_environment, environment, name)


def _user_environment(
    make: Callable[[int, int], object], name: str, num_envs: int, first_env: int
) -> VectorEnvironment:
    return UserEnvironment(make(num_envs, first_env), name, num_envs)


class UserEnvironment:
    """A user's vector environment, with checks, and with defaults for what it leaves out.

    It must have `num_envs`, `obs_dim`, `act_dim`, `reset(seed)` and `step(actions)`.
    """

    def __init__(self, inner: object, name: str, num_envs: int) -> None:
        """Wraps `inner`.

        Raises:
            ConfigError: It lacks a member, or has another number of copies than asked for.
        """
        for member in ("num_envs", "obs_dim", "act_dim", "reset", "step"):
            if not hasattr(inner, member):
                raise ConfigError(f"the environment of class {name!r} needs {member!r}")
        self._inner = inner
        self._name = name
        self.num_envs, self.obs_dim, self.act_dim = (
            int(getattr(inner, member)) for member in ("num_envs", "obs_dim", "act_dim")
        )
        if self.num_envs != num_envs:
            raise ConfigError(
                f"the environment of class {name!r} must have {num_envs} copies, "
                f"but has {self.num_envs}"
            )
        obs_bytes = 4 * self.num_envs * self.obs_dim
        self.state_bytes = int(getattr(inner, "state_bytes", obs_bytes))
        guess = _UNKNOWN_STEP_FLOP_PER_VALUE * (self.obs_dim + self.act_dim)
        self.step_flop = float(getattr(inner, "step_flop", guess))

    def reset(self, seed: int) -> NDArray[np.float32]:
        """Starts episode 0 of every copy."""
        obs = self._inner.reset(seed)  # type: ignore[attr-defined]
        return self._array("observations", obs, np.float32, (self.num_envs, self.obs_dim))

    def step(self, actions: NDArray[np.float32]) -> EnvironmentStep:
        """Advances every copy by one control step."""
        clipped = np.clip(actions, -1.0, 1.0)
        result = self._inner.step(clipped)  # type: ignore[attr-defined]
        if not isinstance(result, tuple) or len(result) != len(EnvironmentStep._fields):
            raise ExecutionError(
                f"step() of the environment of class {self._name!r} must return "
                "(obs, reward, terminated, truncated)"
            )
        n = self.num_envs
        obs = self._array("observations", result[0], np.float32, (n, self.obs_dim))
        reward = self._array("reward", result[1], np.float32, (n,))
        terminated = self._array("terminated", result[2], np.bool_, (n,))
        truncated = self._array("truncated", result[3], np.bool_, (n,)) & ~terminated
        return EnvironmentStep(obs, reward, terminated, truncated)

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """Returns the inner environment's state.

        Raises:
            ExecutionError: It has no `export_state`.
        """
        self._need("export_state")
        state: dict[str, NDArray[np.generic]] = self._inner.export_state()  # type: ignore[attr-defined]
        return state

    def import_state(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Continues from an exported state.

        Raises:
            ExecutionError: The inner environment has no `import_state`.
        """
        self._need("import_state")
        self._inner.import_state(state)  # type: ignore[attr-defined]

    def set_threads(self, num_threads: int) -> None:
        """Passes the number on, if the inner environment cares."""
        if hasattr(self._inner, "set_threads"):
            self._inner.set_threads(num_threads)

    def close(self) -> None:
        """Closes the inner environment, if it can be closed."""
        if hasattr(self._inner, "close"):
            self._inner.close()

    def _need(self, member: str) -> None:
        if not hasattr(self._inner, member):
            raise ExecutionError(
                f"the environment of class {self._name!r} cannot be moved: it has no {member}, so "
                "pin the env groups to their devices"
            )

    def _array(
        self, what: str, value: object, dtype: type[Scalar], shape: tuple[int, ...]
    ) -> NDArray[Scalar]:
        array: NDArray[Scalar] = np.asarray(value, dtype)
        if array.shape != shape:
            raise ExecutionError(
                f"the {what} of the environment of class {self._name!r} must have shape "
                f"{list(shape)}, not {list(array.shape)}"
            )
        return array
