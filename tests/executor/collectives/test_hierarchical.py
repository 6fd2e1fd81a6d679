"""Local reduce and leader ring: its steps with rows in host memory and gloo between the leaders."""

import multiprocessing
import os
import re
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from doppler.core.errors import ExecutionError
from executor.collectives.hierarchical import HierarchicalAllReduce, groups_by_parent
from executor.collectives.kernels import AllReduce
from executor.collectives.peers import WaitOptions
from executor.collectives.polled import host_fence
from executor.collectives.process_group import Meeting
from executor.collectives.rows import cuda_ipc_rows
from tests.executor.collectives.processes import run_forked
from tests.executor.collectives.stand_ins import GLOO, Place

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch without gloo"),
]
QUICK = WaitOptions(yield_ns=100_000, deadline_ns=1_000_000_000, join_deadline_ns=5_000_000_000)
LENGTH = 1000


def end_of(place, parents, member, open_rows=None):
    """Returns a member's end; rows of a processor begin at its first member."""
    if open_rows is None:
        # Members of one processor need not be neighbours: rows lie where their group's do.
        order = [m for group in groups_by_parent(parents) for m in group]
        first = order.index(parents.index(parents[member]))
        open_rows = place.rows(first)
    meeting = Meeting(
        memory=place.memory, member=member, names=place.names, store=place.store, options=QUICK
    )
    return HierarchicalAllReduce(parents, LENGTH, "float32", open_rows, host_fence, GLOO, meeting)


def part(member, call):
    return np.random.default_rng([member, call]).normal(size=LENGTH).astype(np.float32)


def test_members_are_grouped_by_what_they_are_cut_from():
    assert groups_by_parent(["b", "a", "b", "c"]) == ((0, 2), (1,), (3,))


@pytest.mark.parametrize(
    "parents",
    [
        ["gpu0"],
        ["gpu0", "gpu1"],
        ["gpu0", "gpu0", "gpu0"],
        ["gpu0", "gpu0", "gpu1", "gpu1"],
        ["gpu0", "gpu1", "gpu0"],
        ["gpu0", "gpu1", "gpu2", "gpu2", "gpu2"],
    ],
    ids=lambda parents: ",".join(parent[-1] for parent in parents),
)
def test_every_member_gets_the_same_sum(parents):
    place = Place(len(parents), LENGTH)

    def work(member):
        end = end_of(place, parents, member)
        assert isinstance(end, AllReduce)
        end.join()
        sums = []
        for call in range(20):
            values = torch.from_numpy(part(member, call))
            end.all_reduce(values)
            sums.append(values.numpy())
        end.close()
        return sums

    results = run_forked(len(parents), work)
    place.close()
    for call in range(20):
        expected = sum(part(member, call).astype(np.float64) for member in range(len(parents)))
        for sums in results:
            assert sums[call].tobytes() == results[0][call].tobytes()
            np.testing.assert_allclose(sums[call], expected, rtol=1e-5, atol=1e-5)


def test_the_rows_of_one_processor_are_added_in_the_order_of_its_members():
    parents = ["gpu0"] * 3
    place = Place(3, LENGTH)

    def work(member):
        end = end_of(place, parents, member)
        end.join()
        values = torch.from_numpy(part(member, 0))
        end.all_reduce(values)
        return values.numpy()

    expected = part(0, 0) + part(1, 0) + part(2, 0)
    for values in run_forked(3, work):
        np.testing.assert_array_equal(values, expected)
    place.close()


@pytest.mark.parametrize("failing", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("how", "error"),
    [("dies", "WorkerDiedError: member 'gmi{}'"), ("stays", "WorkerHungError: member 'gmi{}'")],
)
def test_who_fails_is_named_by_the_members_of_all_processors(how, error, failing):
    """Whether it is a leader or not, and on whose processor it is."""
    parents = ["gpu0", "gpu0", "gpu1", "gpu1"]
    place = Place(4, LENGTH)
    seen = multiprocessing.get_context("fork").Semaphore(0)

    def work(member):
        end = end_of(place, parents, member)
        end.join()
        values = torch.ones(LENGTH)
        end.all_reduce(values)
        if member == failing:
            if how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            for _ in range(3):
                assert seen.acquire(timeout=30)
            return None
        try:
            end.all_reduce(values)
        finally:
            seen.release()
        return "all came"

    results = run_forked(4, work)
    place.close()
    for member, result in enumerate(results):
        if member == failing:
            assert result is None
        else:
            assert result.startswith(error.format(failing)), result


def test_who_dies_while_the_leaders_meet_is_named():
    parents = ["gpu0", "gpu0", "gpu1"]
    place = Place(3, LENGTH)

    def work(member):
        def die(store, rank, size):
            os.kill(os.getpid(), signal.SIGKILL)

        end = end_of(place, parents, member)
        if member == 2:
            end._library = replace(GLOO, open_group=die)
        end.join()

    results = run_forked(3, work)
    place.close()
    assert results[2] is None
    for result in results[:2]:
        assert re.match("WorkerDiedError: member 'gmi2' .* has died, and 'gmi[01]' was", result)


def test_another_tensor_is_refused():
    place = Place(1, LENGTH)
    end = end_of(place, ["gpu0"], 0)
    end.join()
    with pytest.raises(ExecutionError, match=r"1000 elements of torch.float32.*shape \(5,\)"):
        end.all_reduce(torch.zeros(5))
    with pytest.raises(ExecutionError, match=r"float32.*of torch.float64"):
        end.all_reduce(torch.zeros(LENGTH, dtype=torch.float64))
    end.close()
    place.close()


def test_members_of_one_process_hand_each_other_their_rows():
    """As green contexts do; a process cannot map its own memory."""
    place = Place(2)
    sums = {}

    def work(member):
        open_rows = cuda_ipc_rows(LENGTH, "float32", "cpu")
        end = end_of(place, ["gpu0", "gpu0"], member, open_rows)
        end.join()
        for call in range(5):
            values = torch.from_numpy(part(member, call))
            end.all_reduce(values)
            sums[member, call] = values.numpy()
        end.close()

    threads = [threading.Thread(target=work, args=(member,)) for member in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    place.close()
    for call in range(5):
        for member in range(2):
            np.testing.assert_array_equal(sums[member, call], part(0, call) + part(1, call))
