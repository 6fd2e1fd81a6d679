"""Arena, board, control socket, deadlines and checkpoints, each by itself."""

import mmap
import os
import socket

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_job import toy_graph

from doppler.core.errors import FormatError
from doppler.core.graph import DataflowGraph, Op
from executor.arena import ALIGNMENT_BYTES, Arena, ArenaLayout
from executor.board import (
    NUM_LAST_SPANS,
    Activity,
    BoardReader,
    BoardWriter,
    LastSpan,
    board_bytes,
)
from executor.checkpoint import Checkpoint
from executor.control import ControlClosedError, ControlSocket
from executor.deadlines import DeadlinePolicy, Deadlines
from executor.initial import token_versions
from executor.launch.local import THREAD_VARIABLES, worker_environment
from executor.launch.seats import Seat
from executor.shared_memory import PAGE_BYTES, allocate, map_all


@given(
    st.lists(
        st.tuples(st.sampled_from(["input", "mix"]), st.lists(st.integers(0, 200), max_size=3)),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 4),
)
def test_no_two_versions_share_a_byte(rows, window):
    ops = tuple(
        Op(kind=kind, name=f"op{i}", outputs=tuple(sizes)) for i, (kind, sizes) in enumerate(rows)
    )
    layout = ArenaLayout(graph=DataflowGraph(name="g", ops=ops, window=window))
    owner: dict[int, tuple[int, int, int]] = {}
    for op, spec in enumerate(ops):
        for output, size in enumerate(spec.outputs):
            for version in range(layout.slots[op]):
                start = layout.offset(op, output, version)
                assert start % ALIGNMENT_BYTES == 0
                assert start + size <= layout.size_bytes
                for byte in range(start, start + size):
                    assert owner.setdefault(byte, (op, output, version)) == (op, output, version)
            # Versions a window apart share a slot; an input has one version for ever.
            assert layout.offset(op, output, 7) == layout.offset(op, output, 7 + window)
            if spec.is_input:
                assert layout.offset(op, output, 1) == layout.offset(op, output, 0)


def test_arena_views_are_the_same_memory_and_inputs_are_read_only():
    layout = ArenaLayout(graph=toy_graph())
    arena = Arena(layout, mmap.mmap(-1, 4096 + layout.size_bytes), 4096)
    arena.mark_unwritten()
    assert np.isnan(arena.readable(1, 0, 0).view(np.float64)).all()
    arena.writable(1, 0, 4)[:] = 7
    assert (arena.readable(1, 0, 1) == 7).all()  # window 3: 4 and 1 share a slot
    assert (arena.readable(1, 0, 2) == 0xFF).all()
    with pytest.raises(ValueError, match="read-only"):
        arena.readable(1, 0, 0)[:] = 1


def test_shared_memory_is_whole_pages_of_zeros():
    fd = allocate("/dev/shm", PAGE_BYTES + 1, "a test")
    assert os.fstat(fd).st_size == 2 * PAGE_BYTES
    assert os.fstat(fd).st_nlink == 0
    assert map_all(fd)[:] == bytes(2 * PAGE_BYTES)
    os.close(fd)


def test_board_shows_what_runs_and_what_ran():
    memory = mmap.mmap(-1, 64 + board_bytes(2))
    writer, reader = BoardWriter(memory, 64, 2), BoardReader(memory, 64, 2)
    assert reader.status().activities == ()
    assert reader.last_spans() == ()
    writer.begin(1, 4, 9, 100)
    assert reader.status().activities == (Activity(4, 9, 100),)
    writer.begin(0, 0, 8, 90)
    assert reader.status().activities == (Activity(0, 8, 90), Activity(4, 9, 100))
    writer.end(1, 4, 9, 100, 150)
    assert reader.status().activities == (Activity(0, 8, 90),)
    assert reader.last_spans() == (LastSpan(4, 9, 100, 150),)
    for iteration in range(20):
        writer.end(0, 0, iteration, iteration, iteration + 1)
    expected = range(20 - NUM_LAST_SPANS, 20)
    assert [span.iteration for span in reader.last_spans()] == list(expected)
    before = reader.status()
    writer.wait(progress=5)
    writer.wait(progress=5)
    after = reader.status()
    assert (after.waiting, after.progress, after.beat - before.beat) == (True, 5, 2)
    writer.go_on()
    assert not reader.status().waiting


