"""What GMIs say to each other, and where it lies in their shared memory.

The memory begins with one line per GMI (`Status`); collectives, channels and weights follow. All
sizes are multiples of 64 bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from doppler.core.cluster import Device
from doppler.core.errors import ConfigError
from doppler.core.whole import check_whole
from executor.collectives.kernels import CollectiveKernel
from executor.collectives.peers import peers_bytes
from executor.collectives.shared import AllReduceLayout
from executor.experience.flow import WhenFull
from executor.experience.packages import element_type
from executor.experience.ring import RingLayout
from executor.experience.weights import board_bytes

LINE_BYTES = 64
LINE_WORDS = LINE_BYTES // 8
SUMMED_KINDS = "iufc"
"""numpy's kinds of the types that can be added: integers, floats, complex numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GMISpec:
    """Who a GMI is.

    Attributes:
        gmi_id: Position among all GMIs.
        role: What it does, in the user's words ("trainer").
        device: Its share of the hardware.
        source: Module by name, or file by path (ends in ".py").
        class_name: The user's class in it.
        settings: What the class reads as `self.settings`.
        first_step: Step that it goes on from; 0 = from the beginning.
        state: Arrays of the checkpoint at that step, or None.
    """

    gmi_id: int
    role: str
    device: Device
    source: str
    class_name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    first_step: int = 0
    state: Mapping[str, np.ndarray] | None = None

    @property
    def title(self) -> str:
        """Returns id, role and device in words."""
        return f"GMI {self.gmi_id} (role {self.role!r}, device {self.device.name!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """An all-reduce among some GMIs.

    Attributes:
        name: Its name.
        members: GMI ids in the order of the schedule's members.
        layout: Schedule, length and type; other kernels than shared memory have schedules of
            their own.
        kernel: What does it.

    Raises:
        ConfigError: If there is nothing to add (no elements, or a type that is no number's), or the
            schedule is for another number of members.
    """

    name: str
    members: tuple[int, ...]
    layout: AllReduceLayout
    kernel: CollectiveKernel = CollectiveKernel.shared_memory

    def __post_init__(self) -> None:
        where = f"collective {self.name!r}"
        check_whole(self.layout.num_elements, 1, "the elements of an all-reduce", where)
        if element_type(self.layout.dtype, where).kind not in SUMMED_KINDS:
            raise ConfigError(
                f"an all-reduce adds numbers (float32, float64, int64), and the type of {where} is "
                f"{self.layout.dtype!r}"
            )
        schedule = self.layout.schedule
        if schedule.num_members != len(self.members):
            raise ConfigError(
                f"{where} has {len(self.members)} members, and schedule {schedule.name!r} is for "
                f"{schedule.num_members}"
            )

    @property
    def participants(self) -> tuple[int, ...]:
        """GMIs that take part."""
        return self.members

    @property
    def size_bytes(self) -> int:
        """Shared memory that it takes."""
        if self.kernel is CollectiveKernel.shared_memory:
            return self.layout.size_bytes
        return peers_bytes(len(self.members))


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """Experience from producers to consumers: a ring per pair.

    Attributes:
        name: Its name.
        producers, consumers: GMI ids.
        ring: Packages, records per batch, batches per ring.
        when_full: What a producer does when no consumer has room.

    Raises:
        ConfigError: If a GMI is on both sides.
    """

    name: str
    producers: tuple[int, ...]
    consumers: tuple[int, ...]
    ring: RingLayout
    when_full: WhenFull

    def __post_init__(self) -> None:
        if both := set(self.producers) & set(self.consumers):
            raise ConfigError(
                f"a GMI is on one side of a channel, and GMI {min(both)} is on both of "
                f"{self.name!r}"
            )

    @property
    def participants(self) -> tuple[int, ...]:
        """GMIs that take part."""
        return self.producers + self.consumers

    @property
    def ring_bytes(self) -> int:
        """Shared memory of one ring."""
        return _aligned(self.ring.size_bytes)

    @property
    def size_bytes(self) -> int:
        """Shared memory that it takes."""
        return self.ring_bytes * len(self.producers) * len(self.consumers)

    def offset(self, producer: int, consumer: int) -> int:
        """Returns where the ring of a pair lies, from the channel's first byte."""
        row = self.producers.index(producer)
        return self.ring_bytes * (row * len(self.consumers) + self.consumers.index(consumer))


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The newest weights from one GMI to others.

    Attributes:
        name: Name.
        publisher: GMI id.
        readers: GMI ids.
        num_bytes: Bytes of the weights.

    Raises:
        ConfigError: If there are no bytes, or the publisher is among the readers.
    """

    name: str
    publisher: int
    readers: tuple[int, ...]
    num_bytes: int

    def __post_init__(self) -> None:
        check_whole(self.num_bytes, 1, "the bytes of weights", f"{self.name!r}")
        if self.publisher in self.readers:
            raise ConfigError(
                f"weights are read by other GMIs than the one that publishes them, and GMI "
                f"{self.publisher} is on both sides of {self.name!r}"
            )

    @property
    def participants(self) -> tuple[int, ...]:
        """GMIs that take part."""
        return (self.publisher, *self.readers)

    @property
    def size_bytes(self) -> int:
        """Shared memory that they take."""
        return board_bytes(self.num_bytes)


Link = Collective | Channel | Weights


@dataclass(frozen=True, kw_only=True)
class Communication:
    """All that a set of GMIs says to each other.

    Attributes:
        num_gmis: GMIs.
        links: Collectives, channels and weights, in the order in which they were added.
    """

    num_gmis: int
    links: tuple[Link, ...]

    @cached_property
    def places(self) -> dict[str, int]:
        """Name of a link -> its first byte."""
        found: dict[str, int] = {}
        position = LINE_BYTES * self.num_gmis
        for link in self.links:
            found[link.name] = position
            position += link.size_bytes
        return found

    @property
    def needs_store(self) -> bool:
        """True if members of some collective find each other through a file."""
        return any(
            isinstance(link, Collective) and link.kernel is not CollectiveKernel.shared_memory
            for link in self.links
        )

    @property
    def num_watched(self) -> int:
        """Processes that a GMI watches at most: the other members of each of its collectives."""
        watched = [0] * self.num_gmis
        for link in self.links:
            if isinstance(link, Collective):
                for member in link.members:
                    watched[member] += len(link.members) - 1
        return max(watched, default=0)

    @property
    def size_bytes(self) -> int:
        """Shared memory in all."""
        return LINE_BYTES * self.num_gmis + sum(link.size_bytes for link in self.links)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // LINE_BYTES) * LINE_BYTES
