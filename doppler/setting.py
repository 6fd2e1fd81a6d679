"""Fields of typed configurations: a default, a line of help, and a check of ranges."""

from dataclasses import field
from typing import Any

from doppler.core.errors import ConfigError


def setting(default: Any, text: str) -> Any:
    """Returns a dataclass field with its default and its help line."""
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata={"help": text})
    if isinstance(default, type):
        return field(default_factory=default, metadata={"help": text})
    return field(default=default, metadata={"help": text})


def at_least(owner: object, low: float, *names: str) -> None:
    """Checks that settings are `low` or more.

    Raises:
        ConfigError: Names the setting and its value.
    """
    for name in names:
        value = getattr(owner, name)
        if not value >= low:  # not a number is below everything, too
            raise ConfigError(
                f"{type(owner).__name__}: {name} is at least {low:g}, and it is {value}"
            )
