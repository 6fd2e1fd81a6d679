"""Which environments exist by name."""

from collections.abc import Mapping

from doppler.core.errors import ConfigError, nearest
from executor.drl.ant import ANT
from executor.drl.anymal import ANYMAL
from executor.drl.ball_balance import BALL_BALANCE
from executor.drl.franka_cabinet import FRANKA_CABINET
from executor.drl.gym_env import GymEnvironment
from executor.drl.humanoid import HUMANOID
from executor.drl.mujoco_env import MujocoEnvironment, Task
from executor.drl.pendulum import PENDULUM
from executor.drl.shadow_hand import SHADOW_HAND
from executor.drl.vector_env import VectorEnvironment

GYM_PREFIX = "gym:"
TASKS: Mapping[str, Task] = {
    "ant": ANT,
    "anymal": ANYMAL,
    "ball_balance": BALL_BALANCE,
    "franka_cabinet": FRANKA_CABINET,
    "humanoid": HUMANOID,
    "pendulum": PENDULUM,
    "shadow_hand": SHADOW_HAND,
}
"""Our own MuJoCo tasks by name."""


def make_environment(name: str, num_envs: int, first_env: int) -> VectorEnvironment:
    """Returns `num_envs` copies of environment `name` with global ids from `first_env` on.

    Args:
        name: One of `TASKS`, or `gym:` and a gymnasium id.
        num_envs: Copies; more copies amortise the cost of a call.
        first_env: Global id of the first copy; decides its random numbers.

    Raises:
        ConfigError: The name is unknown, or the gymnasium environment does not fit.
    """
    if name.startswith(GYM_PREFIX):
        return GymEnvironment(name.removeprefix(GYM_PREFIX), num_envs, first_env)
    if name not in TASKS:
        choices = [*TASKS, f"{GYM_PREFIX}<gymnasium id>"]
        raise ConfigError(f"environment {name!r} is unknown; {nearest(name, choices)}")
    return MujocoEnvironment(TASKS[name], num_envs, first_env)
