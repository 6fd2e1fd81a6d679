"""The arena: one piece of shared memory that holds every tensor of a running job.

A tensor that leaves its device is not copied: the consumer reads where the producer wrote, so a
send between core groups is only a published message.
"""

import mmap
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from doppler.core.graph import DataflowGraph

ALIGNMENT_BYTES = 64
UNWRITTEN = 0xFF  # as a float it is NaN, as an unsigned integer the largest


@dataclass(frozen=True, kw_only=True)
class ArenaLayout:
    """Where each version of each output lies; worked out from the graph alone.

    Iteration i of an output lies in slot `i % window`, versions before the first iteration
    (-1, -2, ...) likewise. `window` slots are enough: iteration i of a producer starts only when
    every consumer at distance d has returned the credit of its iteration i - (window - d), and that
    is the consumer that reads version i - window, the last owner of the slot. A `latest` edge
    reads version v >= j - d in iteration j; while j is not done the producer has started at most
    iteration j - 1 + window - d, whose slot held version j - 1 - d < v. An input has one slot,
    because it never changes.

    Attributes:
        graph: The graph whose outputs are laid out.
    """

    graph: DataflowGraph

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """Versions that are kept, per op."""
        return tuple(1 if op.is_input else self.graph.window for op in self.graph.ops)

    @cached_property
    def offsets(self) -> tuple[tuple[int, ...], ...]:
        """First byte of slot 0 per op and output."""
        return self._walk[0]

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole arena."""
        return self._walk[1]

    @cached_property
    def _walk(self) -> tuple[tuple[tuple[int, ...], ...], int]:
        position = 0
        rows: list[tuple[int, ...]] = []
        for op, slots in zip(self.graph.ops, self.slots, strict=True):
            row: list[int] = []
            for num_bytes in op.outputs:
                row.append(position)
                position += slots * _aligned(num_bytes)
            rows.append(tuple(row))
        return tuple(rows), position

    def offset(self, op: int, output: int, version: int) -> int:
        """Returns the first byte of a version."""
        stride = _aligned(self.graph.ops[op].outputs[output])
        return self.offsets[op][output] + (version % self.slots[op]) * stride


class Arena:
    """Views of the tensors in a mapping of the shared memory.

    Attributes:
        layout: Where they lie.
    """

    def __init__(self, layout: ArenaLayout, memory: mmap.mmap, base: int) -> None:
        self.layout = layout
        self._bytes = np.frombuffer(memory, dtype=np.uint8)[base : base + layout.size_bytes]

    def close(self) -> None:
        """Lets go of the memory; no tensor can be read any more."""
        del self._bytes

    def writable(self, op: int, output: int, version: int) -> np.ndarray:
        """Returns the bytes of a version, uint8[bytes]."""
        start = self.layout.offset(op, output, version)
        return self._bytes[start : start + self.layout.graph.ops[op].outputs[output]]

    def readable(self, op: int, output: int, version: int) -> np.ndarray:
        """Returns the bytes of a version, uint8[bytes], refusing writes."""
        view = self.writable(op, output, version)
        view.flags.writeable = False
        return view

    def mark_unwritten(self) -> None:
        """Fills everything with `UNWRITTEN`, so that a read before the first write stands out."""
        self._bytes[:] = UNWRITTEN


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
