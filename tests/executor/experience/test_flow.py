"""Rings, packer, migrator, batcher: nothing lost, doubled or torn, bounded, in order."""

import contextlib
import mmap
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.support.channel_churn import Churn
from doppler.core.errors import ConfigError, ExecutionError, WorkerHungError
from executor.experience.flow import Batcher, Migrator, Packer, WhenFull
from executor.experience.packages import BatchLayout, Package, group_packages
from executor.experience.ring import BatchReader, BatchWriter, RingLayout

PACKAGES = (Package("x", "int64", (2,)), Package("flag", "uint8"))


def ring_of(batch=3, num_slots=2):
    return RingLayout(BatchLayout(group_packages(PACKAGES), batch), num_slots)


def records(first, count, life=0):
    numbers = np.arange(first, first + count)
    return {
        "x": np.stack([numbers, np.full(count, life)], axis=1),
        "flag": (numbers % 200).astype(np.uint8),
    }


def packer_for(ring, memory, consumers=1, **options):
    writers = [BatchWriter(ring, memory, c * ring.size_bytes) for c in range(consumers)]
    return Packer(7, Migrator(writers), **options)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 8)),
        st.tuples(st.just("flush"), st.just(0)),
        st.tuples(st.just("kill producer"), st.just(0)),
        st.tuples(st.just("restart consumer"), st.integers(0, 1)),
        st.tuples(st.just("take"), st.integers(0, 1)),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=150)
@given(actions=ACTIONS, batch=st.integers(1, 4), num_slots=st.integers(2, 3))
def test_committed_records_come_once_in_order_and_whole(actions, batch, num_slots):
    ring = ring_of(batch, num_slots)
    memory = mmap.mmap(-1, 2 * ring.size_bytes)
    packer = packer_for(ring, memory, 2, when_full=WhenFull.drop_new)
    readers = [BatchReader(ring, memory, c * ring.size_bytes) for c in range(2)]
    life, seen = 0, []

    def take(index):
        if not readers[index].has_next:
            return
        found = readers[index].peek()
        assert found.producer == 7
        numbers = found.arrays[0][:, 0].tolist()
        assert numbers == list(range(found.first, found.first + found.count))
        assert set(found.arrays[0][:, 1]) == {found.version}  # one life
        assert found.arrays[1].tolist() == [n % 200 for n in numbers]
        seen.extend(numbers)
        readers[index].release()

    for action, value in actions:
        if action == "append":
            packer.append(records(packer.next_record, value, life), version=life)
        elif action == "flush":
            packer.flush()
        elif action == "kill producer":
            life += 1
            packer = packer_for(ring, memory, 2, when_full=WhenFull.drop_new)
        elif action == "restart consumer":
            readers[value] = BatchReader(ring, memory, value * ring.size_bytes)
        else:
            take(value)
        for reader in readers:
            waiting = BatchWriter(ring, memory, readers.index(reader) * ring.size_bytes).num_waiting
            assert 0 <= waiting <= num_slots
    packer.flush()
    for index in (0, 1):
        while readers[index].has_next:
            take(index)
    assert sorted(seen) == list(range(packer.next_record))


def test_full_rings_drop_or_block_with_a_deadline():
    ring = ring_of()
    memory = mmap.mmap(-1, ring.size_bytes)
    packer = packer_for(ring, memory, when_full=WhenFull.drop_new)
    packer.append(records(0, 10), version=1)
    assert (packer.next_record, packer.num_dropped) == (6, 4)
    blocked = packer_for(ring, memory, deadline_ns=1_000_000)
    with pytest.raises(WorkerHungError, match="all 1 rings of producer 7 stay full"):
        blocked.append(records(6, 1), version=1)
    reader = BatchReader(ring, memory, 0)
    reader.peek()
    reader.release()
    blocked.append(records(6, 1), version=1)
    assert blocked.next_record == 7


def test_batches_go_to_consumers_in_turns_past_the_full_ones():
    ring = ring_of(batch=1, num_slots=2)
    memory = mmap.mmap(-1, 3 * ring.size_bytes)
    packer = packer_for(ring, memory, 3)
    packer.append(records(0, 4), version=0)
    readers = [BatchReader(ring, memory, c * ring.size_bytes) for c in range(3)]
    assert [reader.peek().first for reader in readers] == [0, 1, 2]
    readers[2].release()
    packer.append(records(4, 3), version=0)  # consumer 0 is full: 1, 2, 2
    assert readers[2].peek().first == 5
    readers[2].release()
    assert readers[2].peek().first == 6


