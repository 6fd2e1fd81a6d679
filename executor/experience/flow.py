"""Packer, migrator and batcher: the flow of records from one producer to one consumer and back."""

import enum
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from doppler.core.errors import ExecutionError, WorkerHungError
from executor.experience.packages import Dispenser
from executor.experience.ring import Batch, BatchReader, BatchWriter
from executor.workers.polling import Poll

SPIN_NS, NAP_NS = 20_000, 50_000
DEADLINE_NS = 60_000_000_000


def _no_progress() -> None:
    """Tells nobody."""


class WhenFull(enum.Enum):
    """What a producer does when no consumer has room."""

    block = "block"
    drop_new = "drop_new"


class Migrator:
    """Routes batches: in turns to the consumers that have room.

    Attributes:
        writers: The producer's end of the ring to each consumer.
    """

    def __init__(self, writers: Sequence[BatchWriter]) -> None:
        self.writers = tuple(writers)
        self._last = -1

    @property
    def next_record(self) -> int:
        """Number that follows the last record committed to any consumer."""
        return max(writer.next_record for writer in self.writers)

    def route(self) -> BatchWriter | None:
        """Returns the ring for the next batch, None if all are full."""
        count = len(self.writers)
        for step in range(1, count + 1):
            index = (self._last + step) % count
            if self.writers[index].has_room:
                self._last = index
                return self.writers[index]
        return None


class Packer:
    """Lays packages into channels, and hands over full batches.

    Args:
        producer: Id of this GMI.
        migrator: Its ends of the rings.
        when_full: What it does when no consumer has room.
        deadline_ns: How long it waits for room.
        on_progress: Called with every batch that it begins.

    Attributes:
        producer: Id of this GMI.
        num_dropped: Records that were dropped because all rings were full.
    """

    def __init__(
        self,
        producer: int,
        migrator: Migrator,
        when_full: WhenFull = WhenFull.block,
        deadline_ns: int = DEADLINE_NS,
        on_progress: Callable[[], None] = _no_progress,
    ) -> None:
        self.producer = producer
        self.num_dropped = 0
        self._migrator = migrator
        layout = migrator.writers[0].layout.batch
        self._batch = layout.batch
        self._dispenser = Dispenser(layout)
        self._when_full = when_full
        self._deadline_ns = deadline_ns
        self._on_progress = on_progress
        self._writer: BatchWriter | None = None
        self._slot: tuple[np.ndarray, ...] = ()
        self._filled = 0
        self._first = migrator.next_record
        self._version = 0

    @property
    def next_record(self) -> int:
        """Number of the next record; after a restart, the first one that is not committed."""
        return self._first + self._filled

    def append(self, experience: Mapping[str, np.ndarray], version: int) -> None:
        """Adds records, [n, *shape] per field, made with the weights of a version.

        Raises:
            ExecutionError: If a field does not fit.
            WorkerHungError: If no consumer takes anything before the deadline.
        """
        arrays, count = self._dispenser.cut(experience)
        done = 0
        while done < count:
            if self._writer is None and not self._open():
                self.num_dropped += count - done
                return
            if self._filled == 0:
                self._version = version
            start = self._filled
            end = min(self._batch, start + count - done)
            if end - start == count:
                for view, array in zip(self._slot, arrays, strict=True):
                    view[start:end] = array
            else:
                for view, array in zip(self._slot, arrays, strict=True):
                    view[start:end] = array[done : done + end - start]
            self._filled = end
            done += end - start
            assert self._writer is not None
            self._writer.note_append()
            if end == self._batch:
                self.flush()

    def flush(self) -> None:
        """Hands over what there is, even if the batch is not full."""
        if self._writer is None or not self._filled:
            return
        self._writer.commit(self.producer, self._first, self._filled, self._version)
        self._first += self._filled
        self._filled = 0
        self._writer = None

    def _open(self) -> bool:
        writer = self._migrator.route()
        if writer is None and self._when_full is WhenFull.drop_new:
            return False
        until_ns = time.monotonic_ns() + self._deadline_ns
        poll = Poll(SPIN_NS, NAP_NS, lambda: self._check(until_ns))
        while writer is None:
            poll.pause()
            writer = self._migrator.route()
        self._writer, self._slot = writer, writer.slot()
        self._on_progress()
        return True

    def _check(self, until_ns: int) -> None:
        if time.monotonic_ns() > until_ns:
            raise WorkerHungError(
                f"a consumer takes a batch within {self._deadline_ns / 1e9:g} s, and all "
                f"{len(self._migrator.writers)} rings of producer {self.producer} stay full"
            )


