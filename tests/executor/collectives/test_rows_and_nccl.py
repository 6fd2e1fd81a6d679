"""All-reduce over rows, on host memory, and what NCCL is told before it starts."""

import os
import re
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from doppler.core.errors import ExecutionError
from executor.collectives.kernels import AllReduce
from executor.collectives.nccl import nccl_environment, prepare_nccl
from executor.collectives.peers import WaitOptions
from executor.collectives.polled import host_fence
from executor.collectives.process_group import Meeting
from executor.collectives.rows import RowsAllReduce
from tests.executor.collectives.processes import run_forked
from tests.executor.collectives.stand_ins import Place

pytestmark = pytest.mark.timeout(60)
QUICK = WaitOptions(yield_ns=100_000, deadline_ns=1_000_000_000, join_deadline_ns=5_000_000_000)
LENGTH = 1000


def end_of(place, member):
    """Returns a member's end; all rows lie in host memory."""
    meeting = Meeting(
        memory=place.memory, member=member, names=place.names, store=place.store, options=QUICK
    )
    return RowsAllReduce(place.rows(0), host_fence, meeting)


def part(member, call):
    return np.random.default_rng([member, call]).normal(size=LENGTH).astype(np.float32)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_rows_in_turns_give_every_member_the_same_bits(count):
    place = Place(count, LENGTH)

    def work(member):
        end = end_of(place, member)
        assert isinstance(end, AllReduce)
        end.join()
        sums = []
        for call in range(20):
            values = torch.from_numpy(part(member, call))
            end.all_reduce(values)
            sums.append(values.numpy())
        end.close()
        return sums

    results = run_forked(count, work)
    place.close()
    for call in range(20):
        expected = part(0, call)
        for member in range(1, count):
            expected = expected + part(member, call)
        for sums in results:
            np.testing.assert_array_equal(sums[call], expected)


def test_a_member_that_dies_is_named():
    place = Place(2, LENGTH)

    def work(member):
        end = end_of(place, member)
        end.join()
        values = torch.ones(LENGTH)
        end.all_reduce(values)
        if member == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        end.all_reduce(values)
        return "both came"

    first, second = run_forked(2, work)
    place.close()
    assert second is None
    assert re.search("WorkerDiedError: .*'gmi1'", first), first


def test_another_tensor_is_refused():
    place = Place(1, LENGTH)
    end = end_of(place, 0)
    end.join()
    with pytest.raises(ExecutionError, match=r"1000 elements of torch.float32.*shape \(5,\)"):
        end.all_reduce(torch.zeros(5))
    end.close()
    place.close()


@pytest.mark.parametrize(
    ("version", "shares", "expected"),
    [
        ((2, 30, 3), False, {}),
        ((2, 27, 5), False, {}),
        *(
            (
                version,
                True,
                {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "2"},
            )
            for version in ((2, 30, 3), (2, 30, 7))
        ),
    ],
)
def test_what_nccl_needs(version, shares, expected):
    handling = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "NCCL_RUNTIME_CONNECT": "0"}
    assert nccl_environment(version, shares) == {**handling, **expected}


@pytest.mark.parametrize(("chosen", "expected"), [(None, "2"), ("8", "8")])
def test_a_cap_that_the_user_has_set_is_kept(monkeypatch, chosen, expected):
    monkeypatch.setattr(
        "executor.collectives.nccl.load_module",
        lambda name: SimpleNamespace(version=lambda: (2, 30, 7)),
    )
    for name in (*nccl_environment((2, 30, 7), True), "NCCL_MAX_CTAS"):
        monkeypatch.setenv(name, "unset")
        monkeypatch.delenv(name)
    if chosen is not None:
        monkeypatch.setenv("NCCL_MAX_CTAS", chosen)
    prepare_nccl(shares_gpu=True)
    assert os.environ["NCCL_MAX_CTAS"] == expected
    assert os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"


@pytest.mark.parametrize("version", [(2, 4, 8), (2, 5, 6), (2, 28, 9), (2, 30, 2)])
def test_versions_that_refuse_two_members_on_one_gpu(version):
    text = ".".join(map(str, version))
    with pytest.raises(ExecutionError, match=rf"need NCCL 2\.30\.3, and this torch has {text}"):
        nccl_environment(version, True)
