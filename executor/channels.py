"""Rings: how a worker tells another one that a tensor is there or that a credit is returned.

One ring per ordered pair of devices, in shared memory, with one writer and one reader. A record
is four 64-bit words: a commit word, kind and output, op, iteration. The writer fills the record and
then stores the record's number (counted from 1 over the ring's whole life) into the commit word
with one aligned 64-bit store; the reader takes the record when the commit word holds the number
that it expects next. On x86-64 stores become visible in program order and loads are not reordered
with loads, so a reader that sees the number sees the record, and with it the tensor that was
written before. Machines that promise less are refused by `check_memory_order`.

A ring never overflows: a record is overwritten only after the reader has stored its count of taken
records; what does not fit waits in the writer's own queue. By the credit rule at most `window`
records per tensor and per consumer are under way, and `ring_records` gives a ring that many.
"""

import mmap
import platform
import struct
from collections import deque

from doppler.core.errors import ExecutionError
from doppler.core.graph import DataflowGraph

TENSOR, CREDIT = 0, 1
WORD_BYTES = 8
RECORD_WORDS = 4
HEADER_WORDS = 16  # two cache lines: only the taken count is used, alone on its line
MAX_RECORDS = 1 << 16
OUTPUT_SHIFT = 8  # kind in the low 8 bits, output above

_PAYLOAD = struct.Struct("=qqq")
_ORDERED_MACHINES = ("x86_64", "AMD64")

Record = tuple[int, int, int, int]  # kind, op, output, iteration


def check_memory_order() -> None:
    """Checks that this machine orders stores as the rings need.

    Raises:
        ExecutionError: Names the machine.
    """
    if platform.machine() not in _ORDERED_MACHINES:
        raise ExecutionError(
            f"rings in shared memory need the store order of x86-64, and this machine is "
            f"{platform.machine()!r}"
        )


def ring_records(graph: DataflowGraph) -> int:
    """Returns the records of a ring: a power of two that holds all that credits allow.

    Every output may be on its way to one destination in `window` versions, and every op may have
    as many credits under way; one more of each for the last round.
    """
    num_outputs = sum(len(op.outputs) for op in graph.ops)
    needed = (graph.window + 1) * (num_outputs + graph.num_ops)
    return min(MAX_RECORDS, 1 << max(6, (needed - 1).bit_length()))


def ring_bytes(num_records: int) -> int:
    """Returns the shared memory that a ring takes."""
    return WORD_BYTES * (HEADER_WORDS + RECORD_WORDS * num_records)


class RingWriter:
    """The sending end of a ring.

    Attributes:
        waiting: Records that did not fit yet, oldest first.
    """

    def __init__(self, memory: mmap.mmap, base: int, num_records: int) -> None:
        self._words = memoryview(memory).cast("q")
        self._memory = memory
        self._base = base + WORD_BYTES * HEADER_WORDS
        self._taken_word = base // WORD_BYTES
        self._mask = num_records - 1
        self._num_records = num_records
        self._written = 0
        self._room_until = num_records
        self.waiting: deque[Record] = deque()

    def send(self, kind: int, op: int, output: int, iteration: int) -> None:
        """Publishes a record, after those that wait."""
        if self.waiting or not self._write(kind, op, output, iteration):
            self.waiting.append((kind, op, output, iteration))

    def flush(self) -> None:
        """Publishes waiting records as far as there is room."""
        while self.waiting and self._write(*self.waiting[0]):
            self.waiting.popleft()

    def _write(self, kind: int, op: int, output: int, iteration: int) -> bool:
        number = self._written
        if number >= self._room_until:
            self._room_until = self._words[self._taken_word] + self._num_records
            if number >= self._room_until:
                return False
        position = self._base + (number & self._mask) * (RECORD_WORDS * WORD_BYTES)
        _PAYLOAD.pack_into(
            self._memory, position + WORD_BYTES, kind | output << OUTPUT_SHIFT, op, iteration
        )
        self._words[position // WORD_BYTES] = number + 1  # the commit
        self._written = number + 1
        return True


class RingReader:
    """The receiving end of a ring."""

    def __init__(self, memory: mmap.mmap, base: int, num_records: int) -> None:
        self._words = memoryview(memory).cast("q")
        self._memory = memory
        self._base = base + WORD_BYTES * HEADER_WORDS
        self._taken_word = base // WORD_BYTES
        self._mask = num_records - 1
        self._taken = 0
        self._next_word = self._base // WORD_BYTES

    @property
    def has_next(self) -> bool:
        """True if a record can be taken."""
        return self._words[self._next_word] == self._taken + 1

    def take(self) -> list[Record]:
        """Returns all records that have arrived, in the order of sending."""
        records: list[Record] = []
        taken = self._taken
        while self._words[self._next_word] == taken + 1:
            head, op, iteration = _PAYLOAD.unpack_from(
                self._memory, (self._next_word + 1) * WORD_BYTES
            )
            records.append((head & 0xFF, op, head >> OUTPUT_SHIFT, iteration))
            taken += 1
            self._next_word = self._base // WORD_BYTES + (taken & self._mask) * RECORD_WORDS
        if records:
            self._taken = taken
            self._words[self._taken_word] = taken
        return records


def is_ring_empty(words: memoryview, base: int, num_records: int) -> bool:
    """True if the reader has taken every committed record; for a third process that looks on."""
    taken = words[base // WORD_BYTES]
    first = base // WORD_BYTES + HEADER_WORDS
    return bool(words[first + (taken & (num_records - 1)) * RECORD_WORDS] != taken + 1)
