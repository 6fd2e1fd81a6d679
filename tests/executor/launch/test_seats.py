"""Which process serves which device, and its environment: the decision table of the back ends."""

import os

import pytest

from doppler.core.cluster import Cluster, Device
from doppler.core.errors import ClusterError, ExecutionError
from doppler.core.hardware import Hardware
from doppler.core.layout import Backend, Layout, Slice
from executor.launch.gpus import GpuInventory, read_gpus
from executor.launch.seats import Seating, own_units, plan_seats
from executor.probe import probe_gpus
from tests.executor.fake_nvml import FakeNvml

GIB = 1 << 30
UUIDS = [f"GPU-5c89852c-d268-c3f3-1b07-00000000000{i}" for i in range(2)]
INHERITED = {"A": "b", "CUDA_MPS_PIPE_DIRECTORY": "/dev/shm/mps", "CUDA_VISIBLE_DEVICES": "7"}


def gpu(name, kind="cuda", units=132, parent="gpu0", gib=20):
    return Device(name=name, kind=kind, parent=parent, share=units / 132, memory_bytes=gib * GIB)


def seats(*devices, environment=INHERITED, partitions=None, **options):
    cluster = Cluster(name="c", devices=devices)
    inventory = read_gpus(FakeNvml(**{"count": 2, **options}))
    return plan_seats(cluster, inventory, environment, partitions)


def test_core_groups_see_no_gpu_and_whole_gpus_see_one():
    core = Device(name="core", kind="cpu", parent="cpu", cores=(0,))
    found = seats(gpu("b", parent="gpu1"), core, gpu("a"))
    assert [seat.devices for seat in found] == [(0,), (1,), (2,)]
    environments = [seat.environment(INHERITED) for seat in found]
    assert environments == [
        {"A": "b", "CUDA_VISIBLE_DEVICES": UUIDS[1]},
        {"A": "b", "CUDA_VISIBLE_DEVICES": ""},
        {"A": "b", "CUDA_VISIBLE_DEVICES": UUIDS[0]},
    ]
    assert found[1].share_of(1) is None
    assert found[0].share_of(0).units == 132


