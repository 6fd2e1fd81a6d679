"""Counts that a user gives."""

import operator

from doppler.core.errors import ConfigError


def check_whole(value: object, least: int, what: str, where: str) -> int:
    """Returns a count as an `int`; numpy's integers are counts, too.

    Args:
        value: What was given.
        least: The least that is valid.
        what: What is counted, for the message ("records per batch").
        where: Whose count it is ("channel 'experience'").

    Raises:
        ConfigError: If it is no whole number or less than that.
    """
    try:
        found = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        found = least - 1
    if found < least:
        raise ConfigError(
            f"{what} are a whole number of {least} or more, and {where} has {value!r}"
        )
    return found
