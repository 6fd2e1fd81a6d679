"""Ant: a quadruped that learns to run. 60 observations, 8 actions, 60 Hz."""

from executor.drl.locomotion import Locomotion

ANT = Locomotion(
    asset="ant.xml",
    substeps=2,
    obs_dim=60,
    episode_limit=1000,
    fall_height=0.31,
    death_cost=-2.0,
    alive=0.5,
    heading_weight=0.5,
    up_weight=0.1,
    action_cost=0.005,
    energy_cost=0.05,
    limit_cost=0.1,
    angular_scale=1.0,
    joint_velocity_scale=0.2,
    sensor_scales=((24, 0.1),),  # force and torque at four feet
    start_noise=0.2,
    start_joints=(0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0),  # hip, ankle of each leg: standing
)
