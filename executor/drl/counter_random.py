"""Randomness addressed by position: the same coordinates give the same numbers in any process.

Philox is a counter-based generator: a draw is a function of a key and a counter, so nothing
depends on who drew before. Here the key is (seed, stream) and the counter holds the coordinates.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

_BLOCK = 4  # 64-bit words that Philox 4x64 makes per counter value
_UINT64 = 2**64


class Stream(IntEnum):
    """What a draw is for; streams of one seed never overlap."""

    reset = 1
    action = 2
    permutation = 3


class CounterRandom:
    """Draws from coordinates. Holds a generator only to avoid building one per draw."""

    def __init__(self, seed: int) -> None:
        self._seed = seed % _UINT64
        self._philox = np.random.Philox(key=[0, 0])
        self._generator = np.random.Generator(self._philox)
        self._state = self._philox.state

    def _seek(self, stream: Stream, word: int, a: int, b: int, c: int) -> None:
        inner = self._state["state"]
        inner["key"][:] = (self._seed, int(stream))
        inner["counter"][:] = (word, a, b, c)
        self._state["buffer_pos"] = _BLOCK
        self._state["has_uint32"] = 0
        self._philox.state = self._state

    def generator(self, stream: Stream, a: int, b: int = 0, c: int = 0) -> np.random.Generator:
        """Returns a generator at the start of the sequence (stream, a, b, c).

        It is valid until the next call on this object. One sequence holds 2**64 draws.
        """
        self._seek(stream, 0, a, b, c)
        return self._generator

    def normals(
        self, stream: Stream, a: int, b: int, first_row: int, shape: tuple[int, int]
    ) -> NDArray[np.float32]:
        """Returns shape[0] rows from `first_row` on of the endless normal table (stream, a, b).

        A row always uses the same number of draws (Box-Muller, no rejection), so any slice of the
        table is the same whoever asks for it, whatever the slice's size.

        Source: Box & Muller 1958.
        """
        rows, columns = shape
        pairs = (columns + 1) // 2
        blocks = -(-pairs // _BLOCK)
        self._seek(stream, first_row * blocks, a, b, 0)
        words = self._philox.random_raw(rows * blocks * _BLOCK).reshape(rows, -1)[:, :pairs]
        uniform = (words & np.uint64(0xFFFFFFFF)).astype(np.float64)
        angle = (words >> np.uint64(32)).astype(np.float64)
        uniform += 0.5  # in (0, 1) after scaling, so that the logarithm is finite
        uniform *= 2.0**-32
        angle *= 2.0**-32 * 2.0 * np.pi
        radius = np.sqrt(-2.0 * np.log(uniform))
        table = np.empty((rows, 2 * pairs), np.float32)
        table[:, :pairs] = radius * np.cos(angle)
        table[:, pairs:] = radius * np.sin(angle)
        return table[:, :columns]
