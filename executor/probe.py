"""What this machine has: hardware for layouts, and a list of findings with the reason for each.

A back end of a GPU is present if a worker that is started as its workers are says so from inside:
`verify_backends` starts one per back end, and it sees its multiprocessors, its memory and, for MPS,
itself among the daemon's clients.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.errors import DopplerError
from doppler.core.hardware import Hardware, Processor
from executor.host import HostCpu, read_host_cpu
from executor.launch.gpus import Gpu, GpuInventory, load_module, read_gpus
from executor.launch.local import worker_environment
from executor.launch.seats import (
    MPS_PIPE_DEFAULT,
    MPS_PIPE_VARIABLE,
    Seat,
    Seating,
    mps_control,
    plan_seats,
)
from executor.shared_memory import free_bytes
from executor.workers.green_context import granted_sms
from executor.workers.mps import CONTROL, PARTITIONS_SINCE, chunk_sms
from executor.workers.share import GREEN_CONTEXT, MIG, MPS, WHOLE

GIB = 1 << 30
LOOK_TIMEOUT_S = 120.0
BACKENDS = {WHOLE: "GPU", MPS: "MPS", MIG: "MIG", GREEN_CONTEXT: "green contexts"}
"""Kind of device -> name of its finding."""
STATIC_MPS = "static MPS partitions"
"""Name of the finding on MPS clients with partitions in place of percentages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked for.

    Attributes:
        name: What was looked for.
        is_present: True if it is there and can be used.
        detail: What was found, or why it is absent.
    """

    name: str
    is_present: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What a machine has.

    Attributes:
        hardware: Its processors.
        findings: All that was looked for, present or absent.
        inventory: Its GPUs as the driver shows them.
    """

    hardware: Hardware
    findings: tuple[Finding, ...]
    inventory: GpuInventory = field(default_factory=GpuInventory)


def probe(root: Path = Path("/"), shm_dir: str = "/dev/shm") -> ProbeResult:
    """Looks at this machine; changes and starts nothing.

    Args:
        root: Folder that holds `proc` and `sys`.
        shm_dir: Mount for shared memory.
    """
    cpu = read_host_cpu(root)
    processors = [
        Processor(
            name="cpu",
            kind="cpu",
            model=cpu.model,
            num_units=len(cpu.core_ids),
            memory_bytes=cpu.memory_bytes,
            core_ids=cpu.core_ids,
        )
    ]
    findings = _cpu_findings(cpu, shm_dir)
    gpus, gpu_findings, inventory = probe_gpus(load_module("pynvml"))
    processors += gpus
    hardware = Hardware(
        name=socket.gethostname() or "host",
        processors=tuple(processors),
        links=host_links([processor.name for processor in processors]),
    )
    return ProbeResult(hardware=hardware, findings=(*findings, *gpu_findings), inventory=inventory)


def host_links(names: Sequence[str]) -> tuple[Link, ...]:
    """Returns how this executor joins the processors of one host: through its shared memory.

    Nothing is copied on the way; what a GPU's kernel copies to and from it is part of its op.
    """
    return tuple(Link(src=a, dst=b) for a in names for b in names if a != b)


def probe_gpus(
    nvml: ModuleType | Any | None,
) -> tuple[tuple[Processor, ...], tuple[Finding, ...], GpuInventory]:
    """Returns the GPUs that the driver shows, and what can cut them.

    Args:
        nvml: The module `pynvml`, or None if it is not installed.
    """
    inventory = read_gpus(nvml)
    if not inventory.gpus:
        detail = f"absent: {inventory.reason}"
        names = (*BACKENDS.values(), STATIC_MPS)
        return (
            (),
            tuple(Finding(name=name, is_present=False, detail=detail) for name in names),
            inventory,
        )
    gpus = tuple(
        Processor(
            name=gpu.name,
            kind="gpu",
            model=gpu.model,
            num_units=gpu.num_units,
            memory_bytes=gpu.memory_bytes,
            # NVML does not tell the number; every GPU since 2008 has at least one.
            copy_engines=1,
        )
        for gpu in inventory.gpus
    )
    findings = (
        Finding(
            name=BACKENDS[WHOLE],
            is_present=True,
            detail="; ".join(
                f"{gpu.model}, {gpu.num_units} SMs, {gpu.memory_bytes / GIB:.0f} GiB"
                for gpu in inventory.gpus
            ),
        ),
        _mps_finding(),
        _mig_finding(inventory),
        _green_context_finding(),
        _static_mps_finding(inventory),
    )
    return gpus, findings, inventory


