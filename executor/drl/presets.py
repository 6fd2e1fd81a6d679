"""The jobs that come with the project, at sizes that two cores finish in minutes."""

from collections.abc import Mapping
from types import MappingProxyType

from doppler.core.errors import ConfigError, nearest
from executor.drl.config import PPOJobConfig

PRESETS: Mapping[str, PPOJobConfig] = MappingProxyType(
    {
        "ppo_ant": PPOJobConfig(),
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
    }
)
"""Configs by job name. Network widths and horizons of Ant and Humanoid are those of GMI-DRL."""


def preset(name: str) -> PPOJobConfig:
    """Returns the config of a job that comes with the project.

    Raises:
        ConfigError: There is none of that name.
    """
    if name not in PRESETS:
        raise ConfigError(f"job {name!r} is unknown; {nearest(name, PRESETS)}")
    return PRESETS[name]
