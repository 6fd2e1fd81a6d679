"""Rings lose nothing, keep order and never overwrite; also between two real processes."""

import mmap
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_job import toy_graph

from doppler.core.errors import ExecutionError
from executor import channels
from executor.channels import (
    CREDIT,
    TENSOR,
    RingReader,
    RingWriter,
    check_memory_order,
    is_ring_empty,
    ring_bytes,
    ring_records,
)
from executor.shared_memory import allocate, map_all

pytestmark = pytest.mark.timeout(60)

NUM_RECORDS = 4
BASE = 64


def make_ring():
    memory = mmap.mmap(-1, BASE + ring_bytes(NUM_RECORDS))
    reader = RingReader(memory, BASE, NUM_RECORDS)
    return RingWriter(memory, BASE, NUM_RECORDS), reader, memoryview(memory).cast("q")


@given(st.lists(st.one_of(st.integers(1, 7), st.just("take"), st.just("flush")), max_size=60))
def test_any_interleaving_keeps_every_record_in_order(steps):
    writer, reader, words = make_ring()
    sent, taken = [], []
    for step in steps:
        match step:
            case "take":
                taken += reader.take()
            case "flush":
                writer.flush()
            case count:
                for _ in range(count):
                    number = len(sent)
                    record = (number % 2, number, 3 * number, 2**40 + number)
                    sent.append(record)
                    writer.send(*record)
        assert taken == sent[: len(taken)]
        is_empty = len(sent) - len(writer.waiting) == len(taken)
        assert is_ring_empty(words, BASE, NUM_RECORDS) == is_empty
        assert reader.has_next == (not is_empty)
    while len(taken) < len(sent):
        writer.flush()
        taken += reader.take()
    assert taken == sent
    assert not writer.waiting


def test_full_ring_holds_back_and_goes_on():
    writer, reader, _ = make_ring()
    for iteration in range(NUM_RECORDS + 2):
        writer.send(TENSOR, 5, 1, iteration)
    assert len(writer.waiting) == 2
    assert reader.take() == [(TENSOR, 5, 1, i) for i in range(NUM_RECORDS)]
    writer.send(CREDIT, 6, 0, 9)  # does not overtake the two that wait
    writer.flush()
    assert [record[3] for record in reader.take()] == [4, 5, 9]


def test_size_follows_from_the_credits():
    graph = toy_graph()  # 8 ops, 8 outputs, window 3: 4 x 16 = 64 records
    assert sum(len(op.outputs) for op in graph.ops) == 8
    assert ring_records(graph) == 64
    assert ring_records(toy_graph(window=4)) == 128


def test_weakly_ordered_machine_is_refused(monkeypatch):
    check_memory_order()
    monkeypatch.setattr(channels.platform, "machine", lambda: "aarch64")
    with pytest.raises(ExecutionError, match="'aarch64'"):
        check_memory_order()


READER = """
import sys
from executor.channels import RingReader
from executor.shared_memory import map_all
sys.stdout.write("ready\\n")
sys.stdout.flush()
reader, expected = RingReader(map_all(int(sys.argv[1])), 64, 4), 0
while expected < 20000:
    for record in reader.take():
        assert record == (expected % 2, expected, expected % 7, 3 * expected), record
        expected += 1
"""


def test_two_processes_pass_twenty_thousand_records():
    fd = allocate("/dev/shm", BASE + ring_bytes(NUM_RECORDS), "a ring")
    process = subprocess.Popen(
        [sys.executable, "-c", READER, str(fd)], pass_fds=(fd,), stdout=subprocess.PIPE
    )
    process.stdout.readline()
    memory = map_all(fd)
    writer = RingWriter(memory, BASE, NUM_RECORDS)
    for number in range(20000):
        writer.send(number % 2, number, number % 7, 3 * number)
        if len(writer.waiting) > 100:
            while writer.waiting and process.poll() is None:
                writer.flush()
    while writer.waiting and process.poll() is None:
        writer.flush()
    assert process.wait(30) == 0
    process.stdout.close()
    os.close(fd)
