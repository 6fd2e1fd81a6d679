"""What a run needs and what there is: numbers by hand, a sentence for each that does not fit."""

import os
import resource

import pytest
from core_clusters import core_cluster, problem_of
from toy_job import toy_graph

from doppler.core.cluster import Cluster, Device
from doppler.core.errors import CapacityError
from executor.host import available_bytes
from executor.job_spec import JobSpec
from executor.launch.gpus import GpuInventory, read_gpus
from executor.launch.seats import Seating, plan_seats
from executor.preflight import WORKER_BYTES, Need, check_needs, job_needs, needs_of
from executor.runtime import CoreExecutor
from executor.shared_layout import SharedLayout
from tests.executor.fake_nvml import FakeNvml

GIB = 1 << 30
INVENTORY = read_gpus(FakeNvml(count=1))


def by_name(needs):
    return {need.name: need for need in needs}


def test_numbers_of_a_job():
    problem = problem_of(toy_graph(), num_devices=3)
    needs = by_name(job_needs(problem, Seating(problem.cluster), "/dev/shm"))
    shared = SharedLayout(graph=problem.graph, cluster=problem.cluster).size_bytes
    state = sum(group.state_bytes for group in problem.graph.groups)
    assert needs["shared memory"].needed == shared
    assert needs["host memory"].needed == shared + state + 3 * WORKER_BYTES
    assert needs["cores"].needed == 3
    assert needs["file descriptors"].needed == 3 * 4 + 16
    assert "device memory" not in needs
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft - 64 < needs["file descriptors"].found < soft


def test_devices_of_one_gpu_share_its_free_memory():
    devices = tuple(
        Device(name=f"g{i}", kind="green_context", parent="gpu0", share=48 / 132, memory_bytes=size)
        for i, size in enumerate((100 * GIB, 41 * GIB))
    )
    cluster = Cluster(name="c", devices=devices)
    seats = plan_seats(cluster, INVENTORY, {})
    needs = needs_of(cluster, seats, INVENTORY, "/dev/shm", 4096, "the arena")
    memory = by_name(needs)["device memory"]
    assert (memory.needed, memory.found) == (141 * GIB, 140 * GIB)
    assert by_name(needs)["cores"].needed == 1  # green contexts share a process,
    assert by_name(needs)["file descriptors"].needed == 2 * 4 + 16  # and each has its socket
    assert by_name(needs)["host memory"].needed == 4096 + WORKER_BYTES
    text = rf"the cut of 'gpu0' into 2 .* needs {141 * GIB} bytes of device memory, and 'gpu0' has"
    with pytest.raises(CapacityError, match=text):
        check_needs(needs)


def test_what_there_is_comes_from_the_host(tmp_path, monkeypatch):
    files = {
        "proc/cpuinfo": "model name : x\n",
        "proc/meminfo": f"MemTotal: {8 * GIB // 1024} kB\nMemAvailable: {5 * GIB // 1024} kB\n",
        "proc/self/cgroup": "0::/\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    cluster = core_cluster(4)
    seats = plan_seats(cluster, GpuInventory(), {})
    arguments = (cluster, seats, GpuInventory())
    monkeypatch.setattr("executor.preflight.free_bytes", lambda folder: 123)
    needs = by_name(needs_of(*arguments, str(tmp_path), 1, "the arena", root=tmp_path))
    assert needs["host memory"].found == 5 * GIB
    assert needs["shared memory"].found == 123
    assert needs["cores"].found == len(os.sched_getaffinity(0))
    assert not needs["cores"].is_hard
    assert all(need.is_hard for need in needs.values() if need.name != "cores")
    missing = needs_of(*arguments, str(tmp_path / "none"), 1, "the arena", root=tmp_path)
    assert "shared memory" not in by_name(missing)  # allocating it says what is wrong


def gpu_device(name, kind, parent, gib, units=132):
    return Device(name=name, kind=kind, parent=parent, share=units / 132, memory_bytes=gib * GIB)


def test_every_gpu_has_its_own_memory_and_an_instance_is_chosen_by_it():
    two = read_gpus(FakeNvml(count=2))
    devices = (gpu_device("a", "cuda", "gpu0", 100), gpu_device("b", "mps", "gpu1", 30, 66))
    cluster = Cluster(name="c", devices=devices)
    needs = needs_of(cluster, plan_seats(cluster, two, {}), two, "/dev/shm", 1, "the arena")
    assert [need.needed for need in needs if need.name == "device memory"] == [100 * GIB, 30 * GIB]
    sliced = read_gpus(FakeNvml(count=1, mig=1, instances={0: ("1g.18gb", 16, 18 << 10)}))
    cluster = Cluster(name="c", devices=(gpu_device("m", "mig", "gpu0", 18, 16),))
    seats = plan_seats(cluster, sliced, {})
    needs = needs_of(cluster, seats, sliced, "/dev/shm", 1, "the arena")
    assert "device memory" not in by_name(needs)


def need(name, needed, found, is_hard=True):
    return Need(
        name=name,
        purpose="a run",
        place="this host",
        unit="bytes",
        needed=needed,
        found=found,
        is_hard=is_hard,
    )


def test_every_lack_is_told_and_a_soft_one_stops_nothing():
    check_needs([need("a", 5, 5), need("cores", 6, 2, is_hard=False)])
    with pytest.raises(CapacityError) as caught:
        check_needs([need("a", 6, 5), need("b", 1, 2), need("c", 9, 8)])
    assert str(caught.value) == (
        "a run needs 6 bytes of a, and this host has 5 bytes free; "
        "a run needs 9 bytes of c, and this host has 8 bytes free"
    )
    assert need("b", 1, 2).text == "a run needs 1 bytes of b, and this host has 2 bytes free"


def test_a_run_without_descriptors_is_refused_before_anything_starts():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    problem = problem_of(toy_graph())
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
        with pytest.raises(
            CapacityError, match=r"on 2 device.* needs 24 .*\(ulimit -n\) has [12]\d "
        ):
            CoreExecutor(JobSpec(path="toy_job:ToyJob"), problem)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("cgroup", "folder", "files", "expected"),
    [
        ("0::/a\n", "a", {"memory.max": "max", "memory.current": "7"}, 6 * GIB),
        ("0::/a\n", "a", {"memory.max": str(4 * GIB), "memory.current": str(GIB)}, 3 * GIB),
        (
            "0::/a\n",
            "a",
            {
                "memory.max": str(4 * GIB),
                "memory.current": str(3 * GIB),
                "memory.stat": f"anon 5\ninactive_file {GIB}\n",
            },
            2 * GIB,
        ),
        (
            "9:memory:/\n",
            "memory",
            {"memory.limit_in_bytes": str(2 * GIB), "memory.usage_in_bytes": str(GIB)},
            GIB,
        ),
    ],
)
def test_memory_that_is_left(tmp_path, cgroup, folder, files, expected):
    files = {f"sys/fs/cgroup/{folder}/{name}": text for name, text in files.items()}
    files["proc/meminfo"] = f"MemTotal: 1 kB\nMemAvailable: {6 * GIB // 1024} kB\n"
    files["proc/self/cgroup"] = cgroup
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert available_bytes(tmp_path) == expected


def test_core_groups_need_no_gpu():
    cluster = core_cluster()
    seats = plan_seats(cluster, GpuInventory(), {})
    assert "device memory" not in by_name(
        needs_of(cluster, seats, GpuInventory(), "/dev/shm", 1, "the arena")
    )
