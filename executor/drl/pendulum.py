"""Pendulum: balance a pole on a cart. 4 observations, 1 action, 25 Hz, best return 1000."""

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from executor.drl.mujoco_env import Task, Transition

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pendulum(Task):
    """Keep the pole up by pushing the cart. Implements `mujoco_env.Task`.

    Observation: cart position (m), pole angle (rad), cart velocity (m/s), pole velocity (rad/s).
    Reward: 1 per step, so the best return is `episode_limit`.
    Termination: the pole leans more than `max_angle`.

    Attributes:
        asset: Model file.
        substeps: Physics steps per control step.
        obs_dim: Length of one observation.
        episode_limit: Control steps per episode.
        max_angle: rad.
        start_noise: Half-width of the uniform noise on the first state.
    """

    asset: str = "pendulum.xml"
    substeps: int = 2
    obs_dim: int = 4
    episode_limit: int = 1000
    max_angle: float = 0.2
    start_noise: float = 0.01

    def start(self, model: mujoco.MjModel, random: np.random.Generator) -> tuple[Array, Array]:
        """Returns the upright pole with noise on everything."""
        noise = random.uniform(-self.start_noise, self.start_noise, model.nq + model.nv)
        return model.qpos0 + noise[: model.nq], noise[model.nq :]

    def observe(self, model: mujoco.MjModel, now: Transition, out: NDArray[np.float32]) -> None:
        """Writes the observations [n, 4]."""
        out[:, :2] = now.qpos
        out[:, 2:] = now.qvel

    def judge(
        self, model: mujoco.MjModel, now: Transition, obs: NDArray[np.float32]
    ) -> tuple[Array, NDArray[np.bool_]]:
        """Returns (reward[n], terminated[n])."""
        return np.ones(len(obs)), np.abs(now.qpos[:, 1]) > self.max_angle


PENDULUM = Pendulum()
