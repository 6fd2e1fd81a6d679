"""The jobs that come with the project, at sizes that two cores finish in minutes."""

from collections.abc import Mapping
from types import MappingProxyType

from doppler.core.errors import ConfigError, nearest
from executor.drl.config import PPOJobConfig

PRESETS: Mapping[str, PPOJobConfig] = MappingProxyType(
    {
        "ppo_ant": PPOJobConfig(),
        "ppo_anymal": PPOJobConfig(
            environment="anymal",
            horizon=24,
            chunk=12,
            epochs=5,
            learning_rate=5e-4,
            gamma=0.99,
            clip_value=False,
        ),
        "ppo_ball_balance": PPOJobConfig(
            environment="ball_balance",
            envs_per_shard=16,
            horizon=32,
            chunk=16,
            hidden=(128, 64, 32),
            epochs=8,
            lam=0.98,
            clip_value=False,
        ),
        "ppo_franka_cabinet": PPOJobConfig(
            environment="franka_cabinet",
            epochs=8,
            gamma=0.99,
            learning_rate=3e-4,
            init_log_std=-0.5,
            clip_value=False,
            reward_scale=0.05,
        ),
        "ppo_humanoid": PPOJobConfig(
            environment="humanoid",
            envs_per_shard=16,
            horizon=32,
            hidden=(400, 200, 100),
            epochs=5,
            learning_rate=5e-4,
        ),
        "ppo_pendulum": PPOJobConfig(
            environment="pendulum",
            num_shards=2,
            envs_per_shard=16,
            horizon=64,
            chunk=32,
            num_trainers=2,
            minibatches=4,
            hidden=(32, 32),
            init_log_std=0.0,
            gamma=0.99,
        ),
        "ppo_shadow_hand": PPOJobConfig(
            environment="shadow_hand",
            envs_per_shard=16,
            horizon=32,
            chunk=32,
            hidden=(512, 512, 256, 128),
            epochs=2,
            learning_rate=3e-4,
            init_log_std=-0.5,
            gamma=0.99,
            clip_value=False,
        ),
    }
)
"""Configs by job name: networks, horizons and epochs of IsaacGymEnvs, batches for two cores.

BallBalance and ShadowHand have half of the copies and longer horizons, and ShadowHand two epochs
for five. The value loss is not clipped where values are far larger than the clip, which
IsaacGymEnvs' normalised values never are.
"""


def preset(name: str) -> PPOJobConfig:
    """Returns the config of a job that comes with the project.

    Raises:
        ConfigError: There is none of that name.
    """
    if name not in PRESETS:
        raise ConfigError(f"job {name!r} is unknown; {nearest(name, PRESETS)}")
    return PRESETS[name]
