"""BallBalance: three legs tilt a tray under a ball. 24 observations, 3 actions, 100 Hz."""

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from executor.drl.mujoco_env import Task, Transition

Array = NDArray[np.float64]
_KNEES_QPOS, _KNEES_QVEL = [8, 10, 12], [7, 9, 11]  # the driven joints; hips lie between them
_BALL_QPOS, _BALL_QVEL = 13, 12
_LOAD_SCALE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class BallBalance(Task):
    """Keep a thrown ball still over the middle of a tray. Implements `mujoco_env.Task`.

    Observation: angles (3) and velocities (3) of the knees, position (3) and velocity (3) of the
    ball, vertical force (3) and torques (3 x 3) between tray and legs.

    Reward per step: 1 / (1 + distance from the aim) x 1 / (1 + speed of the ball), at most 1.

    Termination: the ball is below `fall_height`.

    Source: the task BallBalance of IsaacGymEnvs (Makoviychuk et al. 2021), whose observation and
    reward are kept; an action is a target angle here, not a rate of one, so that the physics state
    alone decides the future.

    Attributes:
        asset: Model file.
        substeps: Physics steps per control step.
        obs_dim: Length of one observation.
        episode_limit: Control steps per episode.
        senses_start: The first observation reads the sensors.
        aim_height: m, of the ball's centre above the middle of the floor.
        fall_height: m.
    """

    asset: str = "ballbalance.xml"
    substeps: int = 2
    obs_dim: int = 24
    episode_limit: int = 500
    senses_start: bool = True
    aim_height: float = 0.68
    fall_height: float = 0.15

    def start(self, model: mujoco.MjModel, random: np.random.Generator) -> tuple[Array, Array]:
        """Returns the level tray at rest and a ball thrown from beside and above it."""
        qpos, qvel = model.qpos0.copy(), np.zeros(model.nv)
        distance, turn = random.uniform(0.0, 0.4), random.uniform(-np.pi, np.pi)
        away = np.array([np.cos(turn), np.sin(turn)])
        qpos[_BALL_QPOS : _BALL_QPOS + 2] = distance * away
        qpos[_BALL_QPOS + 2] = random.uniform(0.75, 1.0)
        speed = random.uniform(0.0, 0.6)
        qvel[_BALL_QVEL : _BALL_QVEL + 2] = -speed * away
        return qpos, qvel

    def observe(self, model: mujoco.MjModel, now: Transition, out: NDArray[np.float32]) -> None:
        """Writes the observations [n, 24]."""
        out[:, 0:3] = now.qpos[:, _KNEES_QPOS]
        out[:, 3:6] = now.qvel[:, _KNEES_QVEL]
        out[:, 6:9] = now.qpos[:, _BALL_QPOS : _BALL_QPOS + 3]
        out[:, 9:12] = now.qvel[:, _BALL_QVEL : _BALL_QVEL + 3]
        loads = now.sensors.reshape(len(out), 3, 6) * _LOAD_SCALE  # leg, force and torque
        out[:, 12:15] = loads[:, :, 2]
        out[:, 15:24] = loads[:, :, 3:].transpose(0, 2, 1).reshape(len(out), 9)

    def judge(
        self, model: mujoco.MjModel, now: Transition, obs: NDArray[np.float32]
    ) -> tuple[Array, NDArray[np.bool_]]:
        """Returns (reward[n], terminated[n])."""
        ball = now.qpos[:, _BALL_QPOS : _BALL_QPOS + 3]
        velocity = now.qvel[:, _BALL_QVEL : _BALL_QVEL + 3]
        distance = np.linalg.norm(ball - np.array([0.0, 0.0, self.aim_height]), axis=1)
        reward: Array = 1.0 / (1.0 + distance) / (1.0 + np.linalg.norm(velocity, axis=1))
        return reward, ball[:, 2] < self.fall_height


BALL_BALANCE = BallBalance()
