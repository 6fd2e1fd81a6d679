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
from executor.drl.physics import RolloutPhysics
from executor.drl.shadow_hand import SHADOW_HAND
from executor.drl.vector_env import VectorEnvironment
from executor.drl.warp_physics import WarpPhysics

GYM_PREFIX, WARP_PREFIX = "gym:", "mujoco_warp:"
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
        name: One of `TASKS`, `mujoco_warp:` and one of them, or `gym:` and a gymnasium id.
        num_envs: Copies; more copies amortise the cost of a call.
        first_env: Global id of the first copy; decides its random numbers.

    Raises:
        ConfigError: The name is unknown, the gymnasium environment does not fit, or mujoco-warp is
            not installed.
    """
    if name.startswith(GYM_PREFIX):
        return GymEnvironment(name.removeprefix(GYM_PREFIX), num_envs, first_env)
    task = TASKS.get(name.removeprefix(WARP_PREFIX))
    if task is None:
        own = [f"{WARP_PREFIX}{task}" for task in TASKS] if name.startswith(WARP_PREFIX) else TASKS
        choices = [*own, f"{GYM_PREFIX}<gymnasium id>"]
        raise ConfigError(f"environment {name!r} is unknown; {nearest(name, choices)}")
    physics = WarpPhysics if name.startswith(WARP_PREFIX) else RolloutPhysics
    return MujocoEnvironment(task, num_envs, first_env, physics)
