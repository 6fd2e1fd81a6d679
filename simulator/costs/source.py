"""What every model of op times answers: how long one op takes on one device, and why."""

from dataclasses import dataclass
from typing import Protocol

from doppler.core.cluster import Device
from doppler.core.errors import DopplerError
from doppler.core.graph import Op


class UnknownTimeError(DopplerError):
    """Raised when a model does not know the time of an op on a device; says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTime:
    """One answer.

    Attributes:
        time_ns: Time with idle siblings.
        slowdown_permille: Extra time per busy sibling device, in 1/1000.
        detail: How the model came to it, in a few words.
    """

    time_ns: int
    slowdown_permille: int
    detail: str


class OpTimeModel(Protocol):
    """Knows times op by op; `composed` asks several in turn.

    Attributes:
        name: What it is called where its answers are listed.
    """

    @property
    def name(self) -> str:
        """What it is called where its answers are listed."""
        ...

    def op_time(self, op: Op, device: Device) -> OpTime:
        """Returns the time of an op that is no input.

        Raises:
            UnknownTimeError: If this model does not know it.
        """
        ...

    def dispatch_of(self, device: Device) -> int | None:
        """Returns the runtime's own cost per op on a device, or None if it does not know."""
        ...
