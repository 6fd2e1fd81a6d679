"""Calls of a library that are polled: sums, deadlines, and members that die or do not come.

gloo stands for NCCL: its groups have the same work handles, on host memory.
"""

import multiprocessing
import os
import re
import signal
import threading
from dataclasses import replace

import pytest
import torch.distributed  # members are forked, and each would load it again

from doppler.core.errors import ExecutionError, WorkerHungError
from executor.collectives.peers import Peers, WaitOptions
from executor.collectives.polled import PolledGroup
from tests.executor.collectives.processes import run_forked
from tests.executor.collectives.stand_ins import GLOO
from tests.executor.collectives.stand_ins import Place as HostPlace

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch without gloo"),
]
DEADLINE_NS = 1_000_000_000
QUICK = WaitOptions(yield_ns=100_000, deadline_ns=DEADLINE_NS, join_deadline_ns=5 * DEADLINE_NS)


class Place(HostPlace):
    """Where some members meet."""

    def __init__(self, count):
        super().__init__(count)
        self.seen = multiprocessing.get_context("fork").Event()
        """Set when the member that looks on has seen what it should."""

    def peers(self, member):
        peers = Peers(self.memory, 0, self.names, member, QUICK)
        peers.join()
        return peers

    def opened(self, peers, member, deadline_ns=5 * DEADLINE_NS):
        """Returns a group in its first call."""
        group = PolledGroup(GLOO, peers)
        store = torch.distributed.FileStore(self.store[0], -1)
        peers.enter(1)
        group.open(store, member, len(self.names), deadline_ns)
        peers.leave(1)
        return group


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_polled_call_gives_the_sum(count):
    place = Place(count)

    def work(member):
        peers = place.peers(member)
        group = place.opened(peers, member)
        sums = []
        for call in range(2, 12):
            values = torch.full((100,), float(call * (member + 1)))
            peers.enter(call)
            group.all_reduce(values)
            peers.leave(call)
            sums.append(values.unique().tolist())
        group.abort()
        return sums

    results = run_forked(count, work)
    place.close()
    total = count * (count + 1) // 2
    assert results == [[[float(call * total)] for call in range(2, 12)]] * count


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("dies", "WorkerDiedError: .*'gmi1'.* and 'gmi0' was waiting for gloo"),
        ("stays", "WorkerHungError: .*'gmi1'.* and 'gmi0' was waiting for gloo"),
        ("stops within the call", "WorkerHungError: .*'gmi1'.* and 'gmi0' was waiting for gloo"),
    ],
)
def test_who_fails_is_named_and_the_group_is_aborted(how, error):
    place = Place(2)

    def work(member):
        peers = place.peers(member)
        group = place.opened(peers, member)
        if member == 1:
            if how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "stops within the call":
                peers.enter(2)
            place.seen.wait(30)
            return None
        peers.enter(2)
        try:
            group.all_reduce(torch.ones(100))
        finally:
            assert group._group is None
            place.seen.set()
        return "both came"

    first, second = run_forked(2, work)
    place.close()
    assert second is None
    assert re.search(error, first), first


def test_nobody_is_blamed_if_all_wait():
    """For a GPU that does not end, say."""
    place = Place(3)

    def work(member):
        peers = place.peers(member)
        peers.enter(1)
        peers.wait_for(lambda: False, "adding rows")

    for member, result in enumerate(run_forked(3, work)):
        text = (
            f"ExecutionError: 'gmi{member}' was adding rows, and it failed: it was not done within"
        )
        assert result.startswith(text), result
    place.close()


def test_connecting_has_a_deadline_of_its_own():
    """gloo itself would wait for half an hour."""
    place = Place(2)

    def work(member):
        peers = place.peers(member)
        if member == 1:
            place.seen.wait(30)
            return None
        try:
            return place.opened(peers, member, DEADLINE_NS)
        finally:
            place.seen.set()

    first, _ = run_forked(2, work)
    place.close()
    assert re.search("WorkerHungError: .*'gmi1'.* was connecting by gloo", first), first


OUT_OF_ORDER = r"'gmi0' was .* gloo, and it failed: the library is out of order"


class Work:
    """A work handle that never ends, or ends in an error."""

    def __init__(self, is_done):
        self.is_done = is_done

    def is_completed(self):
        return self.is_done

    def wait(self):
        raise RuntimeError("the library is out of order")


class Group:
    """A group whose calls return one handle; an abort waits until it may go on."""

    def __init__(self, work):
        self.work, self.aborted, self.may_abort = work, threading.Event(), threading.Event()
        self.may_abort.set()

    def allreduce(self, tensors):
        return self.work

    def abort(self):
        assert self.may_abort.wait(30)
        self.aborted.set()


@pytest.fixture
def alone():
    """Returns a group whose only member is in its first call."""
    place = Place(1)
    peers = place.peers(0)
    peers.enter(1)

    def polled(group):
        made = PolledGroup(replace(GLOO, open_group=lambda store, rank, size: group), peers)
        made._group = group
        return made

    yield polled
    peers.close()
    place.close()


def test_what_the_library_raises_comes_out_and_aborts(alone):
    group = Group(Work(is_done=True))
    with pytest.raises(ExecutionError, match=OUT_OF_ORDER):
        alone(group).all_reduce(None)
    assert group.aborted.is_set()
    group = Group(Work(is_done=True))
    with pytest.raises(ExecutionError, match=OUT_OF_ORDER):
        alone(group).open(None, 0, 1, DEADLINE_NS)
    assert group.aborted.is_set()


def test_an_abort_that_hangs_is_left_behind(alone, monkeypatch):
    monkeypatch.setattr("executor.collectives.polled.ABORT_S", 0.01)
    group = Group(Work(is_done=False))
    group.may_abort.clear()
    with pytest.raises(ExecutionError, match=r"it was not done within 1 s"):
        alone(group).all_reduce(None)
    assert not group.aborted.is_set()
    group.may_abort.set()
    assert group.aborted.wait(10)


def test_a_wait_for_work_on_a_device_has_a_deadline():
    place = Place(2)

    def work(member):
        peers = place.peers(member)
        if member == 1:
            place.seen.wait(30)
            return None
        peers.enter(1)
        peers.wait_for(lambda: True, "looking")
        with pytest.raises(WorkerHungError, match=r"'gmi1'.*'gmi0' was adding rows"):
            peers.wait_for(lambda: False, "adding rows")
        place.seen.set()
        return "named"

    assert run_forked(2, work)[0] == "named"
    place.close()
