"""Humanoid: a biped that learns to run. 108 observations, 21 actions, 60 Hz."""

from executor.drl.locomotion import Locomotion

HUMANOID = Locomotion(
    asset="humanoid.xml",
    substeps=2,
    obs_dim=108,
    episode_limit=1000,
    fall_height=0.8,
    death_cost=-1.0,
    alive=2.0,
    heading_weight=0.5,
    up_weight=0.1,
    action_cost=0.01,
    energy_cost=0.05,
    limit_cost=0.25,
    angular_scale=0.25,
    joint_velocity_scale=0.1,
    sensor_scales=((21, 0.01), (12, 0.01)),  # motor torques; force and torque at two feet
    start_noise=0.1,
    start_joints=(),
)
