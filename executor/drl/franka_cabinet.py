"""FrankaCabinet: an arm opens a drawer. 23 observations, 9 actions, 60 Hz."""

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from executor.drl.mujoco_env import Task, Transition

Array = NDArray[np.float64]
_JOINTS, _DRAWER = 9, 9  # seven of the arm and two fingers; then the upper drawer
_READY = np.array([0.0, 0.0, 0.0, -1.88, 0.0, 3.45, -0.755, 0.02, 0.02])
_SPEED_SCALE = 0.1
_NEAR = 0.02  # m, distance from the handle from which the reward for it is doubled
_FINGER_TRAVEL = 0.04  # m, of one finger; two of them open 0.08 m wide
_PAST = 0.04  # m behind the handle, from where on a finger is through the drawer's front
_AJAR, _HALF_OPEN = 0.01, 0.2  # m


@dataclass(frozen=True, slots=True, kw_only=True)
class FrankaCabinet(Task):
    """Reach the handle of the upper drawer, grip it, pull. Implements `mujoco_env.Task`.

    Observation: joint positions scaled to [-1, 1] (9), joint velocities (9), the way from the
    gripper to the handle (3), position and velocity of the drawer.

    Reward per step: closeness to the handle, alignment with it, one finger above and one below it,
    those two closing, how far the drawer is open (half as much again with the fingers around the
    handle), steps for a drawer that is ajar and half open, minus squared actions; -1 instead where
    a finger has passed behind the handle.

    Termination: none, so that an open drawer keeps paying until the time limit.

    Source: the task FrankaCabinet of IsaacGymEnvs (Makoviychuk et al. 2021), whose observation and
    terms and weights of the reward are kept, and whose arm has no weight either. It differs in: an
    action is a target angle of at most 1.2 rad about the ready pose, not a rate of one, so that the
    physics state alone decides the future; the servos are damped half as much; an open drawer does
    not end the episode, nor pay the bonus of the step on which it would.

    Attributes:
        asset: Model file.
        substeps: Physics steps per control step.
        obs_dim: Length of one observation.
        episode_limit: Control steps per episode.
        senses_start: The first observation reads the sensors.
        near_weight: Reward for being at the handle.
        aligned_weight: Reward for the gripper's direction.
        around_weight: Reward for one finger above and one below the handle, which count 0.5.
        grip_weight: Reward per m that the fingers around the handle are closed.
        open_weight: Reward per m that the drawer is open.
        ajar_bonus: Reward while the drawer is open by 1 cm or more.
        style_cost: Reward of a step on which a finger is behind the handle.
        action_cost: Weight of the squared actions.
        start_noise: Half-width of the uniform noise on the first joint positions, in rad.
    """

    asset: str = "frankacabinet.xml"
    substeps: int = 4
    obs_dim: int = 23
    episode_limit: int = 500
    senses_start: bool = True
    near_weight: float = 2.0
    aligned_weight: float = 0.5
    around_weight: float = 0.25
    grip_weight: float = 5.0
    open_weight: float = 7.5
    ajar_bonus: float = 0.5
    style_cost: float = -1.0
    action_cost: float = 0.01
    start_noise: float = 0.12

    def start(self, model: mujoco.MjModel, random: np.random.Generator) -> tuple[Array, Array]:
        """Returns the ready pose with noise on the arm, everything closed, at rest."""
        qpos = model.qpos0.copy()
        noise = random.uniform(-self.start_noise, self.start_noise, _JOINTS - 2)
        low, high = model.jnt_range[: _JOINTS - 2].T
        qpos[: _JOINTS - 2] = np.clip(_READY[:-2] + noise, low, high)
        qpos[_JOINTS - 2 : _JOINTS] = _READY[-2:]
        return qpos, np.zeros(model.nv)

    def observe(self, model: mujoco.MjModel, now: Transition, out: NDArray[np.float32]) -> None:
        """Writes the observations [n, 23]."""
        low, high = model.jnt_range[:_JOINTS].T
        out[:, 0:9] = (2.0 * now.qpos[:, :_JOINTS] - low - high) / (high - low)
        out[:, 9:18] = now.qvel[:, :_JOINTS] * _SPEED_SCALE
        out[:, 18:21] = now.sensors[:, 3:6] - now.sensors[:, 0:3]
        out[:, 21] = now.qpos[:, _DRAWER]
        out[:, 22] = now.qvel[:, _DRAWER]

    def judge(
        self, model: mujoco.MjModel, now: Transition, obs: NDArray[np.float32]
    ) -> tuple[Array, NDArray[np.bool_]]:
        """Returns (reward[n], terminated[n])."""
        gripper, handle, ahead, across, left, right = np.split(now.sensors, 6, axis=1)
        distance = np.linalg.norm(handle - gripper, axis=1)
        near = np.square(1.0 / (1.0 + np.square(distance)))
        near = np.where(distance <= _NEAR, 2.0 * near, near)
        # The drawer opens along +x, and its handle lies along y: ahead is -x, fingers part along z.
        towards = -ahead[:, 0]
        aligned = 0.5 * (np.sign(towards) * np.square(towards) + np.square(across[:, 2]))
        above, below = left[:, 2] - handle[:, 2], handle[:, 2] - right[:, 2]
        wrapped = (above > 0.0) & (below > 0.0)
        around = 0.5 * wrapped
        grip = wrapped * (2.0 * _FINGER_TRAVEL - above - below)
        opened = now.qpos[:, _DRAWER]
        reward: Array = self.near_weight * near + self.aligned_weight * aligned
        reward += self.around_weight * around + self.grip_weight * grip
        reward += self.open_weight * opened * (1.0 + around)
        reward += self.ajar_bonus * (opened > _AJAR) + around * (opened > _HALF_OPEN)
        reward -= self.action_cost * np.square(now.actions).sum(axis=1)
        foremost = np.minimum(left[:, 0], right[:, 0])
        reward[foremost < handle[:, 0] - _PAST] = self.style_cost
        return reward, np.zeros(len(reward), np.bool_)


FRANKA_CABINET = FrankaCabinet()
