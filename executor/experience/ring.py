"""A bounded ring of batches in shared memory: one producer process, one consumer process.

A slot is a header of eight words and a batch. The producer fills the batch and the header and then
stores the batch's number, counted from 1 over the ring's life, into the commit word. A slot is used
again only after the consumer has stored that it is done with it: that is the back-pressure. All
that a producer must know lies in the ring, so one that was killed is replaced by another one, which
goes on after the last committed record; a batch that was not committed does not exist. Where it
goes on is read from the slot that was committed last, so there are at least two slots: one may be
written while the other one tells. Stores become visible in program order (see `executor.channels`).
"""

import mmap
from dataclasses import dataclass

import numpy as np

from doppler.core.errors import ConfigError
from executor.channels import check_memory_order
from executor.experience.packages import BatchLayout

WORD_BYTES = 8
HEADER_WORDS = 8
RING_HEADER_BYTES = 128
COMMIT, FIRST, COUNT, VERSION, PRODUCER = range(5)
TAKEN, APPENDS = 0, 8
"""Words of the ring's header, a line each: batches that the consumer is done with; signs of life of
the producer, one per piece of records that it added."""


@dataclass(frozen=True)
class RingLayout:
    """A ring of `num_slots` batches.

    Attributes:
        batch: Layout of each batch.
        num_slots: Batches that fit, two or more.
    """

    batch: BatchLayout
    num_slots: int = 4

    def __post_init__(self) -> None:
        if self.num_slots < 2:
            raise ConfigError(
                f"a ring has at least two slots, so that one can be written while the other one "
                f"tells a new producer where to go on, and it has {self.num_slots}"
            )

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot."""
        return HEADER_WORDS * WORD_BYTES + self.batch.size_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of shared memory, from a multiple of 64."""
        return RING_HEADER_BYTES + self.num_slots * self.slot_bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """Committed records, in place in the ring.

    Attributes:
        producer: Id of the GMI that made them.
        first: Number of the first record among that GMI's records.
        count: Records.
        version: Version of the weights that made the oldest of them.
        arrays: An array [count, *shape] per package, in the layout's order.
    """

    producer: int
    first: int
    count: int
    version: int
    arrays: tuple[np.ndarray, ...]


class _Ring:
    def __init__(self, layout: RingLayout, memory: mmap.mmap, base: int) -> None:
        check_memory_order()
        self.layout = layout
        self._words = memoryview(memory).cast("q")
        raw = np.frombuffer(memory, dtype=np.uint8)
        self._first_word = base // WORD_BYTES
        starts = [
            base + RING_HEADER_BYTES + slot * layout.slot_bytes for slot in range(layout.num_slots)
        ]
        self._headers = [start // WORD_BYTES for start in starts]
        self._arrays = [layout.batch.views(raw, s + HEADER_WORDS * WORD_BYTES) for s in starts]

    @property
    def taken(self) -> int:
        """Batches that the consumer is done with."""
        return int(self._words[self._first_word + TAKEN])

    @property
    def appends(self) -> int:
        """Signs of life of the producer so far."""
        return int(self._words[self._first_word + APPENDS])

    def close(self) -> None:
        """Lets go of the shared memory."""
        self._words.release()
        self._arrays = []


class BatchWriter(_Ring):
    """The producer's end.

    Attributes:
        written: Batches committed so far, by this process or one before it.
        next_record: Number that follows the last committed record.
    """

    def __init__(self, layout: RingLayout, memory: mmap.mmap, base: int) -> None:
        super().__init__(layout, memory, base)
        commits = [int(self._words[header + COMMIT]) for header in self._headers]
        self.written = max(commits)
        self.next_record = 0
        if self.written:
            last = self._headers[commits.index(self.written)]
            self.next_record = int(self._words[last + FIRST] + self._words[last + COUNT])
        self._room_until = 0

    @property
    def has_room(self) -> bool:
        """True if a batch can be written now."""
        if self.written < self._room_until:
            return True
        self._room_until = self.taken + self.layout.num_slots
        return self.written < self._room_until

    @property
    def num_waiting(self) -> int:
        """Committed batches that the consumer is not done with."""
        return self.written - self.taken

    def slot(self) -> tuple[np.ndarray, ...]:
        """Returns the arrays of the next batch; write them only if there is room."""
        return self._arrays[self.written % self.layout.num_slots]

    def note_append(self) -> None:
        """Says that records were added to the slot, which need not be full."""
        self._words[self._first_word + APPENDS] += 1

    def commit(self, producer: int, first: int, count: int, version: int) -> None:
        """Makes the batch in `slot` visible, in one store."""
        words, header = self._words, self._headers[self.written % self.layout.num_slots]
        words[header + FIRST] = first
        words[header + COUNT] = count
        words[header + VERSION] = version
        words[header + PRODUCER] = producer
        self.written += 1
        words[header + COMMIT] = self.written
        self.next_record = first + count


class BatchReader(_Ring):
    """The consumer's end; a new process goes on where the last one released."""

    def __init__(self, layout: RingLayout, memory: mmap.mmap, base: int) -> None:
        super().__init__(layout, memory, base)
        self._next = self.taken

    @property
    def has_next(self) -> bool:
        """True if a committed batch is there."""
        header = self._headers[self._next % self.layout.num_slots]
        return bool(self._words[header + COMMIT] == self._next + 1)

    def peek(self) -> Batch:
        """Returns the oldest committed batch, to be read until `release`; look at `has_next`."""
        slot = self._next % self.layout.num_slots
        words, header = self._words, self._headers[slot]
        count = int(words[header + COUNT])
        return Batch(
            producer=int(words[header + PRODUCER]),
            first=int(words[header + FIRST]),
            count=count,
            version=int(words[header + VERSION]),
            arrays=tuple(array[:count] for array in self._arrays[slot]),
        )

    def release(self) -> None:
        """Gives the slot of the batch back to the producer."""
        self._next += 1
        self._words[self._first_word + TAKEN] = self._next
