"""Which devices a kernel of all-reduces reaches: refused when it is declared, with what to take."""

import pytest

from doppler.core.cluster import Cluster, Device
from doppler.core.errors import ConfigError
from doppler.gmi import GMI, CollectiveKernel, GMIManager
from executor.collectives.members import check_members


def devices(kind, *parents):
    return [
        Device(name=f"{kind}{index}", kind=kind, parent=parent, share=0.5)
        for index, parent in enumerate(parents)
    ]


ALL_GPU_KERNELS = [kernel for kernel in CollectiveKernel if kernel.on_gpu]
K = CollectiveKernel


def test_two_kernels_are_for_arrays_in_host_memory():
    assert [kernel for kernel in K if not kernel.on_gpu] == [K.shared_memory, K.gloo]


@pytest.mark.parametrize(
    ("kernel", "kind", "parents"),
    [
        (K.shared_memory, "cpu", ["cpu", "cpu"]),
        (K.gloo, "mig", ["gpu0", "gpu0"]),
        (K.cuda_ipc, "mps", ["gpu0", "gpu0"]),
        (K.cuda_ipc, "green_context", ["gpu0", "gpu0"]),
        (K.cuda_ipc, "mig", ["gpu0"]),
        (K.nccl, "cuda", ["gpu0", "gpu1"]),
        (K.nccl, "mps", ["gpu0", "gpu0", "gpu1"]),
        (K.nccl, "green_context", ["gpu0", "gpu1"]),
        (K.symmetric_memory, "mps", ["gpu0", "gpu1", "gpu1"]),
        (K.hierarchical, "mps", ["gpu0", "gpu1", "gpu1"]),
        (K.hierarchical, "green_context", ["gpu0", "gpu0", "gpu1"]),
        (K.hierarchical, "mig", ["gpu0", "gpu1"]),
    ],
)
def test_members_that_a_kernel_reaches(kernel, kind, parents):
    check_members(kernel, devices(kind, *parents), "g")


@pytest.mark.parametrize(
    ("kernel", "kind", "parents", "text"),
    [
        *((kernel, "cpu", ["cpu"], "device 'cpu0' is of kind 'cpu'") for kernel in ALL_GPU_KERNELS),
        (
            K.cuda_ipc,
            "mps",
            ["gpu0", "gpu1", "gpu0"],
            "map the memory of one GPU, and they are cut from 'gpu0', 'gpu1': take kernel 'hier",
        ),
        (K.cuda_ipc, "mig", ["gpu0", "gpu0"], "MIG instances share none, and devices 'mig0', 'mig"),
        (K.hierarchical, "mig", ["gpu0", "gpu1", "gpu1"], "devices 'mig1', 'mig2' are of kind"),
        (K.symmetric_memory, "mig", ["gpu0", "gpu1"], "take kernel 'shared_memory'"),
        (
            K.symmetric_memory,
            "green_context",
            ["gpu0", "gpu0"],
            "a process for each member, and green contexts of one GPU share one",
        ),
        (K.nccl, "green_context", ["gpu0", "gpu1", "gpu1"], "take kernel 'cuda_ipc' or 'hier"),
    ],
)
def test_members_that_it_does_not_reach(kernel, kind, parents, text):
    with pytest.raises(ConfigError, match=r"collective 'g' \(kernel '\w+'\)") as caught:
        check_members(kernel, devices(kind, *parents), "g")
    assert text in str(caught.value)


class Idle(GMI):
    """A GMI that does nothing."""

    def run(self, num_episodes, num_steps):
        return None


def test_it_is_refused_when_it_is_declared():
    cluster = Cluster(name="two GPUs", devices=tuple(devices("mps", "gpu0", "gpu1")))
    manager = GMIManager(cluster=cluster)
    for device in range(2):
        manager.add_gmi(Idle, "learner", device)
    with pytest.raises(ConfigError, match="cut from 'gpu0', 'gpu1'"):
        manager.add_collective("g", (0, 1), 8, kernel=K.cuda_ipc)
    manager.add_collective("g", (0, 1), 8, kernel=K.hierarchical)
    assert "by hierarchical" in manager.describe()
