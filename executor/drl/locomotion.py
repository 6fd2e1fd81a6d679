"""The running task that the ant and the humanoid share: go along +x, upright, cheaply."""

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from executor.drl.mujoco_env import Task, Transition
from executor.drl.torso import Torso, observe_torso, progress

Array = NDArray[np.float64]
_ROOT_QPOS, _ROOT_QVEL = 7, 6  # a free joint's share of qpos and qvel
_NEAR_LIMIT = 0.99  # scaled joint position from which a joint counts as at its limit
_FACING = 0.8  # heading cosine from which the full heading reward is paid
_UPRIGHT = 0.93  # up cosine from which the upright reward is paid


@dataclass(frozen=True, slots=True, kw_only=True)
class Locomotion(Task):
    """Run towards a goal 1000 m along +x. Implements `mujoco_env.Task`.

    Observation: height, velocity (3) and angular velocity (3) in the torso's frame, yaw, roll,
    angle to the goal, up and heading cosines, joint positions scaled to [-1, 1], joint velocities,
    sensor groups, the last actions.

    Reward per step: speed towards the goal + heading + upright + alive - squared actions - energy
    - joints at their limits; `death_cost` instead where the torso falls.

    Termination: the torso is lower than `fall_height`.

    Source: the tasks Ant and Humanoid of IsaacGymEnvs (Makoviychuk et al. 2021, appendix), whose
    observation sizes and reward terms are kept.

    Attributes:
        asset: Model file.
        substeps: Physics steps per control step.
        obs_dim: Length of one observation.
        episode_limit: Control steps per episode.
        fall_height: m.
        death_cost: Reward of the step on which the torso falls.
        alive: Reward per step survived.
        heading_weight: Reward for facing the goal.
        up_weight: Reward for being upright.
        action_cost: Weight of the squared actions.
        energy_cost: Weight of |action x scaled joint velocity| times the motor's relative gear.
        limit_cost: Weight of joints at their limits.
        angular_scale: Scale of the observed angular velocity.
        joint_velocity_scale: Scale of the observed joint velocities.
        sensor_scales: Scale per run of sensor values, in the model's order.
        start_noise: Half-width of the uniform noise on the first joint positions (rad).
        start_joints: Joint positions that noise is added to; the model's own where empty.
    """

    asset: str
    substeps: int
    obs_dim: int
    episode_limit: int
    fall_height: float
    death_cost: float
    alive: float
    heading_weight: float
    up_weight: float
    action_cost: float
    energy_cost: float
    limit_cost: float
    angular_scale: float
    joint_velocity_scale: float
    sensor_scales: tuple[tuple[int, float], ...]
    start_noise: float
    start_joints: tuple[float, ...]

    def start(self, model: mujoco.MjModel, random: np.random.Generator) -> tuple[Array, Array]:
        """Returns the standing pose with noise on the joints."""
        qpos = model.qpos0.copy()
        if self.start_joints:
            qpos[_ROOT_QPOS:] = self.start_joints
        noise = random.uniform(-self.start_noise, self.start_noise, model.nq - _ROOT_QPOS)
        low, high = model.jnt_range[1:].T
        qpos[_ROOT_QPOS:] = np.clip(qpos[_ROOT_QPOS:] + noise, low, high)
        qvel = random.uniform(-0.1, 0.1, model.nv)
        return qpos, qvel

    def observe(self, model: mujoco.MjModel, now: Transition, out: NDArray[np.float32]) -> None:
        """Writes the observations [n, obs_dim]."""
        torso = observe_torso(now.qpos, now.qvel)
        joints = model.nu
        self._write_torso(torso, out)
        low, high = model.jnt_range[1:].T
        column = 12
        out[:, column : column + joints] = (2 * now.qpos[:, _ROOT_QPOS:] - low - high) / (
            high - low
        )
        column += joints
        out[:, column : column + joints] = now.qvel[:, _ROOT_QVEL:] * self.joint_velocity_scale
        column += joints
        first = 0
        for length, scale in self.sensor_scales:
            values = now.sensors[:, first : first + length] * scale
            out[:, column : column + length] = values
            first += length
            column += length
        out[:, column:] = now.actions

    def _write_torso(self, torso: Torso, out: NDArray[np.float32]) -> None:
        out[:, 0] = torso.height
        out[:, 1:4] = torso.velocity
        out[:, 4:7] = torso.angular_velocity * self.angular_scale
        out[:, 7] = torso.yaw
        out[:, 8] = torso.roll
        out[:, 9] = torso.angle_to_target
        out[:, 10] = torso.up
        out[:, 11] = torso.heading

    def judge(
        self, model: mujoco.MjModel, now: Transition, obs: NDArray[np.float32]
    ) -> tuple[Array, NDArray[np.bool_]]:
        """Returns (reward[n], terminated[n])."""
        joints = model.nu
        up, heading = obs[:, 10], obs[:, 11]
        position, velocity = obs[:, 12 : 12 + joints], obs[:, 12 + joints : 12 + 2 * joints]
        gear = model.actuator_gear[:, 0]
        reward = progress(now.before_qpos, now.qpos, self.substeps * float(model.opt.timestep))
        reward += self.alive
        reward += self.heading_weight * np.minimum(heading / _FACING, 1.0)
        reward += self.up_weight * (up > _UPRIGHT)
        reward -= self.action_cost * np.square(now.actions).sum(axis=1)
        power = np.abs(now.actions * velocity) * (gear / gear.max())
        reward -= self.energy_cost * power.sum(axis=1)
        reward -= self.limit_cost * (np.abs(position) > _NEAR_LIMIT).sum(axis=1)
        terminated = now.qpos[:, 2] < self.fall_height
        reward[terminated] = self.death_cost
        return reward, terminated
