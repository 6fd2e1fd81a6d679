"""What users say to a set of GMIs in words, checked: devices, compositions, choices by name."""

import enum
import math
import operator
from collections.abc import Sequence
from typing import Any, TypeVar

from doppler.core.cluster import Cluster, Device
from doppler.core.collective import AllReduceSchedule
from doppler.core.errors import ConfigError, GraphError, nearest
from doppler.graphs.collectives import compose

Choice = TypeVar("Choice", bound=enum.Enum)


def check_deadline(deadline_s: float) -> None:
    """Checks how long a GMI may be silent.

    Raises:
        ConfigError: If it is not finite and above 0.
    """
    if not isinstance(deadline_s, int | float) or not 0.0 < deadline_s < math.inf:
        raise ConfigError(
            f"deadline_s, after which a silent GMI counts as hung, is finite and above 0 seconds, "
            f"and it is {deadline_s!r}"
        )


def device_of(cluster: Cluster, device: str | int) -> Device:
    """Returns a device by name or position.

    Raises:
        ConfigError: If there is none.
    """
    devices = cluster.devices
    if not isinstance(device, str):
        try:
            position = operator.index(device)
        except TypeError:
            position = -1
        if not 0 <= position < len(devices):
            raise ConfigError(
                f"the device of a GMI is a name or a position from 0 to {len(devices) - 1} in "
                f"cluster {cluster.name!r}, and it is {device!r}"
            )
        return devices[position]
    found = {own.name: own for own in devices}
    if device not in found:
        raise ConfigError(f"device {device!r} of a GMI is unknown; {nearest(device, found)}")
    return found[device]


def chosen(kind: type[Choice], value: Choice | str, where: str) -> Choice:
    """Returns a member of an enumeration that was given as such or by its value.

    Args:
        kind: The enumeration.
        value: What was given.
        where: What it is, for the message ("when_full of channel 'experience'").

    Raises:
        ConfigError: If it is none; names the nearest.
    """
    try:
        return kind(value)
    except ValueError:
        names = [str(member.value) for member in kind]
        raise ConfigError(f"{where} is unknown: {value!r}; {nearest(str(value), names)}") from None


def composition(
    schedule: AllReduceSchedule | str | Any, devices: Sequence[Device], where: str
) -> AllReduceSchedule:
    """Returns a composition that was given as such or by its name ("ring", "hybrid(2)").

    Args:
        schedule: What was given.
        devices: Device of each member; those of one processor are a group.
        where: Of what it is, for the message ("collective 'gradient'").

    Raises:
        ConfigError: If there is no such composition, or it does not fit the groups.
    """
    if isinstance(schedule, AllReduceSchedule):
        return schedule
    parents = [device.parent or device.name for device in devices]
    groups = [
        [member for member, own in enumerate(parents) if own == parent]
        for parent in dict.fromkeys(parents)
    ]
    try:
        return compose(str(schedule), groups)
    except GraphError as error:
        raise ConfigError(
            f"the schedule of {where} is 'auto', a composition or its name, and it is "
            f"{schedule!r}: {error}"
        ) from error
