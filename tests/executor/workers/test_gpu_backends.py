"""MPS, MIG and green contexts: all that does not touch a device, and GPU tests that say why not."""

import stat

import pytest

from doppler.core.errors import ClusterError, ExecutionError
from executor.probe import probe
from executor.workers.green_context import granted_sms, make_contexts, plan_split
from executor.workers.mig import (
    MigProfile,
    assign_slices,
    parse_listing,
    parse_profile,
    slice_environment,
)
from executor.workers.mps import (
    MpsControl,
    MpsShare,
    check_seen_sms,
    chunk_sms,
    chunks_for,
    client_environment,
    daemon_command,
)

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
    assert daemon_command() == ("nvidia-cuda-mps-control", "-d")
    assert daemon_command(static=True)[-1] == "-S"


def control_program(tmp_path, body):
    path = tmp_path / "control"
    path.write_text(f"#!/bin/sh\nread line\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return MpsControl("/dev/shm/pipe", str(path))


def test_control_commands_and_answers(tmp_path):
    log = tmp_path / "log"
    answers = (
        f'echo "$CUDA_MPS_PIPE_DIRECTORY $line" >> {log}\n'
        f'case "$line" in get_server_list) echo 11; echo 12;; get_client_list*) echo 7;; '
        f"sm_partition\\ add*) echo {UUID}/3;; esac"
    )
    control = control_program(tmp_path, answers)
    assert control.servers() == (11, 12)
    assert control.clients(11) == (7,)
    assert control.add_partition(UUID, 16) == f"{UUID}/3"
    control.remove_partition(f"{UUID}/3")
    control.quit()
    assert log.read_text().splitlines() == [
        f"/dev/shm/pipe {line}"
        for line in (
            "get_server_list",
            "get_client_list 11",
            f"sm_partition add {UUID} 16",
            f"sm_partition rm {UUID}/3",
            "quit",
        )
    ]


def test_control_failures_are_told(tmp_path):
    with pytest.raises(ExecutionError, match="refused 'quit': no daemon"):
        control_program(tmp_path, "echo no daemon >&2; exit 1").quit()
    with pytest.raises(ExecutionError, match="prints process ids"):
        control_program(tmp_path, "echo what").servers()
    with pytest.raises(ExecutionError, match="prints UUID/id"):
        control_program(tmp_path, "echo what").add_partition(UUID, 1)
    with pytest.raises(ExecutionError, match="did not take 'quit'"):
        MpsControl("/x", "/nowhere/control").quit()


LISTING = f"""GPU 0: NVIDIA A100-SXM4-40GB (UUID: {UUID})
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 1g.5gb Device 1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-00000000-0000-0000-0000-000000000001)
  MIG 1g.5gb+me   Device  0: (UUID: MIG-GPU-00000000-0000-0000-0000-000000000001/7/0)
"""


def test_listing_and_profiles():
    found = parse_listing(LISTING)
    assert [(s.gpu, s.device, s.profile.memory_gib) for s in found] == [
        (0, 0, 20),
        (0, 1, 5),
        (1, 0, 5),
    ]
    assert found[2].uuid.endswith("/7/0")
    assert found[2].profile.attributes == ("me",)
    assert parse_profile("1c.3g.20gb") == MigProfile(1, 3, 20)
    assert parse_profile("1c.3g.20gb").shares_instance
    assert not parse_profile("7g.141gb").shares_instance
    for name in ("8g.20gb", "4c.3g.20gb", "3g", "0g.5gb"):
        with pytest.raises(ClusterError, match="MIG profile"):
            parse_profile(name)
    with pytest.raises(ClusterError, match="and has 'No devices"):
        parse_listing("No devices were found")
    with pytest.raises(ClusterError, match="lists GPUs"):
        parse_listing(LISTING.split("\n", 1)[1])
    env = slice_environment({"CUDA_MPS_PIPE_DIRECTORY": "/x", "A": "b"}, found[0])
    assert env == {"A": "b", "CUDA_VISIBLE_DEVICES": found[0].uuid}


def test_slices_are_used_as_found():
    found = parse_listing(LISTING)
    assigned = assign_slices([("small", 4 << 30), ("large", 18 << 30), ("other", 5 << 30)], found)
    assert {name: s.profile.memory_gib for name, s in assigned.items()} == {
        "large": 20,
        "other": 5,
        "small": 5,
    }
    assert len({s.uuid for s in assigned.values()}) == 3
    with pytest.raises(ClusterError, match=r"for device 'b' no free one of the 3 has 10\.0 GiB"):
        assign_slices([("a", 18 << 30), ("b", 10 << 30)], found)


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


def test_a_torch_without_green_contexts_is_told():
    import torch.cuda.green_contexts as module

    if module.SUPPORTED:
        pytest.skip("this torch has green contexts")
    with pytest.raises(ExecutionError, match="built with them, and this is not"):
        make_contexts(module, [8], 0)


def require(name):
    finding = next(f for f in probe().findings if f.name == name)
    if not finding.is_present:
        pytest.skip(finding.detail)


@pytest.mark.gpu
def test_green_contexts_run_work_and_share_memory():
    require("green contexts")
    require("GPU")
    import torch
    import torch.cuda.green_contexts as module

    properties = torch.cuda.get_device_properties(0)
    capability = (properties.major, properties.minor)
    half = properties.multi_processor_count // 2 // 8 * 8
    sms = plan_split([half, half], properties.multi_processor_count, capability)
    made = make_contexts(module, sms, 0)
    data = torch.ones(1 << 20, device="cuda:0")
    for context in made.contexts:
        stream = context.Stream()
        with torch.cuda.stream(stream):
            data += 1
        stream.synchronize()
    assert data[0].item() == 3


@pytest.mark.gpu
def test_a_running_daemon_answers():
    require("GPU")
    require("MPS")
    import os

    from executor.probe import MPS_PIPE_DEFAULT, MPS_PIPE_VARIABLE

    pipe = os.environ.get(MPS_PIPE_VARIABLE, MPS_PIPE_DEFAULT)
    if not os.path.exists(pipe):
        pytest.skip(f"no MPS daemon has its pipe in {pipe}")
    assert isinstance(MpsControl(pipe).servers(), tuple)


@pytest.mark.gpu
def test_the_driver_lists_its_mig_slices():
    require("GPU")
    require("MIG")
    import subprocess

    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    assert parse_listing(listed.stdout)
