"""The protocol of vector environments, and a check that an implementation keeps it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from doppler.core.errors import ExecutionError


class EnvironmentStep(NamedTuple):
    """What `step` returns; arrays are owned by the environment and valid until its next call.

    Attributes:
        obs: [n, obs_dim] float32; **after** the automatic reset where an episode ended.
        reward: [n] float32.
        terminated: [n] bool; the task ended, so the state after it is worth nothing.
        truncated: [n] bool; the time limit was met, the state after it has a value. Never set
            together with `terminated`.
    """

    obs: NDArray[np.float32]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


@runtime_checkable
class VectorEnvironment(Protocol):
    """n copies of one environment that step together and reset themselves.

    Each copy has a global id. What a copy does depends only on the seed, its id and its actions,
    never on the number of threads or on which copies share an object.

    Attributes:
        num_envs: n.
        obs_dim: Length of one observation.
        act_dim: Length of one action; actions are meant for [-1, 1] and clipped to it.
        state_bytes: Bytes of `export_state()`, or what the copies weigh where it is refused.
        step_flop: Estimated flop of one step of one copy (a first guess for an uncalibrated run).
    """

    num_envs: int
    obs_dim: int
    act_dim: int
    state_bytes: int
    step_flop: float

    def reset(self, seed: int) -> NDArray[np.float32]:
        """Starts episode 0 of every copy and returns the observations [n, obs_dim]."""
        ...

    def step(self, actions: NDArray[np.float32]) -> EnvironmentStep:
        """Advances every copy by one control step; `actions` is [n, act_dim] and not changed."""
        ...

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """Returns copies of everything that the future depends on.

        Raises:
            ExecutionError: The environment cannot export its state exactly.
        """
        ...

    def import_state(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Continues, bit for bit, from what `export_state` returned.

        Raises:
            ExecutionError: The arrays are not those of this environment.
        """
        ...

    def set_threads(self, num_threads: int) -> None:
        """Uses that many threads from the next step on; results do not change."""
        ...

    def close(self) -> None:
        """Frees what the copies hold outside Python's memory."""
        ...


EnvironmentFactory = Callable[[int, int], VectorEnvironment]
"""(num_envs, first_env) -> environment with global ids first_env .. first_env + num_envs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """The sizes of an environment that the graph and the policy need.

    Attributes:
        obs_dim: Length of one observation.
        act_dim: Length of one action.
        state_bytes: Bytes of the state of one copy.
        step_flop: Estimated flop of one step of one copy.
    """

    obs_dim: int
    act_dim: int
    state_bytes: int
    step_flop: float


def environment_spec(factory: EnvironmentFactory) -> EnvironmentSpec:
    """Returns the sizes of what `factory` makes, from one copy that is closed again."""
    environment = factory(1, 0)
    try:
        return EnvironmentSpec(
            obs_dim=environment.obs_dim,
            act_dim=environment.act_dim,
            state_bytes=environment.state_bytes,
            step_flop=environment.step_flop,
        )
    finally:
        environment.close()


def check_environment(environment: VectorEnvironment, seed: int) -> None:
    """Holds an environment to the protocol with one reset and two steps.

    Raises:
        ExecutionError: An array has another shape or type than the protocol says, is not finite,
            or an episode both terminated and was truncated.
    """
    n, obs_dim = environment.num_envs, environment.obs_dim
    _check_array("reset()", environment.reset(seed), (n, obs_dim), np.float32)
    actions = np.zeros((n, environment.act_dim), np.float32)
    for _ in range(2):
        result = environment.step(actions)
        _check_array("step().obs", result.obs, (n, obs_dim), np.float32)
        _check_array("step().reward", result.reward, (n,), np.float32)
        _check_array("step().terminated", result.terminated, (n,), np.bool_)
        _check_array("step().truncated", result.truncated, (n,), np.bool_)
        if bool(np.any(result.terminated & result.truncated)):
            raise ExecutionError("step() says terminated and truncated for one copy; one at most")


def _check_array(where: str, array: object, shape: tuple[int, ...], dtype: type) -> None:
    if not isinstance(array, np.ndarray):
        raise ExecutionError(f"{where} must be a numpy array, not {type(array).__name__}")
    if array.shape != shape or array.dtype != np.dtype(dtype):
        raise ExecutionError(
            f"{where} must be {np.dtype(dtype).name}{list(shape)}, "
            f"not {array.dtype.name}{list(array.shape)}"
        )
    if array.dtype.kind == "f" and not bool(np.isfinite(array).all()):
        raise ExecutionError(f"{where} must be finite, but holds NaN or infinity")
