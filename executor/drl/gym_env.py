"""Any gymnasium environment with flat observations and continuous actions, as a vector environment.

gymnasium is imported when the first environment is made, so that nothing else needs it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from doppler.core.errors import ConfigError, ExecutionError
from executor.drl.vector_env import EnvironmentStep

_RESET_SEED_BITS = 31
_UNKNOWN_STEP_FLOP_PER_VALUE = 1000.0  # a guess for a simulator that we cannot look into


class GymEnvironment:
    """n gymnasium environments in one process, stepped one after the other.

    Actions in [-1, 1] are stretched to the action space's bounds. Copy i is seeded with a number
    made of the seed and its global id, so sharding does not change what it does. State export is
    refused: gymnasium has no way to ask an environment for all of its state.
    """

    def __init__(self, make: str | Callable[[], Any], num_envs: int, first_env: int) -> None:
        """Makes the copies from a gymnasium id or from a function that returns an environment.

        Raises:
            ConfigError: The id is unknown, or a space is not a bounded or flat box.
        """
        build = _maker(make)
        self._name = make if isinstance(make, str) else getattr(make, "__name__", "environment")
        self._envs = [build() for _ in range(num_envs)]
        spaces = (self._envs[0].observation_space, self._envs[0].action_space)
        self.obs_dim, self.act_dim = (_box_size(self._name, space) for space in spaces)
        low, high = spaces[1].low.ravel(), spaces[1].high.ravel()
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ConfigError(f"environment {self._name!r} needs bounded actions, has {spaces[1]}")
        self._action_shape = spaces[1].shape
        self._centre, self._half = (high + low) / 2, (high - low) / 2
        self.num_envs = num_envs
        self._first_env = first_env
        self._obs = np.zeros((num_envs, self.obs_dim), np.float32)
        self.state_bytes = self._obs.nbytes
        self.step_flop = _UNKNOWN_STEP_FLOP_PER_VALUE * (self.obs_dim + self.act_dim)

    def reset(self, seed: int) -> NDArray[np.float32]:
        """Starts every copy with its own seed."""
        for i, env in enumerate(self._envs):
            sequence = np.random.SeedSequence((seed, self._first_env + i))
            env_seed = int(sequence.generate_state(1)[0]) >> (32 - _RESET_SEED_BITS)
            self._obs[i] = np.ravel(env.reset(seed=env_seed)[0])
        return self._obs

    def step(self, actions: NDArray[np.float32]) -> EnvironmentStep:
        """Steps the copies in order; a copy that ended is reset at once."""
        scaled = np.clip(actions, -1.0, 1.0) * self._half + self._centre
        reward = np.zeros(self.num_envs, np.float32)
        terminated = np.zeros(self.num_envs, np.bool_)
        truncated = np.zeros(self.num_envs, np.bool_)
        for i, env in enumerate(self._envs):
            action = scaled[i].reshape(self._action_shape)
            obs, reward[i], ended, cut, _ = env.step(action)
            terminated[i], truncated[i] = ended, cut and not ended
            if ended or cut:
                obs, _ = env.reset()
            self._obs[i] = np.ravel(obs)
        return EnvironmentStep(self._obs, reward, terminated, truncated)

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """Refuses.

        Raises:
            ExecutionError: Always; the environment must stay on its device.
        """
        raise ExecutionError(
            f"environment {self._name!r} cannot be moved: gymnasium environments do not export "
            "their state, so pin the env groups to their devices"
        )

    def import_state(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Refuses.

        Raises:
            ExecutionError: Always.
        """
        raise ExecutionError(
            f"environment {self._name!r} cannot continue from {sorted(state)}: gymnasium "
            "environments do not import state, so pin the env groups to their devices"
        )

    def set_threads(self, num_threads: int) -> None:
        """Has no effect: the copies run in one thread."""

    def close(self) -> None:
        """Closes every copy."""
        for env in self._envs:
            env.close()


def _maker(make: str | Callable[[], Any]) -> Callable[[], Any]:
    if not isinstance(make, str):
        return make
    try:
        import gymnasium  # noqa: PLC0415 - optional, and heavy
    except ImportError as error:
        raise ConfigError(
            f"environment 'gym:{make}' needs the package gymnasium, which is not installed"
        ) from error

    def build() -> Any:
        try:
            return gymnasium.make(make)
        except gymnasium.error.Error as error:
            raise ConfigError(f"gymnasium cannot make {make!r}: {error}") from error
        except ImportError as error:
            raise ConfigError(
                f"environment 'gym:{make}' needs a package that is not installed: {error}"
            ) from error

    return build


def _box_size(name: str, space: Any) -> int:
    shape = getattr(space, "shape", None)
    if not hasattr(space, "low") or not shape or not np.issubdtype(space.dtype, np.floating):
        raise ConfigError(
            f"environment {name!r} has the space {space}; only boxes of floats are supported"
        )
    return int(np.prod(shape))
