"""From command-line words to a checked config: Hydra composes, near misses get a suggestion."""

import dataclasses
import enum
import typing
from collections.abc import Sequence
from typing import Any

from hydra import compose, initialize
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from doppler.config import JOBS, JobConfig
from doppler.core.errors import ConfigError, nearest


def compose_config(schema: type[Any], words: Sequence[str]) -> Any:
    """Returns an instance of `schema` with Hydra overrides applied.

    Args:
        schema: One of the command schemas of `doppler.config`.
        words: Overrides such as `job=ppo_humanoid`, `training.sim_episodes=20000`.

    Raises:
        ConfigError: If a key is unknown (with the nearest valid one), a value has the wrong type
            or is out of range.
    """
    _check_overrides(schema, words)
    store = ConfigStore.instance()
    for name, job in JOBS.items():
        store.store(group="job", name=name, node=job)
    store.store(name=schema.__name__, node=schema)
    GlobalHydra.instance().clear()
    try:
        with initialize(version_base=None, config_path=None):
            composed = compose(config_name=schema.__name__, overrides=list(words))
        config: Any = OmegaConf.to_object(composed)
    except ConfigError:
        raise
    except (HydraException, OmegaConfBaseException) as error:
        cause = error.__cause__ or error
        raise ConfigError(_first_line(cause)) from error
    if getattr(config, "seed", 0) < 0:
        raise ConfigError(f"seed is at least 0, and it is {config.seed}")
    return config


def overridden_keys(words: Sequence[str]) -> frozenset[str]:
    """Returns the keys that override words set; words without `=` set none."""
    parser = OverridesParser.create()
    return frozenset(parser.parse_override(word).key_or_group for word in words if "=" in word)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    place = next((line for line in lines if line.startswith("full_key:")), "")
    return f"{lines[0]} ({place})" if place else lines[0]


def flat_keys(schema: type[Any], prefix: str = "") -> dict[str, dataclasses.Field[Any]]:
    """Returns every settable key of a schema, dotted, with its field."""
    keys: dict[str, dataclasses.Field[Any]] = {}
    for item in dataclasses.fields(schema):
        if item.name == "defaults":
            continue
        key = prefix + item.name
        keys[key] = item
        if isinstance(item.type, type) and dataclasses.is_dataclass(item.type):
            keys |= flat_keys(item.type, key + ".")
    return keys


def _check_overrides(schema: type[Any], words: Sequence[str]) -> None:
    keys = flat_keys(schema)
    for word in words:
        if "=" not in word:
            raise ConfigError(f"settings are written key=value, and {word!r} has no '='")
        try:
            override = OverridesParser.create().parse_override(word)
        except HydraException as error:
            raise ConfigError(f"{word!r} cannot be read: {_first_line(error)}") from error
        key = override.key_or_group
        if key not in keys:
            raise ConfigError(f"setting {key!r} is unknown; {nearest(key, keys)}")
        value = override.value()
        if key == "job" and keys[key].type is JobConfig:
            if str(value) not in JOBS:
                raise ConfigError(f"job {str(value)!r} is unknown; {nearest(str(value), JOBS)}")
        elif isinstance(keys[key].type, type) and dataclasses.is_dataclass(keys[key].type):
            raise ConfigError(f"{key!r} is a group of settings: set {key}.NAME=value")
        _check_choice(key, keys[key], value)


def _check_choice(key: str, item: dataclasses.Field[Any], value: object) -> None:
    kinds = typing.get_args(item.type) or (item.type,)
    choice = next((k for k in kinds if isinstance(k, type) and issubclass(k, enum.Enum)), None)
    if choice is not None and not (value is None and type(None) in kinds):
        names = [member.name for member in choice]
        if str(value) not in names:
            raise ConfigError(f"{key} has no value {str(value)!r}; {nearest(str(value), names)}")
