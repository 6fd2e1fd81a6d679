"""MPS, MIG and green contexts: all that does not touch a device."""

import stat
from types import SimpleNamespace

import pytest

from doppler.core.errors import ClusterError, ExecutionError
from executor.workers.green_context import granted_sms, make_contexts, plan_split
from executor.workers.mig import (
    MigInstance,
    MigProfile,
    assign_instances,
    instance_environment,
    parse_profile,
    profile_of,
)
from executor.workers.mps import (
    MpsControl,
    MpsShare,
    check_seen_sms,
    chunk_sms,
    chunks_for,
    client_environment,
)
from executor.workers.share import GpuShare, Seen, check_seen

UUID = "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f"


def share(**options):
    return MpsShare(gpu_uuid=UUID, pipe_directory="/dev/shm/mps", **options)


def test_a_client_gets_its_own_variables_and_no_inherited_ones():
    inherited = {"PATH": "/bin", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2G,1=4G"}
    assert client_environment(inherited, share(percentage=37.5, memory_bytes=3 << 30)) == {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": UUID,
        "CUDA_MPS_PIPE_DIRECTORY": "/dev/shm/mps",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "37.5",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{UUID}=3072M",
    }
    static = client_environment({}, share(partition=f"{UUID}/2"))
    assert static["CUDA_MPS_SM_PARTITION"] == f"{UUID}/2"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in static
    assert "CUDA_MPS_SM_PARTITION" not in client_environment(static, share(percentage=50))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"percentage": 0.0}, "above 0 and at most 100"),
        ({"percentage": 101}, "above 0 and at most 100"),
        ({"percentage": 50, "partition": "x"}, "percentage or a partition"),
        ({"memory_bytes": 5}, "at least 1 MiB"),
    ],
)
def test_impossible_shares_are_refused(options, text):
    with pytest.raises(ClusterError, match=text):
        share(**options)
    with pytest.raises(ClusterError, match="names its GPU by UUID"):
        MpsShare(gpu_uuid="0", pipe_directory="/x")


@pytest.mark.parametrize(("asked", "seen"), [(141, 140), (94, 94), (47, 46)])
def test_measured_rounding_passes(asked, seen):
    """188 SMs: 75 % is 141 and shows 140, 50 % shows 94, 25 % shows 46."""
    check_seen_sms("gmi", seen, asked, 188)


def test_a_client_without_mps_or_with_another_share_is_refused():
    with pytest.raises(ClusterError, match="runs without MPS"):
        check_seen_sms("gmi", 188, 94, 188)
    for seen in (92, 95):
        with pytest.raises(ClusterError, match=f"its worker sees {seen}"):
            check_seen_sms("gmi", seen, 94, 188)
    check_seen_sms("whole", 188, 188, 188)


def test_chunks_of_static_partitions():
    """H200 (132 SMs): 16 chunks of 8, or with 4-SM chunks 18 chunks for 72 SMs."""
    assert chunk_sms((9, 0)) == chunk_sms((10, 0)) == 8
    assert chunk_sms((8, 0)) == 4
    assert chunks_for(132, (9, 0)) == 16
    assert chunks_for(72, (8, 0)) == 18
    with pytest.raises(ClusterError, match="at least 8 SMs, and 7"):
        chunks_for(7, (9, 0))
    with pytest.raises(ClusterError, match=r"7\.5"):
        chunk_sms((7, 5))