def test_control_socket_carries_arrays_and_tells_when_the_other_end_is_gone():
    left, right = (ControlSocket(end) for end in socket.socketpair())
    left.send({"values": np.arange(5)})
    assert right.receive()["values"].tolist() == [0, 1, 2, 3, 4]
    left.close()
    with pytest.raises(ControlClosedError, match="end of file"):
        right.receive()
    with pytest.raises(ControlClosedError):
        right.send("anyone there?")
    right.close()


def test_control_socket_notices_half_a_message():
    end, other = socket.socketpair()
    end.sendall(b"\x10\0\0\0\0\0\0\0half")
    end.close()
    control = ControlSocket(other)
    with pytest.raises(ControlClosedError):
        control.receive()
    control.close()


def test_control_socket_gives_out_a_message_when_it_is_whole_and_not_before():
    end, other = socket.socketpair()
    sender, reader = ControlSocket(end), ControlSocket(other)
    sender.send("first")
    data = other.recv(1000)
    for index in range(len(data)):
        end.sendall(data[index : index + 1])
        part = reader.receive_part()
        assert part == ("first" if index == len(data) - 1 else None)
    assert reader.num_received == len(data)
    sender.send("second")
    assert reader.receive() == "second"
    sender.close()
    reader.close()


def test_deadline_is_twenty_times_the_99th_percentile_but_two_seconds_at_least():
    deadlines = Deadlines(DeadlinePolicy(known_p99_ns={"slow": 10**9}))
    assert deadlines.of("never seen") == 60 * 10**9
    assert deadlines.of("slow") == 20 * 10**9
    deadlines.learn({"quick": [1000] * 100, "step": [10**9 * i for i in range(101)]})
    assert deadlines.of("quick") == 2 * 10**9
    assert deadlines.of("step") == 20 * 99 * 10**9  # the 99th percentile of 0..100 s is 99 s


def test_worker_environment_has_threads_no_gpu_and_the_parents_path(tmp_path):
    environment = worker_environment({"A": "1", "OMP_NUM_THREADS": "64"}, 3, [str(tmp_path), "/no"])
    assert environment["A"] == "1"
    assert {environment[name] for name in THREAD_VARIABLES} == {"3"}
    assert Seat(devices=(0,)).environment(environment)["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["PYTHONPATH"] == str(tmp_path)


GRAPH = toy_graph()


def make_checkpoint(**changes):
    tokens = {
        (GRAPH.ops[op].name, output, version): np.full(64, version % 256, dtype=np.uint8)
        for (op, output), count in token_versions(GRAPH).items()
        for version in range(-count, 0)
    }
    values = {
        "graph_digest": GRAPH.digest,
        "iteration": 12,
        "groups": {"left": {"a/b": np.arange(3.0)}, "right": {"é": np.zeros(0)}},
        "tokens": tokens,
    }
    return Checkpoint(**{**values, **changes})


def test_checkpoint_survives_the_flat_form():
    arrays = make_checkpoint().to_arrays()
    assert "group/left/a%2Fb" in arrays
    back = Checkpoint.from_arrays(arrays)
    back.check(GRAPH)
    assert (back.graph_digest, back.iteration) == (GRAPH.digest, 12)
    assert back.groups["left"]["a/b"].tolist() == [0, 1, 2]
    assert back.tokens.keys() == make_checkpoint().tokens.keys()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"graph_digest": "0" * 32}, "was made for graph"),
        ({"iteration": -1}, "count from 0"),
        ({"groups": {"middle": {}}}, "'middle'"),
        ({"tokens": {}}, "every loop-carried tensor"),
        ({"tokens": {**make_checkpoint().tokens, ("join", 0, -1): np.zeros(3)}}, "has 64 bytes"),
    ],
)
def test_checkpoint_that_does_not_fit_is_refused(changes, message):
    with pytest.raises(FormatError, match=message):
        make_checkpoint(**changes).check(GRAPH)


def test_damaged_flat_form_is_refused():
    arrays = make_checkpoint().to_arrays()
    with pytest.raises(FormatError, match="holds 'weights'"):
        Checkpoint.from_arrays({**arrays, "weights": np.zeros(1)})
    with pytest.raises(FormatError, match="token/a/x/y"):
        Checkpoint.from_arrays({**arrays, "token/a/x/y": np.zeros(1)})
    del arrays["iteration"]
    with pytest.raises(FormatError, match="'iteration'"):
        Checkpoint.from_arrays(arrays)
