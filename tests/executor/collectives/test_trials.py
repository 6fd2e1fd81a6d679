"""Trials of all-reduces: real processes on cores, and what is tried on which GPUs."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from doppler.core.errors import CapacityError, ExecutionError
from executor.collectives import verify
from executor.collectives.available import (
    absence_reasons,
    plan_trials,
    probe_collectives,
    tried,
)
from executor.collectives.kernels import CollectiveKernel
from executor.collectives.trial import JOINED, MemberSpec, _check_sum, part_of, read_spec
from executor.collectives.verify import RunningTrial, core_trial, gpu_trial, run_trial
from executor.launch.gpus import GpuInventory, host_gpus, read_gpus
from executor.probe import Finding, probe
from tests.executor.fake_nvml import FakeNvml

pytestmark = pytest.mark.timeout(120)
K = CollectiveKernel
ONE_GPU, TWO_GPUS = read_gpus(FakeNvml(count=1)), read_gpus(FakeNvml(count=2))
ALL_MIG = read_gpus(FakeNvml(count=1, mig=1, instances={0: ("1g.18gb", 16, 18 << 10)}))
CORES = sorted(os.sched_getaffinity(0))
FOREVER = 10**9


@pytest.mark.parametrize(
    ("kernel", "count"), [(K.shared_memory, 1), (K.shared_memory, 4), (K.gloo, 2)]
)
def test_members_in_processes_of_their_own_add_up(kernel, count):
    trial = replace(core_trial(kernel, CORES, count), num_elements=1000, num_calls=5)
    alone = ", and one process exchanges nothing" if count == 1 else ""
    assert run_trial(trial) == {"text": f"5 sums of 1000 float32 over {count} are right{alone}"}


def joined(running):
    """Waits until all members have met."""
    for process in running.processes:
        assert process.stdout.readline().strip() == JOINED


@pytest.mark.parametrize("kernel", [K.shared_memory, K.gloo])
def test_a_member_that_dies_is_named(kernel):
    trial = replace(core_trial(kernel, CORES, 3), num_calls=FOREVER)
    with RunningTrial(trial) as running:
        joined(running)
        running.processes[1].kill()
        assert running.result() == {"error": "member 1 on cpu ended with exit code -9"}


def test_a_member_that_is_stopped_is_named_and_the_trial_ends(monkeypatch):
    monkeypatch.setattr(verify, "MEMBER_S", 1.0)
    trial = replace(core_trial(K.shared_memory, CORES), num_calls=FOREVER)
    with RunningTrial(trial) as running:
        joined(running)
        stopped = running.processes[1]
        stopped.send_signal(signal.SIGSTOP)
        running.processes[0].wait(30)  # it has said that it waited in vain
        monkeypatch.setattr(running, "_until", 0.0)
        error = running.result()["error"]
    assert error == "member 1 on cpu has not ended within 90 s"
    assert stopped.returncode == -signal.SIGKILL


def test_a_worker_that_cannot_start_says_why(tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho starting >&2; echo the driver is too old >&2; exit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(verify.sys, "executable", str(program))
    assert run_trial(core_trial(K.shared_memory, CORES, 1)) == {
        "error": "member 0 on cpu ended with exit code 3, and the last it printed is: "
        "the driver is too old"
    }


def test_a_wrong_sum_is_told():
    right = part_of(0, 2, 10) + part_of(1, 2, 10) + part_of(2, 2, 10)
    _check_sum(right, 2, 3)
    right[4] += 1
    right[9] = np.nan
    with pytest.raises(ExecutionError, match=r"call 2 gave 37 at element 4, .* is 36 \(2 of 10"):
        _check_sum(right, 2, 3)


def test_a_spec_goes_through_json():
    trial = gpu_trial(K.cuda_ipc, ONE_GPU, {"gpu0": 2}, has_mps=True)
    spec = MemberSpec(
        kernel="nccl",
        member=1,
        parents=("gpu0", "gpu0"),
        num_elements=3,
        num_calls=4,
        deadline_s=0.5,
        share=trial.seats[1].shares[0],
    )
    assert read_spec(spec.to_json()) == spec
    assert read_spec(replace(spec, share=None).to_json()).share is None


def test_members_of_one_gpu_are_mps_clients_where_there_is_a_daemon():
    trial = gpu_trial(K.hierarchical, TWO_GPUS, {"gpu0": 4, "gpu1": 1}, has_mps=True)
    assert trial.place == "4 MPS clients on gpu0 and gpu1"
    assert trial.parents == ("gpu0",) * 4 + ("gpu1",)
    assert [seat.shares[0].units for seat in trial.seats] == [32] * 4 + [132]
    assert [seat.mps is not None for seat in trial.seats] == [True] * 4 + [False]
    assert len({seat.shares[0].device for seat in trial.seats}) == 5
    trial = gpu_trial(K.cuda_ipc, ONE_GPU, {"gpu0": 2}, has_mps=False)
    assert trial.place == "2 processes on gpu0"
    assert [seat.shares[0].units for seat in trial.seats] == [132, 132]
    assert all(seat.mps is None for seat in trial.seats)


NCCL = (2, 30, 7)


@pytest.mark.parametrize(
    ("kernel", "inventory", "has_mps", "nccl", "places", "note"),
    [
        (K.cuda_ipc, TWO_GPUS, False, NCCL, ["2 processes on gpu0"], ""),
        (K.cuda_ipc, ONE_GPU, True, None, ["2 MPS clients on gpu0"], ""),
        (K.symmetric_memory, ONE_GPU, False, NCCL, ["2 processes on gpu0"], ""),
        (
            K.symmetric_memory,
            TWO_GPUS,
            False,
            NCCL,
            ["2 processes on gpu0", "gpu0 and gpu1"],
            "",
        ),
        (K.nccl, ONE_GPU, True, NCCL, ["gpu0", "2 MPS clients on gpu0"], ""),
        (K.nccl, TWO_GPUS, True, NCCL, ["gpu0 and gpu1", "2 MPS clients on gpu0"], ""),
        (K.nccl, TWO_GPUS, False, NCCL, ["gpu0 and gpu1"], "the MPS daemon serves no clients"),
        (K.nccl, ONE_GPU, True, (2, 28, 9), ["gpu0"], "need NCCL 2.30.3, and this torch has 2.28"),
        (K.hierarchical, ONE_GPU, False, None, ["2 processes on gpu0"], ""),
        (K.hierarchical, TWO_GPUS, False, None, ["2 processes on gpu0"], "on one GPU only"),
        (
            K.hierarchical,
            TWO_GPUS,
            False,
            NCCL,
            ["2 processes on gpu0", "2 processes on gpu0 and gpu1"],
            "",
        ),
        (K.gloo, ONE_GPU, True, NCCL, ["cores 3, 3"], ""),
    ],
)
def test_what_is_tried_where(kernel, inventory, has_mps, nccl, places, note):
    trials, left_out = plan_trials(kernel, inventory, [3], has_mps, nccl)
    assert [trial.place for trial in trials] == places
    assert note in left_out
    assert bool(note) == bool(left_out)


@pytest.mark.parametrize(
    ("inventory", "options", "absent"),
    [
        (ONE_GPU, {}, {}),
        (ONE_GPU, {"nccl": None}, {K.nccl: "without NCCL"}),
        (ONE_GPU, {"symmetric": False}, {K.symmetric_memory: "has none"}),
        (ONE_GPU, {"gloo": False}, {K.gloo: "without gloo"}),
        (ONE_GPU, {"cuda": None}, {k: "torch is built without CUDA" for k in K if k.on_gpu}),
        (ALL_MIG, {}, {k: "every GPU is in MIG mode" for k in K if k.on_gpu}),
        (GpuInventory(reason="no driver"), {}, {k: "no driver" for k in K if k.on_gpu}),
    ],
)
def test_what_cannot_be_here_is_not_tried(inventory, options, absent):
    values = {"gloo": True, "nccl": NCCL, "cuda": "13.0", "symmetric": True, **options}
    reasons = absence_reasons(inventory, **values)
    assert list(reasons) == list(K)
    assert {kernel for kernel, reason in reasons.items() if reason} == set(absent)
    for kernel, text in absent.items():
        assert text in reasons[kernel]


def test_a_kernel_is_present_if_a_trial_of_it_gives_the_sums():
    trials, _ = plan_trials(K.symmetric_memory, TWO_GPUS, [0], False, NCCL)

    def attempt(trial):
        if trial.place == "gpu0 and gpu1":
            return {"error": "member 1 on gpu1: no peer access"}
        return {"text": "all right"}

    finding = tried(K.symmetric_memory, trials, "a note", attempt)
    assert finding.is_present
    assert finding.detail == (
        "tried between processes: 2 processes on gpu0: all right; "
        "not gpu0 and gpu1: member 1 on gpu1: no peer access; a note"
    )
    finding = tried(K.symmetric_memory, trials[1:], "", attempt)
    assert not finding.is_present
    assert finding.detail == "absent: gpu0 and gpu1: member 1 on gpu1: no peer access"

    def refuse(trial):
        raise CapacityError("no room")

    assert tried(K.gloo, trials[:1], "", refuse).detail == "absent: 2 processes on gpu0: no room"


def test_this_machine_tells_in_a_sentence_why_a_kernel_is_absent():
    asked = []

    def attempt(trial):
        asked.append(trial.kernel)
        return {"text": "all right"}

    found = probe()
    findings = {f.name: f for f in probe_collectives(found, attempt)}
    assert len(findings) == len(K)
    assert findings["all-reduce by shared_memory"].is_present
    if not found.inventory.gpus:
        assert K.cuda_ipc not in asked
        detail = findings["all-reduce by cuda_ipc"].detail
        assert detail == f"absent: {found.inventory.reason}"


@pytest.mark.parametrize("verified", [True, False])
def test_mps_counts_if_its_client_was_seen(monkeypatch, verified):
    """A daemon whose clients were not verified serves no members."""
    monkeypatch.setattr(
        "executor.collectives.available.absence_reasons",
        lambda *args, **options: {K.cuda_ipc: ""},
    )
    mps = Finding(name="MPS", is_present=verified, detail="")
    found = replace(probe(), findings=(mps,), inventory=ONE_GPU)
    (finding,) = probe_collectives(found, lambda trial: {"text": "all right"})
    assert ("MPS clients" in finding.detail) == verified


def test_a_member_without_a_gpu_says_so():
    """The members are started for real: here torch shows them no GPU."""
    if host_gpus().gpus:
        pytest.skip("this host has a GPU")
    result = run_trial(gpu_trial(K.cuda_ipc, ONE_GPU, {"gpu0": 2}, has_mps=False))
    assert result["error"].startswith(
        "member 0 on gpu0: device 'part 0 of gpu0' is cut from 'gpu0'"
    )
    assert "shows no GPU to its worker" in result["error"]
