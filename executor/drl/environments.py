"""Which environments exist by name."""

from collections.abc import Mapping

from doppler.core.errors import ConfigError, nearest
from executor.drl.ant import ANT
from executor.drl.gym_env import GymEnvironment
from executor.drl.humanoid import HUMANOID
from executor.drl.mujoco_env import MujocoEnvironment, Task
from executor.drl.pendulum import PENDULUM
from executor.drl.vector_env import VectorEnvironment

GYM_PREFIX = "gym:"
TASKS: Mapping[str, Task] = {"ant": ANT, "humanoid": HUMANOID, "pendulum": PENDULUM}
"""Our own MuJoCo tasks by name."""


def make_environment(name: str, num_envs: int, first_env: int) -> VectorEnvironment:
    """Returns `num_envs` copies of environment `name` with global ids from `first_env` on.

    Args:
        name: `ant`, `humanoid`, `pendulum`, or `gym:` and a gymnasium id.
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