def test_training_batches_cross_batches_and_count_staleness():
    ring = ring_of(batch=4, num_slots=3)
    memory = mmap.mmap(-1, 2 * ring.size_bytes)
    packers = [
        Packer(p, Migrator([BatchWriter(ring, memory, p * ring.size_bytes)])) for p in range(2)
    ]
    for producer, packer in enumerate(packers):
        packer.append(records(100 * producer, 8), version=producer)
    batcher = Batcher([BatchReader(ring, memory, p * ring.size_bytes) for p in range(2)])
    out = (np.zeros((6, 2), np.int64), np.zeros(6, np.uint8))
    numbers = []
    for _ in range(2):
        batcher.collect(out, version=3)
        numbers += out[0][:, 0].tolist()
    assert numbers == [0, 1, 2, 3, 100, 101, 102, 103, 4, 5, 6, 7]
    assert batcher.staleness == {3: 8, 2: 4}
    assert batcher.num_records == 12
    with pytest.raises(WorkerHungError, match=r"record within 0\.001 s, and 4 of 6 came"):
        batcher.collect(out, version=3, deadline_ns=1_000_000)
    with pytest.raises(ExecutionError, match="one array per package"):
        batcher.collect(out[:1], version=3)
    with pytest.raises(ConfigError, match=r"at least two slots, .* and it has 1"):
        RingLayout(ring.batch, 1)


def test_a_batch_has_the_version_of_its_oldest_record():
    ring = ring_of(batch=4)
    memory = mmap.mmap(-1, ring.size_bytes)
    packer = packer_for(ring, memory)
    packer.append(records(0, 2), version=5)
    packer.append(records(2, 3), version=6)
    packer.flush()
    reader = BatchReader(ring, memory, 0)
    assert reader.peek().version == 5
    reader.release()
    assert reader.peek().version == 6


class DyingWords:
    """The words of a ring, whose writer is killed before one of its stores."""

    def __init__(self, words, stores):
        self._words = words
        self._stores = stores

    def __getitem__(self, index):
        return self._words[index]

    def __setitem__(self, index, value):
        if self._stores == 0:
            raise ProcessLookupError
        self._stores -= 1
        self._words[index] = value


@pytest.mark.parametrize("stores", range(6))
def test_a_producer_killed_between_two_stores_of_a_commit_is_replaced_without_a_gap(stores):
    ring = ring_of(num_slots=2)
    memory = mmap.mmap(-1, ring.size_bytes)
    packer_for(ring, memory).append(records(0, 6), version=0)
    reader = BatchReader(ring, memory, 0)
    reader.release()
    reader.release()
    dying = BatchWriter(ring, memory, 0)
    dying._words = DyingWords(dying._words, stores)
    is_committed = stores == 5
    with pytest.raises(ProcessLookupError) if not is_committed else contextlib.nullcontext():
        dying.commit(producer=7, first=6, count=3, version=0)
    assert reader.has_next == is_committed
    assert BatchWriter(ring, memory, 0).next_record == (9 if is_committed else 6)


def late(ring, memory, pauses_s, count):
    """Starts a producer that appends `count` records after each pause."""

    def produce():
        packer = packer_for(ring, memory)
        for pause_s in pauses_s:
            time.sleep(pause_s)
            packer.append(records(packer.next_record, count), version=0)
        packer.flush()

    thread = threading.Thread(target=produce)
    thread.start()
    return thread


@pytest.mark.parametrize(("batch", "count"), [(1, 1), (8, 1)])
def test_slow_records_are_waited_for_as_long_as_they_come(batch, count):
    ring = ring_of(batch, num_slots=9)
    memory = mmap.mmap(-1, ring.size_bytes)
    producer = late(ring, memory, [0.1] * 8, count)
    progress = []
    batcher = Batcher([BatchReader(ring, memory, 0)], lambda: progress.append(1))
    out = (np.zeros((8, 2), np.int64), np.zeros(8, np.uint8))
    batcher.collect(out, version=0, deadline_ns=400_000_000)
    producer.join()
    assert out[0][:, 0].tolist() == list(range(8))
    assert len(progress) >= 3
    with pytest.raises(WorkerHungError, match=r"record within 0\.05 s, and 0 of 8 came"):
        batcher.collect(out, version=0, deadline_ns=50_000_000)


def test_killed_producers_lose_double_and_tear_nothing():
    result = Churn(producers=2, consumers=2, records=60_000, kill_every_s=0.01).run()
    assert result.restarts > 0
    assert (result.torn, result.doubled, result.lost) == (0, 0, 0)
    assert result.records == 120_000
