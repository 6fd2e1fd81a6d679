"""Every kernel of all-reduces on hardware; where one is missing, with the reason of the probe."""

from dataclasses import replace

import pytest

from doppler.core.cluster import Cluster, Device
from doppler.gmi import GMI, GMIManager
from executor.collectives.available import probe_collectives
from executor.collectives.kernels import CollectiveKernel
from executor.collectives.trial import JOINED
from executor.collectives.verify import RunningTrial, gpu_trial, run_trial
from executor.launch.gpus import load_module
from executor.probe import BACKENDS, probe, verify_backends
from executor.workers.accelerator import CUDA_DEVICE
from executor.workers.share import MPS

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
K = CollectiveKernel
SIZES = [1, 1000, 51_200, 786_432]
"""Elements of float32: 4 bytes to the 3 MiB of the largest policy."""


@pytest.fixture(scope="module")
def found():
    """What this machine has, seen from inside workers; only looked at where there is a GPU."""
    result = probe()
    if not result.inventory.gpus:
        pytest.skip(f"all-reduces on GPUs: {result.inventory.reason}")
    return verify_backends(result)


@pytest.fixture(scope="module")
def findings(found):
    return {f.name: f for f in probe_collectives(found)}


def trial_of(found, findings, kernel, members, num_elements):
    """Returns a trial, or skips with the reason why there is none."""
    finding = findings[f"all-reduce by {kernel.value}"]
    if not finding.is_present:
        pytest.skip(finding.detail)
    has_mps = any(f.name == BACKENDS[MPS] and f.is_present for f in found.findings)
    plain = [gpu.name for gpu in found.inventory.gpus if not gpu.has_mig]
    if len(plain) < len(members):
        pytest.skip(f"needs {len(members)} GPUs without MIG, and here are {len(plain)}")
    if kernel is K.nccl and max(members) > 1 and "one member per GPU" in finding.detail:
        pytest.skip(finding.detail)
    places = dict(zip(plain, members, strict=False))
    return gpu_trial(kernel, found.inventory, places, has_mps, num_elements)


@pytest.mark.parametrize("num_elements", SIZES)
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("kernel", [K.cuda_ipc, K.symmetric_memory, K.nccl, K.hierarchical])
def test_members_of_one_gpu_add_up(found, findings, kernel, count, num_elements):
    trial = trial_of(found, findings, kernel, [count], num_elements)
    alone = ", and one process exchanges nothing" if count == 1 else ""
    text = f"3 sums of {num_elements} float32 over {count} are right{alone}"
    assert run_trial(trial) == {"text": text}


@pytest.mark.parametrize("num_elements", SIZES)
@pytest.mark.parametrize(
    ("kernel", "members"),
    [
        (K.nccl, [1, 1]),
        (K.symmetric_memory, [1, 1]),
        (K.hierarchical, [1, 1]),
        (K.hierarchical, [2, 1]),
        (K.hierarchical, [2, 2]),
    ],
)
def test_members_of_two_gpus_add_up(found, findings, kernel, members, num_elements):
    trial = trial_of(found, findings, kernel, members, num_elements)
    count = sum(members)
    alone = ", and one process exchanges nothing" if count == 1 else ""
    text = f"3 sums of {num_elements} float32 over {count} are right{alone}"
    assert run_trial(trial) == {"text": text}


@pytest.mark.parametrize(
    ("kernel", "members"),
    [
        (K.cuda_ipc, [2]),
        (K.symmetric_memory, [2]),
        (K.nccl, [2]),
        (K.nccl, [1, 1]),
        (K.hierarchical, [2]),
        (K.hierarchical, [2, 1]),
    ],
)
def test_a_dead_member_is_named(found, findings, kernel, members):
    trial = replace(trial_of(found, findings, kernel, members, 1000), num_calls=10**9)
    with RunningTrial(trial) as running:
        for process in running.processes:
            assert process.stdout.readline().strip() == JOINED
        running.processes[-1].kill()
        last = len(running.processes) - 1
        answers = [running._answer(member) for member in range(last)]
        for answer in answers:
            assert answer["blames"], answer
            assert f"member 'member {last} on" in answer["error"]
            assert "has died" in answer["error"]


class AddsUp(GMI):
    """A GMI that adds its id, plus one, to those of the others."""

    def run(self, num_episodes, num_steps):
        torch = load_module("torch")
        values = torch.full((1000,), float(self.gmi_id + 1), device=CUDA_DEVICE)
        self.all_reduce(values)
        return values.unique().tolist()


@pytest.mark.mps
@pytest.mark.parametrize("kernel", [K.cuda_ipc, K.symmetric_memory, K.hierarchical])
def test_gmis_that_are_mps_clients_add_up(found, findings, kernel):
    trial = trial_of(found, findings, kernel, [2], 1000)
    if trial.seats[0].mps is None:
        pytest.skip(next(f.detail for f in found.findings if f.name == BACKENDS[MPS]))
    gpu = found.inventory.find(trial.parents[0], "a test")
    devices = tuple(
        Device(
            name=f"client{index}",
            kind=MPS,
            parent=gpu.name,
            share=gpu.num_units // 4 * 2 / gpu.num_units,
            memory_bytes=gpu.memory_bytes // 2,
        )
        for index in range(2)
    )
    manager = GMIManager(cluster=Cluster(name="clients", devices=devices))
    for device in range(2):
        manager.add_gmi(AddsUp, "learner", device)
    manager.add_collective("gradient", (0, 1), 1000, kernel=kernel)
    assert manager.run(1, 1) == ([3.0], [3.0])