def control_program(tmp_path, body):
    path = tmp_path / "control"
    path.write_text(f"#!/bin/sh\nread line\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return MpsControl("/dev/shm/pipe", str(path))


@pytest.mark.parametrize("answer", [f"{UUID}/3", f"Partition {UUID}/3 created"])
def test_control_commands_and_answers(tmp_path, answer):
    log = tmp_path / "log"
    answers = (
        f'echo "$CUDA_MPS_PIPE_DIRECTORY $line" >> {log}\n'
        f'case "$line" in get_server_list) echo 11; echo 12;; get_client_list*) echo 7;; '
        f"sm_partition\\ add*) echo {answer};; esac"
    )
    control = control_program(tmp_path, answers)
    assert control.servers() == (11, 12)
    assert control.clients(11) == (7,)
    assert control.add_partition(UUID, 16) == f"{UUID}/3"
    control.remove_partition(f"{UUID}/3")
    assert log.read_text().splitlines() == [
        f"/dev/shm/pipe {line}"
        for line in (
            "get_server_list",
            "get_client_list 11",
            f"sm_partition add {UUID} 16",
            f"sm_partition rm {UUID} 3",
        )
    ]


@pytest.mark.parametrize(
    ("printed", "version"), [("Binary version: 13030", 13030), ("usage: no such option", None)]
)
def test_the_control_program_tells_its_version_without_a_daemon(tmp_path, printed, version):
    control = control_program(tmp_path, f'[ "$1" = -v ] && echo "{printed}"')
    assert control.version() == version


def test_control_failures_are_told(tmp_path):
    with pytest.raises(ExecutionError, match="refused 'get_server_list': no daemon"):
        control_program(tmp_path, "echo no daemon >&2; exit 1").servers()
    with pytest.raises(ExecutionError, match="prints process ids"):
        control_program(tmp_path, "echo what").servers()
    with pytest.raises(ExecutionError, match="prints UUID/id"):
        control_program(tmp_path, "echo what").add_partition(UUID, 1)
    with pytest.raises(ExecutionError, match="did not take 'get_server_list'"):
        MpsControl("/x", "/nowhere/control").servers()


def test_profiles():
    assert parse_profile("1c.3g.20gb") == MigProfile(1, 3, 20)
    assert parse_profile("1c.3g.20gb").shares_instance
    assert not parse_profile("7g.141gb").shares_instance
    assert parse_profile("1g.5gb+me").attributes == ("me",)
    for name in ("8g.20gb", "4c.3g.20gb", "3g", "0g.5gb"):
        with pytest.raises(ClusterError, match="MIG profile"):
            parse_profile(name)
    assert profile_of("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb") == "1c.3g.20gb"
    with pytest.raises(ClusterError, match="got 'H200'"):
        profile_of("NVIDIA H200")
    env = instance_environment({"CUDA_MPS_PIPE_DIRECTORY": "/x", "A": "b"}, "MIG-1")
    assert env == {"A": "b", "CUDA_VISIBLE_DEVICES": "MIG-1"}


GIB = 1 << 30
FOUND = [
    MigInstance(uuid="MIG-a", profile="3g.20gb", units=42, memory_bytes=20 * GIB),
    MigInstance(uuid="MIG-b", profile="1g.5gb", units=14, memory_bytes=5 * GIB),
    MigInstance(uuid="MIG-c", profile="1g.10gb", units=14, memory_bytes=10 * GIB),
    MigInstance(uuid="MIG-d", profile="1c.3g.20gb", units=14, memory_bytes=20 * GIB),
]


def test_instances_are_used_as_found():
    wanted = [("small", 14, 4 * GIB), ("large", 42, 18 * GIB), ("other", 14, 6 * GIB)]
    assigned = assign_instances(wanted, FOUND, "gpu0")
    assert {name: mig.uuid for name, mig in assigned.items()} == {
        "small": "MIG-b",
        "large": "MIG-a",
        "other": "MIG-c",
    }
    with pytest.raises(ClusterError, match=r"'b' of 'gpu0' needs .* 42 SMs.*1c.3g.*memory shared"):
        assign_instances([("a", 42, 18 * GIB), ("b", 42, 5 * GIB)], FOUND, "gpu0")


def test_an_instance_has_the_multiprocessors_that_are_asked_and_no_memory_too_much():
    (found,) = assign_instances([("x", 14, 18 * GIB)], FOUND, "gpu0").values()
    assert found.uuid == "MIG-d"  # MIG-a has as much memory, and three times the multiprocessors
    (found,) = assign_instances([("x", 14, 5 * GIB)], FOUND[::-1], "gpu0").values()
    assert found.uuid == "MIG-b"  # exactly what is asked, the smallest of three that fit


def test_a_control_program_that_hangs_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("executor.workers.mps.CONTROL_TIMEOUT_S", 0.2)
    with pytest.raises(ExecutionError, match=r"did not take 'get_server_list': .* timed out"):
        control_program(tmp_path, "exec sleep 20").servers()


def mps_share(**options):
    values = {
        "device": "gmi",
        "kind": "mps",
        "gpu": "gpu0",
        "visible": UUID,
        "units": 66,
        "total_units": 132,
        "memory_bytes": 20 * GIB,
        "pipe_directory": "/dev/shm/mps",
    }
    return GpuShare(**{**values, **options})


def seen_by(units, **options):
    values = {"total_bytes": 141 * GIB, "free_bytes": 19 * GIB, "pid": 7, "mps_clients": (5, 7)}
    return Seen(units=units, **{**values, **options})


@pytest.mark.parametrize(
    ("share", "seen", "text"),
    [
        (mps_share(), seen_by(66), None),
        (mps_share(), seen_by(132), "runs without MPS"),
        (mps_share(), seen_by(66, mps_clients=(5,)), r"lists \[5\] without its worker \(7\)"),
        (mps_share(), seen_by(66, mps_clients=()), "no clients"),
        (mps_share(units=132), seen_by(132, mps_clients=()), "runs without MPS"),
        (mps_share(), seen_by(66, free_bytes=21 * GIB), "has not taken the memory limit"),
        (mps_share(kind="cuda", units=132), seen_by(132), None),
        (mps_share(kind="cuda", units=132), seen_by(66), "shows 132 SMs .* sees 66"),
        (mps_share(kind="mig", units=16), seen_by(16, total_bytes=19 * GIB), None),
        (mps_share(kind="mig", units=16), seen_by(132), "shows 16 SMs .* sees 132"),
        (mps_share(kind="mig", units=16), seen_by(16, total_bytes=9 * GIB), "sees 9663676416"),
        (mps_share(kind="green_context", units=64), seen_by(132), None),
        (mps_share(kind="green_context", units=64), seen_by(132, granted=64), None),
        (mps_share(kind="green_context", units=64), seen_by(132, granted=72), "has 72"),
    ],
)
def test_a_worker_refuses_what_it_was_not_given(share, seen, text):
    if text is None:
        check_seen(share, seen)
    else:
        with pytest.raises(ClusterError, match=text):
            check_seen(share, seen)


def test_torch_is_held_to_the_memory_where_the_gpu_does_not_do_it():
    assert mps_share(kind="cuda").memory_fraction(40 * GIB) == 0.5
    assert mps_share(kind="green_context", process_bytes=30 * GIB).memory_fraction(40 * GIB) == 0.75
    assert mps_share(kind="cuda").memory_fraction(10 * GIB) == 1.0
    assert mps_share(kind="mps").memory_fraction(40 * GIB) is None
    assert mps_share(kind="mig").memory_fraction(40 * GIB) is None


def test_contexts_without_streams_are_refused(monkeypatch):
    """torch 2.10 has green contexts that one can only enter."""
    from executor.workers import accelerator

    class Entered(FakeModule):
        GreenContext = object

    torch = SimpleNamespace(__version__="2.10.0")
    monkeypatch.setattr(accelerator, "load_module", lambda name: Entered)
    with pytest.raises(ExecutionError, match=r"need torch 2\.12, .* and this torch is 2\.10\.0"):
        accelerator._ProcessContexts().get(torch, (8,))


def test_what_is_seen_is_told():
    text = seen_by(132, granted=64, is_disjoint=False).text
    assert text.startswith("132 SMs, 20401094656 of 151397597184 bytes free, listed as client 7")
    assert "a green context of 64 SMs, green contexts may share SMs, because this torch" in text


def test_what_the_driver_grants_green_contexts():
    """Hopper: 10 -> 16, 17 -> 24; Ampere: at least 4, even."""
    assert [granted_sms(n, (9, 0)) for n in (1, 8, 10, 17)] == [8, 8, 16, 24]
    assert [granted_sms(n, (8, 0)) for n in (1, 5, 6)] == [4, 6, 6]
    assert granted_sms(3, (7, 5)) == 4
    assert granted_sms(3, (6, 1)) == 3
    assert plan_split([60, 60], 132, (9, 0)) == (64, 64)
    with pytest.raises(ClusterError, match=r"rounded up to \[72, 72\], 144 in all"):
        plan_split([66, 66], 132, (9, 0))
    with pytest.raises(ClusterError, match=r"capability 6\.0"):
        granted_sms(3, (5, 2))
    with pytest.raises(ClusterError, match="at least one SM"):
        granted_sms(0, (9, 0))


class FakeModule:
    """torch.cuda.green_contexts as documented for 2.12 to 2.14."""

    SUPPORTED = True

    class GreenContext:
        def __init__(self, **options):
            self.options = options

        @classmethod
        def create(cls, **options):
            return cls(**options)


class FakeModuleWithSplit(FakeModule):
    """The same for 2.15, with its joint split."""

    class SMPartition:
        def __init__(self, sm_count):
            self.sm_count = sm_count

        @classmethod
        def from_device(cls, device_id=None):
            return cls(132)

        def split(self, *, num_sms):
            groups = tuple(type(self)(count) for count in num_sms)
            return groups, type(self)(self.sm_count - sum(num_sms))


def test_contexts_are_split_jointly_where_torch_can():
    made = make_contexts(FakeModuleWithSplit, (64, 48), 0)
    assert made.granted == (64, 48)
    assert made.is_disjoint
    assert [c.options["sm_partition"].sm_count for c in made.contexts] == [64, 48]
    older = make_contexts(FakeModule, (64, 48), 0)
    assert [c.options for c in older.contexts] == [
        {"num_sms": 64, "device_id": 0},
        {"num_sms": 48, "device_id": 0},
    ]
    assert older.granted == (0, 0)
    assert not older.is_disjoint
    assert make_contexts(FakeModule, (64,), 0).is_disjoint


def test_a_torch_without_green_contexts_is_told():
    import torch.cuda.green_contexts as module

    if module.SUPPORTED:
        pytest.skip("this torch has green contexts")
    with pytest.raises(ExecutionError, match="built with them, and this is not"):
        make_contexts(module, [8], 0)
