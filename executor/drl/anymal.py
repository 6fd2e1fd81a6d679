"""Anymal: a quadruped that walks as it is told. 48 observations, 12 actions, 50 Hz."""

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from executor.drl.mujoco_env import Task, Transition
from executor.drl.rotations import to_frame

Array = NDArray[np.float64]
_ROOT_QPOS, _ROOT_QVEL = 7, 6  # a free joint's share of qpos and qvel
_STANCE = np.array(  # hip abduction, hip flexion, knee of legs LF, LH, RF, RH, in rad
    [0.03, 0.4, -0.8, 0.03, -0.4, 0.8, -0.03, 0.4, -0.8, -0.03, -0.4, 0.8]
)
_COMMAND_RANGE = np.array([2.0, 1.0, 1.0])  # m/s forward, m/s sideways, rad/s about the vertical
_COMMAND_SCALE = np.array([2.0, 2.0, 0.25])
_VELOCITY_SCALE, _ANGULAR_SCALE, _JOINT_SPEED_SCALE = 2.0, 0.25, 0.05
_TRACKING_WIDTH = 0.25  # (m/s)^2 or (rad/s)^2 of error at which e^-1 of the reward is left
_DOWN = np.array([[0.0, 0.0, -1.0]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Anymal(Task):
    """Follow a commanded velocity, drawn per episode. Implements `mujoco_env.Task`.

    Observation: velocity (3), angular velocity (3) and gravity (3) in the base's frame, the command
    (3), joint angles from the stance (12), joint velocities (12), the last actions (12).

    Reward per step: exp(-error^2 / 0.25) of the horizontal velocity, half of that for the turning
    rate, minus squared torques.

    Termination: the base is low or tilted by more than 60 degrees.

    Source: the task Anymal of IsaacGymEnvs (Rudin et al. 2021; Makoviychuk et al. 2021), whose
    observation, commands and reward terms are kept, without the factor of the step time.

    Attributes:
        asset: Model file.
        substeps: Physics steps per control step.
        obs_dim: Length of one observation.
        episode_limit: Control steps per episode.
        goal_dim: Length of the command.
        fall_height: m.
        min_up: Least cosine between the base's z axis and the vertical.
        torque_cost: Weight of the squared torques (1/(N m)^2).
    """

    asset: str = "anymal.xml"
    substeps: int = 4
    obs_dim: int = 48
    episode_limit: int = 1000
    goal_dim: int = 3
    fall_height: float = 0.3
    min_up: float = 0.5
    torque_cost: float = 2.5e-5

    def start(self, model: mujoco.MjModel, random: np.random.Generator) -> tuple[Array, Array]:
        """Returns the stance, every joint times 0.5 to 1.5, with small velocities."""
        qpos = model.qpos0.copy()
        qpos[_ROOT_QPOS:] = _STANCE * random.uniform(0.5, 1.5, _STANCE.size)
        return qpos, random.uniform(-0.1, 0.1, model.nv)

    def draw_goal(self, random: np.random.Generator) -> Array:
        """Returns the command: velocity forward and sideways, turning rate."""
        return random.uniform(-_COMMAND_RANGE, _COMMAND_RANGE)

    def observe(self, model: mujoco.MjModel, now: Transition, out: NDArray[np.float32]) -> None:
        """Writes the observations [n, 48]."""
        rotation = now.qpos[:, 3:_ROOT_QPOS]
        out[:, 0:3] = to_frame(rotation, now.qvel[:, :3]) * _VELOCITY_SCALE
        out[:, 3:6] = now.qvel[:, 3:6] * _ANGULAR_SCALE
        out[:, 6:9] = to_frame(rotation, np.broadcast_to(_DOWN, (len(rotation), 3)))
        out[:, 9:12] = now.goals * _COMMAND_SCALE
        out[:, 12:24] = now.qpos[:, _ROOT_QPOS:] - _STANCE
        out[:, 24:36] = now.qvel[:, _ROOT_QVEL:] * _JOINT_SPEED_SCALE
        out[:, 36:48] = now.actions

    def judge(
        self, model: mujoco.MjModel, now: Transition, obs: NDArray[np.float32]
    ) -> tuple[Array, NDArray[np.bool_]]:
        """Returns (reward[n], terminated[n])."""
        velocity = obs[:, 0:2].astype(np.float64) / _VELOCITY_SCALE
        turning = obs[:, 5].astype(np.float64) / _ANGULAR_SCALE
        error = np.square(velocity - now.goals[:, :2]).sum(axis=1)
        turning_error = np.square(turning - now.goals[:, 2])
        reward = np.exp(-error / _TRACKING_WIDTH)
        reward += 0.5 * np.exp(-turning_error / _TRACKING_WIDTH)
        reward -= self.torque_cost * np.square(now.sensors).sum(axis=1)
        up = -obs[:, 8]
        return reward, (now.qpos[:, 2] < self.fall_height) | (up < self.min_up)


ANYMAL = Anymal()
