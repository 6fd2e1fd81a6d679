"""All-reduce in shared memory: sums, equal on all members, whatever the schedule and the timing."""

import os
import signal
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler.core.collective import AllReduceSchedule, Step, StepKind
from doppler.core.errors import ExecutionError
from doppler.graphs.collectives import compose
from executor.collectives.peers import WaitOptions
from executor.collectives.shared import AllReduceLayout, SharedAllReduce
from executor.shared_memory import allocate, map_all
from tests.executor.collectives.processes import run_forked

NAMES = ["direct", "ring", "tree", "through_host", "local_leader", "multi_ring", "hybrid(1)"]
QUICK = WaitOptions(yield_ns=100_000, deadline_ns=400_000_000, join_deadline_ns=400_000_000)


def memory_for(layout):
    fd = allocate("/dev/shm", layout.size_bytes, "a test")
    memory = map_all(fd)
    os.close(fd)
    return memory


def groups(n, m):
    return [list(range(g * m, (g + 1) * m)) for g in range(n)]


def parts(seed, member, call, length, dtype):
    rng = np.random.default_rng([seed, member, call])
    return rng.normal(size=length).astype(dtype)


def end_of(layout, memory, member, options=None):
    names = [f"gmi{m}" for m in range(layout.schedule.num_members)]
    return SharedAllReduce(layout, memory, 0, member, names, options)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 3),
    m=st.integers(1, 2),
    name=st.sampled_from(NAMES),
    length=st.integers(0, 70),
    chunks=st.none() | st.integers(1, 7),
    dtype=st.sampled_from(["float32", "float64"]),
    in_place=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_every_call_gives_all_members_the_same_sum(
    n, m, name, length, chunks, dtype, in_place, seed
):
    layout = AllReduceLayout(
        schedule=compose(name, groups(n, m), chunks), num_elements=length, dtype=dtype
    )
    memory = memory_for(layout)
    calls = 4

    def work(member):
        end = end_of(layout, memory, member)
        end.join()
        rng = np.random.default_rng([seed, member])
        sums = []
        for call in range(calls):
            values = end.part if in_place else np.empty(length, dtype)
            values[:] = parts(seed, member, call, length, dtype)
            if rng.random() < 0.3:
                time.sleep(rng.random() * 0.001)
            end.all_reduce(values)
            sums.append(values.copy())
        return sums

    results = run_forked(n * m, work)
    for call in range(calls):
        expected = sum(parts(seed, p, call, length, np.float64) for p in range(n * m))
        for sums in results:
            assert sums[call].tobytes() == results[0][call].tobytes()
            np.testing.assert_allclose(sums[call], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["direct", "ring", "multi_ring", "local_leader"])
def test_slow_copies_are_waited_for(name, monkeypatch):
    """In every call another member dawdles before each copy, in and out."""
    layout = AllReduceLayout(schedule=compose(name, groups(2, 2)), num_elements=64)
    memory = memory_for(layout)

    def work(member):
        dawdles = []

        def slow_copy(out, values):
            if dawdles:
                time.sleep(0.0005)
            out[...] = values

        monkeypatch.setattr("executor.collectives.shared.np.copyto", slow_copy)
        end = end_of(layout, memory, member)
        end.join()
        values = np.empty(64, np.float32)
        wrong = 0
        for call in range(40):
            values[:] = call * 10 + member
            dawdles[:] = [call] if member == call % 4 else []
            end.all_reduce(values)
            wrong += int((values != 40 * call + 6).any())
        return wrong

    assert run_forked(4, work) == [0, 0, 0, 0]


def failing_group(fail):
    layout = AllReduceLayout(schedule=compose("direct", groups(3, 1)), num_elements=30)
    memory = memory_for(layout)

    def work(member):
        end = end_of(layout, memory, member, QUICK)
        end.join()
        values = np.ones(30, np.float32)
        end.all_reduce(values)
        if member == 1:
            fail()
        end.all_reduce(values)

    return run_forked(3, work)


def test_a_dead_member_is_named_by_all_others():
    results = failing_group(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert results[1] is None
    for member in (0, 2):
        assert results[member].startswith("WorkerDiedError: member 'gmi1' of a collective")
        assert f"'gmi{member}' was waiting" in results[member]


def test_a_late_member_is_named_and_finds_the_group_broken():
    results = failing_group(lambda: time.sleep(1.0))
    for member in (0, 2):
        assert results[member].startswith("WorkerHungError: member 'gmi1' of a collective")
        assert "within 0.4 s" in results[member]


def test_who_does_not_come_is_named():
    layout = AllReduceLayout(schedule=compose("direct", groups(3, 1)), num_elements=3)
    memory = memory_for(layout)
    results = run_forked(2, lambda member: end_of(layout, memory, member, QUICK).join())
    assert any("'gmi2' did not come" in result for result in results)
    assert all("WorkerHungError" in result and "'gmi2'" in result for result in results)


def test_wrong_arrays_names_and_schedules_are_refused():
    layout = AllReduceLayout(schedule=compose("direct", groups(2, 1)), num_elements=8)
    memory = memory_for(layout)
    end = end_of(layout, memory, 0)
    with pytest.raises(ExecutionError, match="over 8 elements of float32"):
        end.all_reduce(np.zeros(8))
    with pytest.raises(ExecutionError, match=r"shape \(7,\)"):
        end.all_reduce(np.zeros(7, np.float32))
    with pytest.raises(ExecutionError, match="one name per member"):
        SharedAllReduce(layout, memory, 0, 0, ["a"])
    both = tuple(Step(StepKind.reduce, member, (0, 1)) for member in range(2))
    exchange = AllReduceSchedule(
        name="exchange", num_members=2, num_chunks=1, steps=both, results=((2,), (3,))
    )
    with pytest.raises(ExecutionError, match="member 1 reads tensor 0 of member 0 otherwise"):
        end_of(AllReduceLayout(schedule=exchange, num_elements=8), memory, 0)


def test_members_of_one_process_alone():
    layout = AllReduceLayout(schedule=compose("ring", groups(1, 1)), num_elements=5)
    end = end_of(layout, memory_for(layout), 0)
    end.join()
    values = np.arange(5, dtype=np.float32)
    end.all_reduce(values)
    assert values.tolist() == [0, 1, 2, 3, 4]
    end.close()
