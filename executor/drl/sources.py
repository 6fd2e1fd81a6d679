"""Where a job's environment and network come from: by name, a user's file, another interpreter."""

from dataclasses import dataclass
from functools import partial

from doppler.core.errors import ConfigError
from executor.drl.bridge import BridgeEnvironment, ForeignSource
from executor.drl.config import PPOJobConfig
from executor.drl.custom import CustomJob, load_custom
from executor.drl.environments import make_environment
from executor.drl.isaac_names import ISAAC_GYM, ISAAC_LAB, isaac_task
from executor.drl.policy import PolicyFactory
from executor.drl.vector_env import EnvironmentFactory, EnvironmentSpec, environment_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a config's names stand for.

    Attributes:
        environment: Makes environments.
        policy: Makes networks; None for the built-in one.
        spec: Sizes of the environment.
    """

    environment: EnvironmentFactory
    policy: PolicyFactory | None
    spec: EnvironmentSpec


def resolve_source(config: PPOJobConfig) -> Source:
    """Returns environment, network and sizes of a job.

    Raises:
        ConfigError: A name, file or class does not exist or does not keep to its protocol.
    """
    custom = load_custom(config.custom_path, config.custom_name) if config.custom_path else None
    environment = _environment(config, custom)
    spec = environment_spec(environment)
    policy: PolicyFactory | None = None
    if custom is not None and custom.policy is not None:
        policy = partial(custom.policy, spec.obs_dim, spec.act_dim)
    return Source(environment=environment, policy=policy, spec=spec)


def _environment(config: PPOJobConfig, custom: CustomJob | None) -> EnvironmentFactory:
    if config.env_python:
        return partial(BridgeEnvironment, config.env_python, _foreign_source(config))
    if custom is not None:
        return custom.environment
    if isaac_task(config.environment) is not None:
        raise ConfigError(
            f"environment {config.environment!r} needs env_python, the interpreter that its "
            "simulator is installed for"
        )
    return partial(make_environment, config.environment)


def _foreign_source(config: PPOJobConfig) -> ForeignSource:
    if config.custom_path:
        return ForeignSource(path=config.custom_path, name=config.custom_name)
    isaac = isaac_task(config.environment)
    if isaac is not None:
        return ForeignSource(simulator=isaac[0], task=isaac[1])
    raise ConfigError(
        f"environment {config.environment!r} runs in this interpreter, so env_python must be "
        f"empty; it serves custom jobs, {ISAAC_GYM}:<task> and {ISAAC_LAB}:<task>"
    )