def test_an_mps_client_has_its_percentage_and_its_memory_limit():
    first, second = seats(gpu("a", "mps", 16), gpu("b", "mps", 66, gib=40))
    assert first.environment(INHERITED) == {
        "A": "b",
        "CUDA_VISIBLE_DEVICES": UUIDS[0],
        "CUDA_MPS_PIPE_DIRECTORY": "/dev/shm/mps",
        # 16 of 132 is 12.1212...; rounded down it would be worth 14 SMs.
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "12.1213",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{UUIDS[0]}=20480M",
    }
    assert second.environment({})["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    assert first.shares[0].pipe_directory == "/dev/shm/mps"
    (default,) = seats(gpu("a", "mps", 16), environment={})
    assert default.environment({})["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/nvidia-mps"


@pytest.mark.parametrize("units", range(2, 133, 2))
def test_a_percentage_is_never_short_of_its_multiprocessors(units):
    (seat,) = seats(gpu("a", "mps", units))
    percentage = float(seat.environment({})["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])
    assert units <= percentage / 100 * 132 < units + 0.01 or percentage == 100


def test_a_static_partition_stands_in_place_of_a_percentage():
    (seat,) = seats(gpu("a", "mps", 64), partitions={"a": f"{UUIDS[0]}/4"})
    environment = seat.environment({})
    assert environment["CUDA_MPS_SM_PARTITION"] == f"{UUIDS[0]}/4"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in environment


def test_mig_devices_get_instances_that_exist():
    instances = {0: ("1g.18gb", 16, 16384), 2: ("1g.35gb", 16, 34816), 4: ("3g.71gb", 60, 71424)}
    found = seats(
        gpu("small", "mig", 16, gib=8),
        gpu("large", "mig", 60, gib=60),
        gpu("wide", "mig", 16, gib=30),
        mig=1,
        instances=instances,
    )
    visible = [seat.environment(INHERITED)["CUDA_VISIBLE_DEVICES"] for seat in found]
    assert visible == ["MIG-0-0", "MIG-0-4", "MIG-0-2"]
    with pytest.raises(ClusterError, match=r"'b' of 'gpu0' needs one of 60 SMs.*free there: 1g"):
        seats(gpu("a", "mig", 60), gpu("b", "mig", 60), mig=1, instances=instances)


def test_green_contexts_of_one_gpu_share_a_process():
    found = seats(
        gpu("a", "green_context", 64), gpu("other", parent="gpu1"), gpu("b", "green_context", 48)
    )
    assert [seat.devices for seat in found] == [(0, 2), (1,)]
    shares = found[0].shares
    assert [(share.split, share.position) for share in shares] == [((64, 48), 0), ((64, 48), 1)]
    assert found[0].share_of(2).units == 48
    # They allocate as one process: 20 GiB each, of 141.
    assert [share.process_bytes for share in shares] == [40 * GIB, 40 * GIB]
    assert shares[0].memory_fraction(141 * GIB) == 40 / 141
    with pytest.raises(ClusterError, match=r"'a' of 'gpu0' \(60\) that is 64"):
        seats(gpu("a", "green_context", 60))
    with pytest.raises(ClusterError, match="at most the GPU's 132 SMs"):
        seats(gpu("a", "green_context", 72), gpu("b", "green_context", 72))


@pytest.mark.parametrize(
    ("devices", "options", "text"),
    [
        ([gpu("a", parent="gpu5")], {}, r"cut from 'gpu5'; GPUs here: gpu0, gpu1"),
        ([gpu("a")], {"count": 0}, r"GPUs here: none \(the NVIDIA driver shows no GPU\)"),
        ([gpu("a", "tpu")], {}, "is 'tpu'"),
        ([gpu("a", "mps", 66), gpu("b", "green_context", 64)], {}, "cut in one way"),
        (
            [gpu("a"), gpu("b")],
            {},
            r"one device, and 'gpu0' is that of \['a', 'b'\]",
        ),
        ([gpu("a")], {"mig": 1}, "'gpu0' with MIG on is cut by 'cuda'"),
        ([gpu("a", "mig", 16)], {"mig": 0}, r"MIG off \(supported and switched off\) is cut by"),
        ([gpu("a", "mig", 16)], {}, r"MIG off \(Not Supported\)"),
        ([gpu("a", "mig", 16)], {"mig": 1}, "free there: none"),
    ],
)
def test_what_the_host_does_not_have_is_refused(devices, options, text):
    with pytest.raises(ClusterError, match=text):
        seats(*devices, **options)


@pytest.mark.parametrize(
    ("backend", "units", "kind"),
    [
        (Backend.whole, 132, "cuda"),
        (Backend.mps, 66, "mps"),
        (Backend.green_context, 64, "green_context"),
    ],
)
def test_a_layout_of_the_probed_hardware_can_be_seated(backend, units, kind):
    """From probe to environment: processors, layout, cluster, process."""
    gpus, _, inventory = probe_gpus(FakeNvml(count=1))
    part = Slice(parent="gpu0", backend=backend, units=units, name="g")
    hardware = Hardware(name="h", processors=gpus)
    cluster = Layout(name="l", slices=(part,)).apply(hardware)
    (seat,) = plan_seats(cluster, inventory, {})
    assert (seat.shares[0].kind, seat.shares[0].units) == (kind, units)


def daemon(tmp_path, monkeypatch, body):
    """A control program in place of the daemon's; it logs what it is told."""
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(f'#!/bin/sh\nread line\necho "$line" >> {tmp_path}/log\n{body}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


INVENTORY = read_gpus(FakeNvml(count=1))


def test_without_a_daemon_nothing_starts(tmp_path, monkeypatch):
    daemon(tmp_path, monkeypatch, "echo Cannot find MPS control daemon process >&2; exit 1")
    cluster = Cluster(name="c", devices=(gpu("a", "mps", 66),))
    with pytest.raises(ExecutionError, match="Cannot find MPS control daemon"):
        Seating(cluster, inventory=INVENTORY)
    assert Seating(Cluster(name="c", devices=(gpu("a"),)), inventory=INVENTORY).seats


def test_static_partitions_are_made_and_removed(tmp_path, monkeypatch):
    daemon(
        tmp_path,
        monkeypatch,
        f'case "$line" in sm_partition\\ add*) echo {UUIDS[0]}/${{line##* }};; esac',
    )
    cluster = Cluster(name="c", devices=(gpu("a", "mps", 64), gpu("b", "mps", 16)))
    seating = Seating(cluster, static_mps=True, inventory=INVENTORY)
    assert [seat.mps.partition for seat in seating.seats] == [f"{UUIDS[0]}/8", f"{UUIDS[0]}/2"]
    seating.release()
    seating.release()
    log = (tmp_path / "log").read_text().splitlines()
    assert log == [
        "get_server_list",
        f"sm_partition add {UUIDS[0]} 8",
        f"sm_partition add {UUIDS[0]} 2",
        f"sm_partition rm {UUIDS[0]} 2",
        f"sm_partition rm {UUIDS[0]} 8",
    ]


def test_partitions_that_were_made_go_when_another_cannot(tmp_path, monkeypatch):
    daemon(
        tmp_path,
        monkeypatch,
        f'case "$line" in sm_partition\\ add*) echo {UUIDS[0]}/1;; esac',
    )
    cluster = Cluster(name="c", devices=(gpu("a", "mps", 64), gpu("b", "mps", 60)))
    with pytest.raises(ClusterError, match="multiple of 8 SMs, and device 'b' owns 60"):
        Seating(cluster, static_mps=True, inventory=INVENTORY)
    assert (tmp_path / "log").read_text().splitlines()[-1] == f"sm_partition rm {UUIDS[0]} 1"


def test_a_share_is_the_multiprocessors_that_the_layout_gave():
    """A share is a quotient of two counts; the count comes back whole, whatever was rounded."""
    whole = read_gpus(FakeNvml(count=1)).gpus[0]
    assert [own_units(whole, gpu("a", "mps", units)) for units in range(1, 133)] == [*range(1, 133)]


def test_core_groups_ask_no_driver():
    core = Device(name="core", kind="cpu", parent="cpu", cores=(0,))
    assert Seating(Cluster(name="c", devices=(core,))).inventory == GpuInventory()
