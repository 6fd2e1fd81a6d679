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

    Actions in [-1, 1] are stretched to the action space's bounds. Every episode of a copy is seeded
    with a number made of the seed, its global id and the episode, so sharding does not change what
    it does. gymnasium cannot be asked for an environment's state: what is exported are the actions
    of the running episodes, and importing plays them again. That takes as long as they took, and
    is refused where an environment does not repeat itself.
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
        self._seed = 0
        self._episode = np.zeros(num_envs, np.int64)
        self._played: list[list[NDArray[np.float32]]] = [[] for _ in range(num_envs)]
        self.state_bytes = self._obs.nbytes
        self.step_flop = _UNKNOWN_STEP_FLOP_PER_VALUE * (self.obs_dim + self.act_dim)

    def reset(self, seed: int) -> NDArray[np.float32]:
        """Starts episode 0 of every copy."""
        self._seed = seed
        self._episode[:] = 0
        for i in range(self.num_envs):
            self._begin(i)
        return self._obs

    def step(self, actions: NDArray[np.float32]) -> EnvironmentStep:
        """Steps the copies in order; a copy that ended begins its next episode at once."""
        reward = np.zeros(self.num_envs, np.float32)
        terminated = np.zeros(self.num_envs, np.bool_)
        truncated = np.zeros(self.num_envs, np.bool_)
        for i in range(self.num_envs):
            reward[i], ended, cut = self._play(i, actions[i].copy())
            terminated[i], truncated[i] = ended, cut and not ended
            if ended or cut:
                self._episode[i] += 1
                self._begin(i)
        return EnvironmentStep(self._obs, reward, terminated, truncated)

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """Returns the seed, the episodes' numbers, lengths and actions, and what is seen now."""
        played = [action for actions in self._played for action in actions]
        return {
            "seed": np.array([self._seed], np.int64),
            "episode": self._episode.copy(),
            "elapsed": np.array([len(actions) for actions in self._played], np.int64),
            "actions": np.array(played, np.float32).reshape(-1, self.act_dim),
            "obs": self._obs.copy(),
        }

    def import_state(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Plays the running episodes again, up to where the exported state stood.

        Raises:
            ExecutionError: The state is of another environment, or the environment does not show
                what it showed before.
        """
        shapes: dict[str, tuple[int, ...]] = {
            "seed": (1,),
            "episode": (self.num_envs,),
            "elapsed": (self.num_envs,),
        }
        shapes["obs"] = self._obs.shape
        for name, shape in shapes.items():
            found = state[name].shape if name in state else None
            if found != shape:
                raise ExecutionError(
                    f"environment state {name!r} must have shape {list(shape)}, "
                    f"but the imported state has {'nothing' if found is None else list(found)}"
                )
        self._seed = int(state["seed"][0])
        self._episode[:] = state["episode"]
        ends = np.cumsum(state["elapsed"])[:-1].astype(np.int64)
        for i, actions in enumerate(np.split(np.asarray(state["actions"], np.float32), ends)):
            self._begin(i)
            for action in actions:
                self._play(i, action)
        if not np.array_equal(self._obs, state["obs"], equal_nan=True):
            raise ExecutionError(
                f"environment {self._name!r} cannot be moved: a repetition of its episodes from "
                "their seeds does not show what it showed before"
            )

    def _begin(self, i: int) -> None:
        """Starts the present episode of copy `i` from its own seed."""
        sequence = np.random.SeedSequence((self._seed, self._first_env + i, int(self._episode[i])))
        seed = int(sequence.generate_state(1)[0]) >> (32 - _RESET_SEED_BITS)
        self._obs[i] = np.ravel(self._envs[i].reset(seed=seed)[0])
        self._played[i] = []

    def _play(self, i: int, action: NDArray[np.float32]) -> tuple[float, bool, bool]:
        """Steps copy `i`; returns (reward, terminated, truncated)."""
        scaled = np.clip(action, -1.0, 1.0) * self._half + self._centre
        obs, reward, ended, cut, _ = self._envs[i].step(scaled.reshape(self._action_shape))
        self._obs[i] = np.ravel(obs)
        self._played[i].append(action)
        return float(reward), bool(ended), bool(cut)

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
