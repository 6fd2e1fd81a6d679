"""Static MPS partitions as the probe finds them, with a control program in place of a daemon's."""

import dataclasses
import os

import pytest

from executor import probe as module
from executor.launch.gpus import GpuInventory
from executor.probe import ProbeResult, probe, probe_gpus, verify_backend, verify_backends
from tests.executor.fake_nvml import FakeNvml

NAME = "static MPS partitions"


@pytest.fixture
def control(tmp_path, monkeypatch):
    """Returns a function that writes the program: what it prints for -v, and for a partition."""
    program = tmp_path / "bin" / "nvidia-cuda-mps-control"
    program.parent.mkdir()
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "pipe"))

    def write(version="Binary version: 13010", answer="Partition $uuid/aB3 created", daemon=True):
        program.write_text(
            f"""#!/bin/sh
if [ "$1" = -v ]; then echo "{version}"; exit; fi
read line; echo "$line" >> {tmp_path}/log
case "$line" in "sm_partition add"*) set -- $line; uuid=$3; echo "{answer}";; esac
"""
        )
        program.chmod(0o755)
        if daemon:
            (tmp_path / "pipe").mkdir(exist_ok=True)

    write(daemon=False)
    return write


def found_by_driver():
    gpus, findings, inventory = probe_gpus(FakeNvml(count=1))
    assert gpus
    return ProbeResult(hardware=probe().hardware, findings=findings, inventory=inventory)


def static(found):
    return next(finding for finding in found.findings if finding.name == NAME)


def test_without_a_daemon_it_is_told_how_one_is_started_for_them(control):
    finding = static(found_by_driver())
    assert not finding.is_present
    assert "no daemon has its pipe" in finding.detail
    assert "for static partitions with -S; nvidia-cuda-mps-control is version 13010" in (
        finding.detail
    )


def test_a_control_program_that_is_too_old_has_none(control):
    control(version="Binary version: 12080")
    finding = static(found_by_driver())
    assert not finding.is_present
    assert finding.detail == (
        "absent: nvidia-cuda-mps-control is version 12080, and has them from 13010 on (CUDA 13.1)"
    )


def test_a_gpu_that_is_too_old_has_none(control):
    control()
    inventory = found_by_driver().inventory
    old = GpuInventory(gpus=(dataclasses.replace(inventory.gpus[0], capability=(7, 5)),))
    finding = module._static_mps_finding(old)
    assert not finding.is_present
    assert "static partitions need compute capability 8.0, and the GPU has 7.5" in finding.detail


@pytest.mark.parametrize(
    ("version", "told"),
    [("Binary version: 13030", "is version 13030"), ("usage", "a version that it does not tell")],
)
def test_a_worker_looks_from_a_partition_that_is_removed_again(
    control, tmp_path, monkeypatch, version, told
):
    control(version=version)
    seats = []

    def look(seat):
        seats.append(seat)
        assert "rm" not in (tmp_path / "log").read_text()  # it is there while the worker looks
        return {"text": "64 SMs"}

    found = found_by_driver()
    only = dataclasses.replace(found, findings=(static(found),))
    (finding,) = verify_backends(only, look).findings
    assert finding.is_present
    assert told in finding.detail
    assert finding.detail.endswith("seen from inside: gpu0: 64 SMs")
    (seat,) = seats
    uuid = seat.shares[0].visible
    assert (seat.mps.partition, seat.mps.percentage) == (f"{uuid}/aB3", None)
    assert seat.shares[0].units == 64  # half of 132, in chunks of 8
    log = (tmp_path / "log").read_text().splitlines()
    assert log == ["get_server_list", f"sm_partition add {uuid} 8", f"sm_partition rm {uuid} aB3"]


def test_a_worker_that_refuses_and_a_daemon_that_refuses_are_reasons(control, tmp_path):
    control()
    found = found_by_driver()
    refused = verify_backends(found, lambda seat: {"error": "it sees 132 SMs"})
    assert static(refused).detail == "absent: it sees 132 SMs"
    assert "sm_partition rm" in (tmp_path / "log").read_text()
    control(answer="Failed to fulfill the request")
    finding = static(verify_backends(found, lambda seat: {"text": "fine"}))
    assert not finding.is_present
    assert "printed 'Failed to fulfill the request'" in finding.detail


def test_one_back_end_is_tried_alone(control, monkeypatch):
    """A daemon with static partitions refuses a client of a percentage, and the other way round."""
    control()
    tried = []

    def look(seat):
        tried.append(seat.mps.partition)
        return {"text": "fine"} if seat.mps.partition else {"error": "error 915"}

    monkeypatch.setattr(module, "look_from_inside", look)
    found = found_by_driver()
    assert verify_backend(found, NAME).is_present
    assert len(tried) == 1
    assert not verify_backend(found, "MPS").is_present
