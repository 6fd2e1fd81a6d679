"""Weights from a trainer to many agents: the newest version, never torn, without locks.

Two places take turns. The trainer writes version v into place v mod 2 between two words, then
stores v as the newest. An agent copies the newest and looks afterwards whether the place was begun
again meanwhile; then it copies anew. Stores become visible in program order, loads stay in order
(see `executor.channels`).
"""

import mmap

import numpy as np
import numpy.typing as npt

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
        raw = np.frombuffer(memory, dtype=np.uint8)
        start = base + HEADER_BYTES
        step = _aligned(num_bytes)
        self._places = [raw[start + p * step : start + p * step + num_bytes] for p in range(2)]

    @property
    def newest(self) -> int:
        """Newest version; 0 before the first."""
        return int(self._words[self._first + NEWEST])

    def read(self, out: npt.NDArray[np.uint8]) -> int:
        """Copies the newest weights and returns their version; 0 leaves `out` as it is."""
        while True:
            version = self.newest
            if version == 0:
                return 0
            place = version % 2
            np.copyto(out, self._places[place])
            if self._words[self._first + BEGUN + LINE_WORDS * place] == version:
                return version

    def close(self) -> None:
        """Lets go of the shared memory."""
        self._words.release()
        self._places = []


class WeightPublisher(WeightReader):
    """The view of the one process that publishes: two would tear what readers see."""

    def publish(self, weights: npt.NDArray[np.uint8]) -> int:
        """Publishes weights (bytes) and returns their version, one more than the last."""
        version = self.newest + 1
        place = version % 2
        self._words[self._first + BEGUN + LINE_WORDS * place] = version
        np.copyto(self._places[place], weights)
        self._words[self._first + NEWEST] = version
        return version


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // 64) * 64
