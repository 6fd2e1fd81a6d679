"""The torso of a legged robot seen from itself, as the locomotion tasks observe it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
TARGET_X = 1000.0
"""The goal lies this far along +x (m), so that distance gained is speed along +x."""


class Torso(NamedTuple):
    """Pose and motion of n torsos.

    Attributes:
        height: [n] m above the ground.
        velocity: [n, 3] linear velocity in the torso's frame, m/s.
        angular_velocity: [n, 3] in the torso's frame, rad/s.
        yaw: [n] rad.
        roll: [n] rad.
        angle_to_target: [n] rad in (-pi, pi].
        up: [n] cosine between the torso's z axis and the vertical.
        heading: [n] cosine between the torso's x axis and the direction of the goal.
    """

    height: Array
    velocity: Array
    angular_velocity: Array
    yaw: Array
    roll: Array
    angle_to_target: Array
    up: Array
    heading: Array


def observe_torso(qpos: Array, qvel: Array) -> Torso:
    """Returns the torso from the free joint at the head of qpos[n, nq] and qvel[n, nv].

    MuJoCo gives a free joint's linear velocity in the world and its angular velocity in the body.
    """
    x, y, height, qw, qx, qy, qz = np.ascontiguousarray(qpos[:, :7].T)
    vx, vy, vz, *_ = np.ascontiguousarray(qvel[:, :3].T)
    # Rotation matrix of the unit quaternion (w, x, y, z); its columns are the body's axes.
    xx, yy, zz = qx * qx, qy * qy, qz * qz
    xy, xz, yz = qx * qy, qx * qz, qy * qz
    wx, wy, wz = qw * qx, qw * qy, qw * qz
    r00, r01, r02 = 1 - 2 * (yy + zz), 2 * (xy - wz), 2 * (xz + wy)
    r10, r11, r12 = 2 * (xy + wz), 1 - 2 * (xx + zz), 2 * (yz - wx)
    r20, r21, r22 = 2 * (xz - wy), 2 * (yz + wx), 1 - 2 * (xx + yy)
    velocity = np.empty((len(x), 3))
    velocity[:, 0] = r00 * vx + r10 * vy + r20 * vz
    velocity[:, 1] = r01 * vx + r11 * vy + r21 * vz
    velocity[:, 2] = r02 * vx + r12 * vy + r22 * vz
    to_x, to_y = TARGET_X - x, -y
    distance = np.sqrt(to_x * to_x + to_y * to_y)
    yaw = np.arctan2(r10, r00)
    angle = np.arctan2(to_y, to_x) - yaw
    angle -= 2 * np.pi * np.ceil((angle - np.pi) / (2 * np.pi))
    return Torso(
        height=height,
        velocity=velocity,
        angular_velocity=qvel[:, 3:6],
        yaw=yaw,
        roll=np.arctan2(r21, r22),
        angle_to_target=angle,
        up=r22,
        heading=(r00 * to_x + r10 * to_y) / distance,
    )


def progress(before_qpos: Array, qpos: Array, step_s: float) -> Array:
    """Returns [n] the speed towards the goal in m/s: distance gained over `step_s` seconds."""
    before = np.hypot(TARGET_X - before_qpos[:, 0], before_qpos[:, 1])
    after = np.hypot(TARGET_X - qpos[:, 0], qpos[:, 1])
    return (before - after) / step_s
