"""Typed packages, their grouping into channels, and the choice of a batch.

Packages of one dtype and one trailing shape (all dimensions but the first) may share a channel: a
channel is one contiguous piece of memory, moved as one message.

Source: GMI-DRL, eq. 5-8. The batch cancels out of the printed metric, so it is chosen by measuring.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from doppler.core.errors import ConfigError, ExecutionError
from doppler.core.whole import check_whole

ALIGNMENT_BYTES = 64


def element_type(dtype: str, where: str) -> np.dtype[Any]:
    """Returns numpy's type of a name, for arrays in shared memory.

    Args:
        dtype: The name.
        where: Whose type it is, for the message.

    Raises:
        ConfigError: If numpy does not know it, or its elements are objects or of no fixed size.
    """
    try:
        found = None if dtype is None else np.dtype(dtype)
    except (TypeError, ValueError):
        found = None
    if found is None or found.hasobject or not found.itemsize:
        raise ConfigError(
            f"a type is numpy's name of one with a fixed size and without objects (float32, int64, "
            f"uint8), and that of {where} is {dtype!r}"
        )
    return found


@dataclass(frozen=True, slots=True)
class Package:
    """One field of a record.

    Attributes:
        name: Unique name ("state", "action").
        dtype: numpy's name of its type, whose elements have a fixed size and are no objects.
        shape: Shape for one record; () is one number.

    Raises:
        ConfigError: If type or shape are none.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        where = f"package {self.name!r}"
        element_type(self.dtype, where)
        if not isinstance(self.shape, tuple):
            raise ConfigError(
                f"a shape is a tuple of sizes ((60,), or () for one number), and that of {where} "
                f"is {self.shape!r}"
            )
        for size in self.shape:
            check_whole(size, 1, "the sizes of a shape", where)

    @property
    def num_bytes(self) -> int:
        """Bytes of one record's field."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)

    @property
    def compatibility(self) -> tuple[str, tuple[int, ...]]:
        """Packages with equal values may share a channel."""
        return self.dtype, self.shape[1:]


@dataclass(frozen=True, slots=True)
class Channel:
    """Packages that travel together."""

    packages: tuple[Package, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of one record."""
        return sum(package.num_bytes for package in self.packages)


def group_packages(packages: Sequence[Package]) -> tuple[Channel, ...]:
    """Returns the fewest channels in which compatible packages meet, in order of first package.

    No compatible grouping has a larger `top_mov`: joining two groups lowers their number, and the
    mean of the joined one is at least the smaller of the two means.

    Raises:
        ConfigError: If there is no package, something else, or two have one name.
    """
    for package in packages:
        if not isinstance(package, Package):
            raise ConfigError(f"a record has packages (`Package`), and it has {package!r}")
    names = [package.name for package in packages]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"a record has packages with unique names, and it has {names}")
    groups: dict[tuple[str, tuple[int, ...]], list[Package]] = {}
    for package in packages:
        groups.setdefault(package.compatibility, []).append(package)
    return tuple(Channel(tuple(members)) for members in groups.values())


def top_mov(channels: Sequence[Channel]) -> Fraction:
    """Returns the printed metric: min over channels of bytes / (packages x channels).

    Source: GMI-DRL, eq. 8 (simplified form, batch cancelled).
    """
    return min(
        Fraction(channel.num_bytes, len(channel.packages) * len(channels)) for channel in channels
    )


def choose_batch(
    candidates: Iterable[int], measure: Callable[[int], float], tolerance: float = 0.0
) -> int:
    """Returns the smallest batch whose measured rate is (about) the largest: its records come soon.

    Args:
        candidates: Records per batch to try.
        measure: Rate (bytes or records per s) of a batch size.
        tolerance: Part of the largest rate that may be missing.

    Raises:
        ConfigError: If there is no candidate.
    """
    rates = {batch: measure(batch) for batch in sorted(set(candidates))}
    if not rates:
        raise ConfigError("a batch is chosen from at least one candidate, and there is none")
    enough = (1.0 - tolerance) * max(rates.values())
    return min(batch for batch, rate in rates.items() if rate >= enough)


@dataclass(frozen=True)
class BatchLayout:
    """Where the fields of a batch lie: channel by channel, in each package by package.

    Attributes:
        channels: What travels.
        batch: Records of a full batch.
    """

    channels: tuple[Channel, ...]
    batch: int

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ConfigError(f"a batch has at least one record, and it is {self.batch}")

    @property
    def packages(self) -> tuple[Package, ...]:
        """All packages, in the order in which they lie."""
        return tuple(package for channel in self.channels for package in channel.packages)

    @property
    def size_bytes(self) -> int:
        """Bytes of a batch, aligned."""
        return self.offsets()[-1]

    def offsets(self) -> tuple[int, ...]:
        """Returns the first byte of each package, and the end of all."""
        position, found = 0, []
        for channel in self.channels:
            for package in channel.packages:
                found.append(position)
                position += package.num_bytes * self.batch
                # Items of one type follow each other; the next channel starts on a cache line.
            position = -(-position // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return (*found, position)

    def views(self, memory: npt.NDArray[np.uint8], base: int) -> tuple[np.ndarray, ...]:
        """Returns an array [batch, *shape] per package, over bytes from `base` on."""
        found: list[np.ndarray] = []
        for package, offset in zip(self.packages, self.offsets(), strict=False):
            start = base + offset
            piece = memory[start : start + package.num_bytes * self.batch]
            found.append(piece.view(package.dtype).reshape(self.batch, *package.shape))
        return tuple(found)


class Dispenser:
    """Cuts experience into packages: checks names, types and shapes, and puts them in order.

    Raises (from `cut`):
        ExecutionError: Names the field that is missing, unknown or of another type or shape.
    """

    def __init__(self, layout: BatchLayout) -> None:
        self._packages = layout.packages
        self._names = {package.name for package in layout.packages}

    def cut(self, experience: Mapping[str, np.ndarray]) -> tuple[list[np.ndarray], int]:
        """Returns the arrays [n, *shape] in the layout's order, and n."""
        if experience.keys() != self._names:
            odd = sorted(experience.keys() ^ self._names)
            raise ExecutionError(
                f"experience has the fields {sorted(self._names)}, and {odd} are missing or unknown"
            )
        arrays = [experience[package.name] for package in self._packages]
        count = len(arrays[0])
        for package, array in zip(self._packages, arrays, strict=True):
            if array.shape != (count, *package.shape) or array.dtype != package.dtype:
                raise ExecutionError(
                    f"field {package.name!r} is {package.dtype} of shape "
                    f"{(count, *package.shape)}, and it got {array.dtype} of {array.shape}"
                )
        return arrays, count
