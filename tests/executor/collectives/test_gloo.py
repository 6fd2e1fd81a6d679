"""All-reduce by gloo: the sums of shared memory to float tolerance, and failures that are named."""

import os
import re
import signal
import time

import numpy as np
import pytest
import torch.distributed  # members are forked, and each would load it again

from doppler.core.errors import ExecutionError
from doppler.graphs.collectives import direct
from executor.collectives.gloo import GlooAllReduce
from executor.collectives.peers import WaitOptions, peers_bytes
from executor.collectives.process_group import Meeting
from executor.collectives.shared import AllReduceLayout, SharedAllReduce
from executor.shared_memory import allocate, map_all
from tests.executor.collectives.processes import run_forked

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch without gloo"),
]
QUICK = WaitOptions(deadline_ns=1_000_000_000, join_deadline_ns=5_000_000_000)


class Place:
    """Shared memory and a store of a group."""

    def __init__(self, size):
        fd = allocate("/dev/shm", size, "a test")
        self.memory = map_all(fd)
        os.close(fd)
        self.store_fd = os.memfd_create("store")

    def end(self, count, member, elements, dtype="float32", options=None):
        names = [f"gmi{m}" for m in range(count)]
        store = (f"/proc/self/fd/{self.store_fd}", "gradient")
        options = options or WaitOptions()
        meeting = Meeting(
            memory=self.memory, member=member, names=names, store=store, options=options
        )
        return GlooAllReduce(elements, dtype, meeting)

    def close(self):
        os.close(self.store_fd)
        self.memory.close()


@pytest.mark.parametrize(
    ("count", "elements", "dtype"), [(2, 5000, "float32"), (3, 7, "float64"), (1, 4, "float32")]
)
def test_sums_are_those_of_shared_memory(count, elements, dtype):
    layout = AllReduceLayout(schedule=direct(count), num_elements=elements, dtype=dtype)
    base = peers_bytes(count)
    place = Place(base + layout.size_bytes)

    def work(member):
        names = [f"gmi{m}" for m in range(count)]
        gloo = place.end(count, member, elements, dtype)
        shared = SharedAllReduce(layout, place.memory, base, member, names)
        gloo.join()
        shared.join()
        rows = []
        for call in range(3):
            values = np.random.default_rng([member, call]).normal(size=elements).astype(dtype)
            ours = values.copy()
            gloo.all_reduce(values)
            shared.all_reduce(ours)
            rows.append((values, ours))
        return rows

    results = run_forked(count, work)
    place.close()
    for call in range(3):
        for rows in results:
            by_gloo, by_us = rows[call]
            np.testing.assert_allclose(by_gloo, by_us, rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(by_gloo, results[0][call][0])
    expected = sum(np.random.default_rng([m, 0]).normal(size=elements) for m in range(count))
    np.testing.assert_allclose(results[0][0][0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("how", "error"),
    [("dies", "WorkerDiedError: .*'gmi1'"), ("stays", "WorkerHungError: .*'gmi1'")],
)
def test_who_fails_is_named(how, error):
    place = Place(peers_bytes(2))

    def work(member):
        end = place.end(2, member, 1000, options=QUICK)
        end.join()
        values = np.ones(1000, np.float32)
        end.all_reduce(values)
        if member == 1:
            if how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(2.5)
            return None
        end.all_reduce(values)
        return "both came"

    first, second = run_forked(2, work)
    place.close()
    assert second is None
    assert re.search(error, first), first


def test_another_array_is_refused():
    place = Place(peers_bytes(1))

    def work(member):
        end = place.end(1, member, 4)
        end.join()
        with pytest.raises(ExecutionError, match="4 elements of float32, and the array has"):
            end.all_reduce(np.zeros(5, np.float32))
        end.close()
        return "refused"

    assert run_forked(1, work) == ["refused"]
    place.close()
