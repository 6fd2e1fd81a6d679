"""Weights: the newest, whole, with versions that only grow."""

import mmap
import os
import signal
import time

import numpy as np
import pytest

from doppler.core.errors import ExecutionError
from executor.experience.weights import WeightPublisher, WeightReader, board_bytes
from tests.executor.collectives.processes import run_forked


def test_versions_and_a_restarted_trainer():
    memory = mmap.mmap(-1, board_bytes(100))
    out = np.full(100, 9, np.uint8)
    agent = WeightReader(memory, 0, 100)
    assert agent.read(out) == 0
    assert set(out) == {9}
    for value in range(1, 4):
        assert WeightPublisher(memory, 0, 100).publish(np.full(100, value, np.uint8)) == value
        assert agent.read(out) == value
        assert set(out) == {value}
    assert not hasattr(agent, "publish")


def test_weights_of_another_size_or_with_gaps_are_refused():
    board = WeightPublisher(mmap.mmap(-1, board_bytes(8)), 0, 8)
    assert board.publish(np.arange(2, dtype=np.float32).reshape(2, 1)) == 1
    pairs = np.zeros((2, 2), np.float32)
    odd = [
        (np.array([7], np.uint8), r"have 8 bytes, and the array has 1: uint8 of shape \(1,\)"),
        (np.zeros(16, np.uint8), "have 8 bytes, and the array has 16"),
        (pairs[:, 0], r"without gaps, and they got float32 of shape \(2,\)"),
        ([0.0], "numpy array .*object of type list"),
    ]
    for values, told in odd:
        for use in (board.publish, board.read):
            with pytest.raises(ExecutionError, match=told):
                use(values)
    out = np.zeros((), np.float64)
    assert board.read(out) == board.newest == 1
    assert out.tobytes() == np.arange(2, dtype=np.float32).tobytes()


def test_a_read_that_was_overtaken_is_repeated(monkeypatch):
    memory = mmap.mmap(-1, board_bytes(8))
    board = WeightPublisher(memory, 0, 8)
    board.publish(np.full(8, 1, np.uint8))
    copy, overtakings = np.copyto, [2, 2]

    def slow_copy(out, source):
        copy(out[:4], source[:4])
        monkeypatch.setattr("executor.experience.weights.np.copyto", copy)
        for _ in range(overtakings.pop() if overtakings else 0):
            board.publish(np.full(8, board.newest + 1, np.uint8))
        monkeypatch.setattr("executor.experience.weights.np.copyto", slow_copy)
        copy(out[4:], source[4:])

    monkeypatch.setattr("executor.experience.weights.np.copyto", slow_copy)
    out = np.zeros(8, np.uint8)
    assert board.read(out) == 5
    assert set(out) == {5}


def test_agents_never_see_torn_weights_even_of_a_killed_trainer():
    size = 200_000
    memory = mmap.mmap(-1, board_bytes(size))

    def work(member):
        board = WeightReader(memory, 0, size)
        if member == 0:
            board = WeightPublisher(memory, 0, size)
            until = time.monotonic() + 0.3
            while time.monotonic() < until:
                board.publish(np.full(size, (board.newest + 1) % 251, np.uint8))
            os.kill(os.getpid(), signal.SIGKILL)
        out = np.zeros(size, np.uint8)
        last, torn = 0, 0
        until = time.monotonic() + 0.4
        while time.monotonic() < until:
            version = board.read(out)
            torn += int((out != version % 251).any() or version < last)
            last = version
        return torn, last > 0

    _, *agents = run_forked(3, work)
    assert agents == [(0, True), (0, True)]