class Batcher:
    """Feeds a trainer from the rings of many producers.

    Args:
        readers: Its ends of the rings.
        on_progress: Called with every batch that is begun, and while records come.

    Attributes:
        num_records: Records given out so far.
        staleness: Per version lag (trainer's version minus the batch's), records given out by
            `collect`.
    """

    def __init__(
        self, readers: Sequence[BatchReader], on_progress: Callable[[], None] = _no_progress
    ) -> None:
        self._readers = tuple(readers)
        self._on_progress = on_progress
        self._turn = 0
        self._open: tuple[BatchReader, Batch, int] | None = None
        self.num_records = 0
        self.staleness: dict[int, int] = {}

    def next(self) -> tuple[BatchReader, Batch] | None:
        """Returns the next batch in place and its ring, to be released after use; None if none."""
        for _ in self._readers:
            reader = self._readers[self._turn]
            self._turn = (self._turn + 1) % len(self._readers)
            if reader.has_next:
                return reader, reader.peek()
        return None

    def collect(
        self, out: Sequence[np.ndarray], version: int, deadline_ns: int = DEADLINE_NS
    ) -> None:
        """Fills a training batch; producers take turns, a batch may feed two training batches.

        Args:
            out: An array [records, *shape] per package.
            version: Version of the trainer's weights, to account staleness.
            deadline_ns: How long to wait for the next record, handed over or still in a batch that
                is not full.

        Raises:
            ExecutionError: If `out` does not have one array per package.
            WorkerHungError: If no producer adds a record for so long.
        """
        wanted = len(out[0])
        if len(out) != len(self._readers[0].layout.batch.packages):
            raise ExecutionError(
                f"a training batch has one array per package "
                f"({len(self._readers[0].layout.batch.packages)}), and it has {len(out)}"
            )
        filled = 0
        appends, until_ns = self._appends(), time.monotonic_ns() + deadline_ns

        def check() -> None:
            nonlocal appends, until_ns
            now_ns, seen = time.monotonic_ns(), self._appends()
            if seen != appends:
                appends, until_ns = seen, now_ns + deadline_ns
                self._on_progress()
            elif now_ns > until_ns:
                raise WorkerHungError(
                    f"some producer adds a record within {deadline_ns / 1e9:g} s, and {filled} "
                    f"of {wanted} came"
                )

        poll = Poll(SPIN_NS, NAP_NS, check)
        while filled < wanted:
            if self._open is None:
                found = self.next()
                if found is None:
                    poll.pause()
                    continue
                poll.reset()
                self._open = (*found, 0)
                self._on_progress()
            reader, batch, start = self._open
            count = min(batch.count - start, wanted - filled)
            for array, source in zip(out, batch.arrays, strict=True):
                array[filled : filled + count] = source[start : start + count]
            lag = version - batch.version
            self.staleness[lag] = self.staleness.get(lag, 0) + count
            filled += count
            self._open = (reader, batch, start + count)
            if start + count == batch.count:
                self._open = None
                reader.release()
        self.num_records += wanted

    def _appends(self) -> int:
        """Signs of life of all producers so far."""
        return sum(reader.appends for reader in self._readers)
