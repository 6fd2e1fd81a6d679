"""What the settings of planners have in common: parts of a whole, and smallest values."""

from doppler.core.errors import ConfigError


def check_parts(owner: object, *names: str) -> None:
    """Checks that settings lie in [0, 1].

    Raises:
        ConfigError: Names the setting and its value.
    """
    for name in names:
        value = getattr(owner, name)
        if not 0.0 <= value <= 1.0:
            raise ConfigError(f"{name} lies in [0, 1], and it is {value}")


def check_budget_parts(owner: object, first: str, second: str) -> None:
    """Checks that two settings are parts of one budget, together at most all of it.

    Raises:
        ConfigError: Names the settings and their values.
    """
    check_parts(owner, first, second)
    values = getattr(owner, first), getattr(owner, second)
    if sum(values) > 1.0:
        raise ConfigError(
            f"{first} and {second} are at most 1 together, and they are {values[0]} and {values[1]}"
        )


def check_at_least(owner: object, low: float, *names: str) -> None:
    """Checks that settings are `low` or more.

    Raises:
        ConfigError: Names the setting and its value.
    """
    for name in names:
        value = getattr(owner, name)
        if not value >= low:  # not a number is below everything, too
            raise ConfigError(f"{name} is at least {low:g}, and it is {value}")
