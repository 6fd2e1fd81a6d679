"""ShadowHand: a hand turns a block as asked. 211 observations, 20 actions, 60 Hz."""

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from executor.drl.mujoco_env import Task, Transition
from executor.drl.rotations import angle, random_rotation, relative

Array = NDArray[np.float64]
_JOINTS, _TIPS = 24, 5
_BLOCK_QPOS, _BLOCK_QVEL = 24, 24
_SPEED_SCALE, _FORCE_SCALE, _LOAD_SCALE = 0.2, 10.0, 10.0
_AIM = np.array([0.0, -0.12, 0.56])  # m, where the block lies in the hand


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowHand(Task):
    """Turn a block in the hand to an orientation that is drawn per episode.

    Implements `mujoco_env.Task`. Observation (full state): joint positions scaled to [-1, 1],
    velocities and actuator forces (24 each), pose and velocities of the block (13), the asked pose
    and the rotation from it (11; of the two quaternions of that rotation the one with w >= 0), pose
    and velocities of the fingertips (5 x 13), their forces and torques (5 x 6), the last actions
    (20).

    Reward per step: 1 / (angle from the asked orientation + 0.1) + 10 x what the step took from
    that angle - 10 x distance from the palm - squared actions, a bonus while the angle is below
    `reached`.

    Termination: the block has left the hand.

    Source: the task ShadowHand of IsaacGymEnvs (Makoviychuk et al. 2021), whose full-state
    observation, reward terms and servos of the fingers are kept; what a step takes from the angle
    and the cost of a lost block are those of OpenAI et al. 2018, "Learning dexterous in-hand
    manipulation". One orientation is asked for per episode, and the bonus is paid per step.

    Attributes:
        asset: Model file.
        substeps: Physics steps per control step.
        obs_dim: Length of one observation.
        episode_limit: Control steps per episode.
        goal_dim: Length of the asked orientation, a quaternion.
        senses_start: The first observation reads the sensors.
        distance_cost: Weight of the block's distance from where it lies in the hand (1/m).
        action_cost: Weight of the squared actions.
        turn_reward: Reward per rad that a step takes from the angle.
        reached: rad.
        reached_bonus: Reward per step within `reached`.
        lost_distance: m from where the block lies in the hand, at which the episode ends.
        lost_cost: Reward of the step on which the block is lost.
    """

    asset: str = "shadowhand.xml"
    substeps: int = 4
    obs_dim: int = 211
    episode_limit: int = 600
    goal_dim: int = 4
    senses_start: bool = True
    distance_cost: float = 10.0
    action_cost: float = 2e-4
    turn_reward: float = 10.0
    reached: float = 0.4
    reached_bonus: float = 1.0
    lost_distance: float = 0.24
    lost_cost: float = -20.0

    def start(self, model: mujoco.MjModel, random: np.random.Generator) -> tuple[Array, Array]:
        """Returns the open hand with noise on the joints, and the block on it, turned at random."""
        qpos = model.qpos0.copy()
        low, high = model.jnt_range[:_JOINTS].T
        noise = random.uniform(-0.1, 0.1, _JOINTS) * (high - low)
        qpos[:_JOINTS] = np.clip(noise, low, high)
        qpos[_BLOCK_QPOS : _BLOCK_QPOS + 3] = _AIM
        qpos[_BLOCK_QPOS : _BLOCK_QPOS + 2] += random.uniform(-0.01, 0.01, 2)
        qpos[_BLOCK_QPOS + 3 : _BLOCK_QPOS + 7] = random_rotation(random)
        return qpos, np.zeros(model.nv)

    def draw_goal(self, random: np.random.Generator) -> Array:
        """Returns the asked orientation, uniform over all."""
        return random_rotation(random)

    def observe(self, model: mujoco.MjModel, now: Transition, out: NDArray[np.float32]) -> None:
        """Writes the observations [n, 211]."""
        low, high = model.jnt_range[:_JOINTS].T
        out[:, 0:24] = (2.0 * now.qpos[:, :_JOINTS] - low - high) / (high - low)
        out[:, 24:48] = now.qvel[:, :_JOINTS] * _SPEED_SCALE
        out[:, 48:72] = now.sensors[:, :_JOINTS] * _FORCE_SCALE
        block = now.qpos[:, _BLOCK_QPOS : _BLOCK_QPOS + 7]
        out[:, 72:79] = block
        out[:, 79:82] = now.qvel[:, _BLOCK_QVEL : _BLOCK_QVEL + 3]
        out[:, 82:85] = now.qvel[:, _BLOCK_QVEL + 3 : _BLOCK_QVEL + 6] * _SPEED_SCALE
        out[:, 85:88] = _AIM
        out[:, 88:92] = now.goals
        turn = relative(block[:, 3:], now.goals)
        out[:, 92:96] = np.where(turn[:, :1] < 0.0, -turn, turn)
        poses = _JOINTS + 13 * _TIPS
        out[:, 96:161] = now.sensors[:, _JOINTS:poses]
        out[:, 161:191] = now.sensors[:, poses:] * _LOAD_SCALE
        out[:, 191:211] = now.actions

    def judge(
        self, model: mujoco.MjModel, now: Transition, obs: NDArray[np.float32]
    ) -> tuple[Array, NDArray[np.bool_]]:
        """Returns (reward[n], terminated[n])."""
        block = now.qpos[:, _BLOCK_QPOS : _BLOCK_QPOS + 7]
        distance = np.linalg.norm(block[:, :3] - _AIM, axis=1)
        before = now.before_qpos[:, _BLOCK_QPOS + 3 : _BLOCK_QPOS + 7]
        turn = angle(relative(block[:, 3:], now.goals))
        reward: Array = 1.0 / (turn + 0.1) - self.distance_cost * distance
        reward += self.turn_reward * (angle(relative(before, now.goals)) - turn)
        reward -= self.action_cost * np.square(now.actions).sum(axis=1)
        reward += self.reached_bonus * (turn < self.reached)
        lost = distance > self.lost_distance
        reward[lost] = self.lost_cost
        return reward, lost


SHADOW_HAND = ShadowHand()