Look = Callable[[Seat], dict[str, str]]
"""Starts a worker in a seat and returns what it says: {"text": ...} or {"error": ...}."""


def verify_backends(found: ProbeResult, look: Look | None = None) -> ProbeResult:
    """Starts a worker per back end that seems present; it is present if the worker agrees.

    Whole GPUs, MPS and green contexts are tried with half of the first GPU without MIG, MIG with
    every instance. For static MPS partitions one is made and removed again: a daemon that was
    started for them refuses clients of percentages, and any other has none.

    Args:
        found: What `probe` found.
        look: Starts the worker; None = a process as the executor starts one.
    """
    look = look or look_from_inside
    names = (*BACKENDS.values(), STATIC_MPS)
    findings = [
        _verified(finding, found.inventory, look)
        if finding.is_present and finding.name in names
        else finding
        for finding in found.findings
    ]
    return replace(found, findings=tuple(findings))


def verify_backend(found: ProbeResult, name: str) -> Finding:
    """Returns the finding of one back end, tried by a worker if it seems present.

    Trying another beside it could fail where this one works: a daemon serves either percentages or
    static partitions.

    Args:
        found: What `probe` found.
        name: Name of the finding.
    """
    finding = next(finding for finding in found.findings if finding.name == name)
    return verify_backends(replace(found, findings=(finding,))).findings[0]


def _verified(finding: Finding, inventory: GpuInventory, look: Look) -> Finding:
    is_static = finding.name == STATIC_MPS
    kind = next((kind for kind, name in BACKENDS.items() if name == finding.name), MPS)
    devices = trial_devices(kind, inventory, is_static)
    if not devices:
        detail = "absent: every GPU is in MIG mode, which runs work on instances only"
        return replace(finding, is_present=False, detail=detail)
    said: list[str] = []
    try:
        cluster = Cluster(name="probe", devices=tuple(devices))
        with _trial_seats(cluster, inventory, is_static) as seats:
            for seat in seats:
                answer = look(seat)
                if "error" in answer:
                    return replace(finding, is_present=False, detail=f"absent: {answer['error']}")
                said.append(f"{seat.shares[0].gpu}: {answer['text']}")
    except DopplerError as error:
        return replace(finding, is_present=False, detail=f"absent: {error}")
    return replace(finding, detail=f"{finding.detail}; seen from inside: {'; '.join(said)}")


@contextlib.contextmanager
def _trial_seats(
    cluster: Cluster, inventory: GpuInventory, is_static: bool
) -> Iterator[tuple[Seat, ...]]:
    """Yields the processes of a cluster; their static partitions go when the block ends."""
    if not is_static:
        yield plan_seats(cluster, inventory, os.environ)
        return
    seating = Seating(cluster, static_mps=True, inventory=inventory)
    try:
        yield seating.seats
    finally:
        seating.release()


