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
from hydra.core.override_parser.types import OverrideType, QuotedString
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from doppler.config import JOBS, AnyJobConfig, JobConfig
from doppler.core.errors import ConfigError, nearest
from doppler.tensor_config import TENSOR_JOBS

JOB_CHOICES: dict[str, AnyJobConfig] = {**JOBS, **TENSOR_JOBS}
"""What `job=NAME` chooses from, where a command takes any job."""

_MEANINGS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    type(None): "null",
}


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
    for name, job in JOB_CHOICES.items():
        store.store(group="job", name=name, node=job)
    chosen = _job_schema(schema, words)
    # a job replaces the default one only if both have the same settings
    store.store(name=schema.__name__, node=schema if chosen is None else schema(job=chosen()))
    GlobalHydra.instance().clear()
    try:
        with initialize(version_base=None, config_path=None):
            composed = compose(config_name=schema.__name__, overrides=list(words))
        config: Any = OmegaConf.to_object(composed)
    except ConfigError:
        raise
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_sentence(error.__cause__ or error, schema, words)) from error
    if getattr(config, "seed", 0) < 0:
        raise ConfigError(f"seed is at least 0, and it is {config.seed}")
    return config


def overridden_keys(words: Sequence[str]) -> frozenset[str]:
    """Returns the keys that override words set; words without `=` set none."""
    parser = OverridesParser.create()
    return frozenset(parser.parse_override(word).key_or_group for word in words if "=" in word)


def _sentence(error: BaseException, schema: type[Any], words: Sequence[str]) -> str:
    """What is wrong with a value: the setting, what it may be, what it is."""
    place = str(getattr(error, "full_key", None) or "")
    key, _, index = place.partition("[")
    keys = flat_keys(schema, job=_job_schema(schema, words) or JobConfig)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if key not in keys:
        return lines[0]
    parser = OverridesParser.create()
    values = [o.value() for o in map(parser.parse_override, words) if o.key_or_group == key]
    if not values:
        return f"{place}: {lines[0]}"
    value, kind = values[-1], keys[key].type
    if isinstance(error, InterpolationResolutionError):
        return f"{place} refers to a setting or variable that is not there: {value}"
    if index and isinstance(value, list):
        value = value[int(index.rstrip("]"))]
        kinds = (kind, *typing.get_args(kind))
        kind = next(typing.get_args(k)[0] for k in kinds if typing.get_origin(k) is list)
    shown = repr(value.text if isinstance(value, QuotedString) else value)
    shown = "null" if value is None else shown
    return f"{place} is {_meaning(kind)}, and it is {shown}"


def _meaning(kind: Any) -> str:
    """What a value of a type is called."""
    if kind in _MEANINGS:
        return _MEANINGS[kind]
    if typing.get_origin(kind) is list:
        return "a list in brackets, such as [a,b]"
    return " or ".join(_meaning(part) for part in typing.get_args(kind)) or getattr(
        kind, "__name__", str(kind)
    )


def job_choices(schema: type[Any]) -> dict[str, AnyJobConfig]:
    """Returns the jobs that `job=NAME` may choose under a command's schema; none if it has no job.

    Coordinating is about environments and agents, so it takes deep-RL jobs only.
    """
    kind = next((item.type for item in dataclasses.fields(schema) if item.name == "job"), None)
    if not isinstance(kind, type):
        return {}
    return {name: job for name, job in JOB_CHOICES.items() if isinstance(job, kind)}


def flat_keys(
    schema: type[Any], prefix: str = "", job: type[AnyJobConfig] = JobConfig
) -> dict[str, dataclasses.Field[Any]]:
    """Returns every settable key of a schema, dotted, with its field.

    Args:
        schema: Of a command, or a part of one.
        prefix: Of the keys.
        job: Settings that `job` has where the schema takes any job.
    """
    keys: dict[str, dataclasses.Field[Any]] = {}
    for item in dataclasses.fields(schema):
        if item.name == "defaults":
            continue
        key = prefix + item.name
        keys[key] = item
        if isinstance(item.type, type) and dataclasses.is_dataclass(item.type):
            part = job if item.type is AnyJobConfig else item.type
            keys |= flat_keys(part, key + ".")
    return keys


def _job_schema(schema: type[Any], words: Sequence[str]) -> type[AnyJobConfig] | None:
    """The settings of the job that the words choose, None if the schema takes no job."""
    choices = job_choices(schema)
    named = [word.partition("=")[2].strip("'\"") for word in words if word.startswith("job=")]
    default = next(iter(choices.values()), None)
    job = choices.get(named[-1], default) if named else default
    return None if job is None else type(job)


def _check_overrides(schema: type[Any], words: Sequence[str]) -> None:
    choices = job_choices(schema)
    keys = flat_keys(schema, job=_job_schema(schema, words) or JobConfig)
    for word in words:
        if "=" not in word:
            raise ConfigError(f"settings are written key=value, and {word!r} has no '='")
        try:
            override = OverridesParser.create().parse_override(word)
        except HydraException as error:
            raise ConfigError(
                f"{word!r} cannot be read: values with brackets, commas or quotes are written in "
                "quotes of their own, such as results='\"a(b\"'"
            ) from error
        if override.type is not OverrideType.CHANGE:
            raise ConfigError(f"settings are written key=value, and {word!r} begins with a sign")
        if override.is_sweep_override():
            raise ConfigError(
                f"a setting has one value, and {word!r} gives several: a list is written [a,b]"
            )
        key = override.key_or_group
        if key not in keys:
            raise ConfigError(f"setting {key!r} is unknown; {nearest(key, keys)}")
        value = override.value()
        if key == "job" and choices:
            if str(value) not in choices:
                raise ConfigError(f"job {str(value)!r} is unknown; {nearest(str(value), choices)}")
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
