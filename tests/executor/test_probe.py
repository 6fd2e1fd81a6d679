"""The probe on made-up machines: control groups of both versions, drivers with and without GPUs."""

import os
from types import SimpleNamespace

import pytest

from doppler.core.layout import per_core_layout
from executor.host import cpu_times, foreign_cpu, read_host_cpu, waited_ns
from executor.launch.gpus import host_gpus, read_gpus
from executor.probe import Finding, ProbeResult, probe, probe_gpus, verify_backends
from tests.executor.fake_nvml import FakeNvml

GIB = 1 << 30


def make_root(tmp_path, cgroup, files):
    for name, text in {
        "proc/cpuinfo": "processor : 0\nmodel name\t: Test CPU 9\n",
        "proc/meminfo": f"MemTotal: {8 * GIB // 1024} kB\nMemFree: 1 kB\n",
        "proc/self/cgroup": cgroup,
        **{f"sys/fs/cgroup/{path}": text for path, text in files.items()},
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_machine_without_limits(tmp_path):
    cpu = read_host_cpu(make_root(tmp_path, "0::/\n", {"memory.max": "max\n"}))
    assert cpu.model == "Test CPU 9"
    assert cpu.memory_bytes == 8 * GIB
    assert cpu.limit_path is None
    assert cpu.quota_cores is None
    assert cpu.core_ids == tuple(sorted(os.sched_getaffinity(0)))


def test_a_thread_knows_how_long_it_was_kept_waiting_for_a_core(monkeypatch, tmp_path):
    assert 0 <= waited_ns() <= waited_ns()
    file = tmp_path / "schedstat"
    file.write_bytes(b"3309161 1200 7\n")
    opened = {"/proc/thread-self/schedstat": file}
    monkeypatch.setattr(
        "builtins.open", lambda path, *a, **k: opened[path].open(*a, **k), raising=True
    )
    assert waited_ns() == 1200
    opened["/proc/thread-self/schedstat"] = tmp_path / "absent"
    assert waited_ns() == 0


def test_cores_of_others_are_ticks_over_time(monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    assert foreign_cpu((1000, 0), (1150, 10**9)) == 1.5
    first, second = cpu_times(), cpu_times()
    assert second[1] > first[1]


def test_version_2_takes_the_tightest_limit_on_the_way_up(tmp_path):
    files = {
        "memory.max": "max",
        "a/memory.max": str(2 * GIB),
        "a/b/memory.max": str(4 * GIB),
        "a/cpu.max": "100000 100000",
        "a/b/cpu.max": "max 100000",
    }
    cpu = read_host_cpu(make_root(tmp_path, "0::/a/b\n", files))
    assert cpu.memory_bytes == 2 * GIB
    assert cpu.limit_path.endswith("a/memory.max")
    assert cpu.quota_cores == 1.0
    assert len(cpu.core_ids) == 1


def test_version_1_and_a_path_that_is_not_mounted(tmp_path):
    files = {
        "memory/memory.limit_in_bytes": str(3 * GIB),
        "cpu,cpuacct/cpu.cfs_quota_us": "-1",
        "cpu,cpuacct/cpu.cfs_period_us": "100000",
    }
    text = "9:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n"
    cpu = read_host_cpu(make_root(tmp_path, text, files))
    assert cpu.memory_bytes == 3 * GIB
    assert cpu.quota_cores is None


def test_memory_limit_above_the_installed_memory_is_none(tmp_path):
    files = {"memory/memory.limit_in_bytes": str(1 << 62)}
    cpu = read_host_cpu(make_root(tmp_path, "9:memory:/\n", files))
    assert cpu.memory_bytes == 8 * GIB
    assert cpu.limit_path is None


def test_this_machine_can_be_cut_into_cores():
    result = probe()
    cpu = result.hardware.processor_by_name["cpu"]
    cluster = per_core_layout(cpu).apply(result.hardware)
    assert [device.cores for device in cluster.devices] == [(core,) for core in cpu.core_ids]
    names = [finding.name for finding in result.findings]
    assert names == [
        *("CPU cores", "memory", "shared memory"),
        *("GPU", "MPS", "MIG", "green contexts", "static MPS partitions"),
    ]
    assert all(f.is_present or f.detail.count("absent: ") for f in result.findings)


def test_missing_shared_memory_is_told():
    findings = {f.name: f for f in probe(shm_dir="/no/such/mount").findings}
    assert not findings["shared memory"].is_present
    assert "/no/such/mount" in findings["shared memory"].detail


@pytest.mark.parametrize(
    ("nvml", "reason"),
    [
        (None, "nvidia-ml-py"),
        (FakeNvml(error=FakeNvml.NVMLError_LibraryNotFound()), "absent: no NVIDIA driver"),
        (FakeNvml(error=FakeNvml.NVMLError("Driver Not Loaded")), "Driver Not Loaded"),
        (FakeNvml(count=0), "shows no GPU"),
    ],
)
def test_absent_gpu_has_its_reason(nvml, reason):
    gpus, findings, inventory = probe_gpus(nvml)
    assert gpus == ()
    assert inventory.gpus == ()
    assert len(findings) == 5
    for finding in findings:
        assert not finding.is_present
        assert reason in finding.detail


def test_gpus_become_processors(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    nvml = FakeNvml(count=2, mig=0)
    gpus, findings, inventory = probe_gpus(nvml)
    assert [gpu.name for gpu in gpus] == ["gpu0", "gpu1"]
    assert gpus[0].num_units == 132
    assert gpus[0].memory_bytes == 141 * GIB
    assert gpus[0].model == "NVIDIA H200"
    assert [gpu.uuid for gpu in inventory.gpus] == [nvml.nvmlDeviceGetUUID(i) for i in (0, 1)]
    by_name = {finding.name: finding for finding in findings}
    assert by_name["GPU"].is_present
    assert "no nvidia-cuda-mps-control" in by_name["MPS"].detail
    assert by_name["static MPS partitions"].detail == by_name["MPS"].detail
    assert "switched off" in by_name["MIG"].detail
    assert not by_name["MIG"].is_present
    assert not nvml.is_open


def test_mig_instances_are_listed_as_found():
    nvml = FakeNvml(
        count=1, mig=1, instances={0: ("1g.18gb", 16, 16384), 3: ("3g.71gb", 60, 71424)}
    )
    _, findings, inventory = probe_gpus(nvml)
    assert findings[2].is_present
    assert "1g.18gb (16 SMs, 17179869184 bytes), 3g.71gb (60 SMs" in findings[2].detail
    assert [i.uuid for i in inventory.gpus[0].instances] == ["MIG-0-0", "MIG-0-3"]
    empty = probe_gpus(FakeNvml(count=1, mig=1))[1][2]
    assert not empty.is_present
    assert "no instance exists" in empty.detail
    unable = probe_gpus(FakeNvml(count=1))[1][2]
    assert not unable.is_present
    assert "Not Supported" in unable.detail


def test_mps_daemon_is_seen(monkeypatch, tmp_path):
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text("#!/bin/sh\n")
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "pipe"))
    finding = probe_gpus(FakeNvml(count=1))[1][1]
    assert not finding.is_present
    assert "no daemon has its pipe" in finding.detail
    (tmp_path / "pipe").mkdir()
    finding = probe_gpus(FakeNvml(count=1))[1][1]
    assert finding.is_present
    assert "a daemon has its pipe" in finding.detail


def found_with(*names, **options):
    inventory = read_gpus(FakeNvml(count=1, **options))
    findings = tuple(Finding(name=name, is_present=True, detail="there") for name in names)
    return ProbeResult(hardware=probe().hardware, findings=findings, inventory=inventory)


def test_a_back_end_is_present_if_its_worker_says_so():
    seats = []

    def look(seat):
        seats.append(seat)
        return {"text": f"{seat.shares[0].units} SMs"}

    found = verify_backends(found_with("CPU cores", "GPU", "MPS", "green contexts"), look)
    assert all(finding.is_present for finding in found.findings)
    assert [f.detail for f in found.findings] == [
        "there",
        *(f"there; seen from inside: gpu0: {units} SMs" for units in (132, 66, 64)),
    ]
    assert [seat.shares[0].kind for seat in seats] == ["cuda", "mps", "green_context"]
    assert seats[1].mps.percentage == 50
    half = 141 * GIB // 2
    assert [seat.shares[0].memory_bytes for seat in seats] == [141 * GIB, half, half]


def test_a_back_end_whose_worker_sees_something_else_is_absent():
    error = "device 'trial of mps on gpu0' owns 66 of 132 SMs, and its worker sees all of them"
    (finding,) = verify_backends(found_with("MPS"), lambda seat: {"error": error}).findings
    assert not finding.is_present
    assert finding.detail == f"absent: {error}"


def test_a_gpu_in_mig_mode_is_tried_by_its_instances_only():
    instances = {0: ("1g.18gb", 16, 16384), 1: ("1g.18gb", 16, 16384)}
    found = found_with("MIG", "MPS", "GPU", mig=1, instances=instances)
    mig, mps, whole = verify_backends(found, lambda seat: {"text": seat.shares[0].visible}).findings
    assert mig.detail.endswith("gpu0: MIG-0-0; gpu0: MIG-0-1")
    assert not mps.is_present
    assert not whole.is_present
    assert "every GPU is in MIG mode" in mps.detail


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("echo no; echo the driver is too old >&2; exit 3", "exit code 3: the driver is too old"),
        ("exit 4", "exit code 4: it printed nothing"),
        ("exec sleep 20", "has not looked at its GPU within 0.5 s"),
    ],
)
def test_a_worker_that_cannot_look_is_told(tmp_path, monkeypatch, body, text):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setattr("executor.probe.sys.executable", str(program))
    monkeypatch.setattr("executor.probe.LOOK_TIMEOUT_S", 0.5)
    (finding,) = verify_backends(found_with("GPU")).findings
    assert not finding.is_present
    assert finding.detail.endswith(text)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (None, "no torch.cuda.green_contexts"),
        (SimpleNamespace(SUPPORTED=False), "built without"),
        (SimpleNamespace(SUPPORTED=True, GreenContext=object), "from torch 2.12 on"),
        (SimpleNamespace(SUPPORTED=True, GreenContext=SimpleNamespace(Stream=1)), None),
    ],
)
def test_green_contexts_need_streams(monkeypatch, module, text):
    monkeypatch.setattr("executor.probe.load_module", lambda name: module)
    finding = probe_gpus(FakeNvml(count=1))[1][3]
    assert finding.is_present == (text is None)
    assert text is None or text in finding.detail


def test_half_a_core_is_a_core(tmp_path):
    root = make_root(tmp_path, "0::/\n", {"cpu.max": "50000 100000"})
    cpu = read_host_cpu(root)
    assert cpu.quota_cores == 0.5
    assert len(cpu.core_ids) == 1


def test_a_worker_without_a_gpu_says_why():
    """The worker is started for real: here torch shows it no GPU."""
    if host_gpus().gpus:
        pytest.skip("this host has a GPU")
    (finding,) = verify_backends(found_with("GPU")).findings
    assert not finding.is_present
    assert "shows no GPU to its worker" in finding.detail