def trial_devices(kind: str, inventory: GpuInventory, is_static: bool = False) -> list[Device]:
    """Returns the devices with which a back end is tried.

    Args:
        kind: Of the devices.
        inventory: GPUs of this host.
        is_static: MPS clients have whole chunks of multiprocessors.
    """
    if kind == MIG:
        return [
            _trial(kind, gpu, instance.units, instance.memory_bytes, f" {index}")
            for gpu in inventory.gpus
            for index, instance in enumerate(gpu.instances)
        ]
    plain = [gpu for gpu in inventory.gpus if not gpu.has_mig]
    if kind == WHOLE:
        return [_trial(kind, gpu, gpu.num_units, gpu.memory_bytes) for gpu in plain]
    devices = []
    for gpu in plain[:1]:
        units = gpu.num_units // 2
        if kind == GREEN_CONTEXT:  # the largest size that the driver grants as it is
            units = next(u for u in range(units, 0, -1) if granted_sms(u, gpu.capability) == u)
        else:
            units -= units % (chunk_sms(gpu.capability) if is_static else 2)
        devices.append(_trial(kind, gpu, units, gpu.memory_bytes // 2))
    return devices


def _trial(kind: str, gpu: Gpu, units: int, memory_bytes: int, tail: str = "") -> Device:
    return Device(
        name=f"trial of {kind} on {gpu.name}{tail}",
        kind=kind,
        parent=gpu.name,
        share=units / gpu.num_units,
        memory_bytes=memory_bytes,
    )


def look_from_inside(seat: Seat) -> dict[str, str]:
    """Starts a worker that only looks at its GPU, and returns what it says."""
    share = json.dumps(asdict(seat.shares[0]))
    environment = seat.environment(worker_environment(os.environ, 1, sys.path))
    return run_look([*look_command(), share], environment, "GPU")


def look_command() -> list[str]:
    """Returns the command of a worker that only looks."""
    return [sys.executable, "-P", "-m", "executor.workers.look"]


def run_look(command: Sequence[str], environment: Mapping[str, str], what: str) -> dict[str, Any]:
    """Runs a worker that only looks; returns what it says, or {"error": why it said nothing}."""
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LOOK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"a worker has not looked at its {what} within {LOOK_TIMEOUT_S:g} s"}
    if done.returncode != 0:
        last = (done.stderr.strip() or "it printed nothing").splitlines()[-1]
        return {"error": f"a worker ended with exit code {done.returncode}: {last}"}
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def _cpu_findings(cpu: HostCpu, shm_dir: str) -> list[Finding]:
    cores = f"{len(cpu.core_ids)} of {cpu.num_cores} cores usable ({cpu.model})"
    if cpu.quota_cores is not None:
        cores += f", control group grants {cpu.quota_cores:g} cores' worth of time"
    memory = f"{cpu.memory_bytes / GIB:.1f} GiB"
    if cpu.limit_path is not None:
        memory += f", limited by {cpu.limit_path}"
    has_mount = Path(shm_dir).is_dir()
    room = f"{free_bytes(shm_dir) / GIB:.1f} GiB free in {shm_dir}" if has_mount else ""
    return [
        Finding(name="CPU cores", is_present=True, detail=cores),
        Finding(name="memory", is_present=True, detail=memory),
        Finding(
            name="shared memory",
            is_present=has_mount,
            detail=room or f"{shm_dir} is not a directory",
        ),
    ]


def _mps_finding() -> Finding:
    control = shutil.which(CONTROL)
    name = BACKENDS[MPS]
    if control is None:
        return Finding(
            name=name, is_present=False, detail=f"absent: no {CONTROL} on the search path"
        )
    pipe = Path(os.environ.get(MPS_PIPE_VARIABLE, MPS_PIPE_DEFAULT))
    if not pipe.exists():
        return Finding(
            name=name,
            is_present=False,
            detail=f"absent: {control} is installed, and no daemon has its pipe in {pipe} "
            f"(start one: {CONTROL} -d)",
        )
    return Finding(name=name, is_present=True, detail=f"{control}; a daemon has its pipe in {pipe}")


def _static_mps_finding(inventory: GpuInventory) -> Finding:
    finding = replace(_mps_finding(), name=STATIC_MPS)
    if shutil.which(CONTROL) is None:
        return finding
    try:
        version = mps_control(os.environ).version()
        for gpu in inventory.gpus:
            chunk_sms(gpu.capability)
    except DopplerError as error:
        return replace(finding, is_present=False, detail=f"absent: {error}")
    told = "a version that it does not tell" if version is None else f"version {version}"
    if version is not None and version < PARTITIONS_SINCE:
        detail = f"absent: {CONTROL} is {told}, and has them from {PARTITIONS_SINCE} on (CUDA 13.1)"
        return replace(finding, is_present=False, detail=detail)
    hint = "" if finding.is_present else ", for static partitions with -S"
    return replace(finding, detail=f"{finding.detail}{hint}; {CONTROL} is {told}")


def _mig_finding(inventory: GpuInventory) -> Finding:
    states = []
    for gpu in inventory.gpus:
        have = ", ".join(instance.text for instance in gpu.instances) or "no instance exists"
        states.append(f"{gpu.name}: {have if gpu.has_mig else f'absent: {gpu.mig_text}'}")
    is_present = any(gpu.instances for gpu in inventory.gpus)
    return Finding(name=BACKENDS[MIG], is_present=is_present, detail="; ".join(states))


def _green_context_finding() -> Finding:
    module = load_module("torch.cuda.green_contexts")
    name = BACKENDS[GREEN_CONTEXT]
    if module is None:
        detail = "absent: this torch has no torch.cuda.green_contexts"
        return Finding(name=name, is_present=False, detail=detail)
    if not module.SUPPORTED:
        return Finding(name=name, is_present=False, detail="absent: this torch is built without")
    if not hasattr(module.GreenContext, "Stream"):
        detail = "absent: contexts have streams from torch 2.12 on, and this torch's have none"
        return Finding(name=name, is_present=False, detail=detail)
    return Finding(name=name, is_present=True, detail="torch.cuda.green_contexts")
