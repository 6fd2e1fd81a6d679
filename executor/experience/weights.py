"""Weights from a trainer to many agents: the newest version, never torn, without locks.

Two places take turns. The trainer writes version v into place v mod 2 between two words, then
stores v as the newest. An agent copies the newest and looks afterwards whether the place was begun
again meanwhile; then it copies anew. Stores become visible in program order, loads stay in order
(see `executor.channels`).
"""

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from doppler.core.errors import ExecutionError
from executor.channels import check_memory_order

LINE_WORDS = 8
HEADER_BYTES = 3 * 64
NEWEST, BEGUN = 0, LINE_WORDS  # word of the newest version; first of the words per place


def board_bytes(num_bytes: int) -> int:
    """Returns the shared memory that the weights of `num_bytes` take, from a multiple of 64."""
    return HEADER_BYTES + 2 * _aligned(num_bytes)


class WeightReader:
    """One process's view of the weights.

    Raises:
        ExecutionError: If the machine's store order does not suffice.
    """

    def __init__(self, memory: mmap.mmap, base: int, num_bytes: int) -> None:
        check_memory_order()
        self._words = memoryview(memory).cast("q")
        self._first = base // 8
        self._num_bytes = num_bytes
        raw = np.frombuffer(memory, dtype=np.uint8)
        start = base + HEADER_BYTES
        step = _aligned(num_bytes)
        self._places = [raw[start + p * step : start + p * step + num_bytes] for p in range(2)]

    @property
    def newest(self) -> int:
        """Newest version; 0 before the first."""
        return int(self._words[self._first + NEWEST])

    def read(self, out: npt.NDArray[Any]) -> int:
        """Copies the newest weights and returns their version; 0 leaves `out` as it is.

        Args:
            out: Array of any type and shape, of as many bytes as the weights, without gaps.

        Raises:
            ExecutionError: If it is none.
        """
        into = _bytes_of(out, self._num_bytes)
        while True:
            version = self.newest
            if version == 0:
                return 0
            place = version % 2
            np.copyto(into, self._places[place])
            if self._words[self._first + BEGUN + LINE_WORDS * place] == version:
                return version

    def close(self) -> None:
        """Lets go of the shared memory."""
        self._words.release()
        self._places = []


class WeightPublisher(WeightReader):
    """The view of the one process that publishes: two would tear what readers see."""

    def publish(self, weights: npt.NDArray[Any]) -> int:
        """Publishes weights and returns their version, one more than the last.

        Args:
            weights: Array of any type and shape, of as many bytes as the weights, without gaps.

        Raises:
            ExecutionError: If it is none.
        """
        published = _bytes_of(weights, self._num_bytes)
        version = self.newest + 1
        place = version % 2
        self._words[self._first + BEGUN + LINE_WORDS * place] = version
        np.copyto(self._places[place], published)
        self._words[self._first + NEWEST] = version
        return version


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // 64) * 64


def _bytes_of(values: npt.NDArray[Any], num_bytes: int) -> npt.NDArray[np.uint8]:
    """Returns the bytes of an array without gaps, [num_bytes], in place."""
    if not isinstance(values, np.ndarray) or not values.flags.c_contiguous:
        raise ExecutionError(
            f"weights are a numpy array in C order without gaps, and they got {_described(values)}"
        )
    if values.nbytes != num_bytes:
        raise ExecutionError(
            f"these weights have {num_bytes} bytes, and the array has {values.nbytes}: "
            f"{_described(values)}"
        )
    return values.reshape(-1).view(np.uint8)


def _described(values: object) -> str:
    if isinstance(values, np.ndarray):
        return f"{values.dtype} of shape {values.shape} and strides {values.strides}"
    return f"an object of type {type(values).__name__}"
