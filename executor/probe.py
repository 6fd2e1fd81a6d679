"""What this machine has: hardware for layouts, and a list of findings with the reason for each."""

import importlib
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from doppler.core.hardware import Hardware, Processor
from executor.host import HostCpu, read_host_cpu
from executor.shared_memory import free_bytes

MPS_CONTROL = "nvidia-cuda-mps-control"
MPS_PIPE_VARIABLE, MPS_PIPE_DEFAULT = "CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"
CORES_PER_SM = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
"""CUDA cores per multiprocessor by compute capability where it is not 128.

Source: CUDA C++ Programming Guide, section on compute capabilities (FP32 lanes per SM).
"""
GIB = 1 << 30


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
    """

    hardware: Hardware
    findings: tuple[Finding, ...]


def probe(root: Path = Path("/"), shm_dir: str = "/dev/shm") -> ProbeResult:
    """Looks at this machine; changes nothing.

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
    gpus, gpu_findings = probe_gpus(_import("pynvml"))
    hardware = Hardware(name=socket.gethostname() or "host", processors=(*processors, *gpus))
    return ProbeResult(hardware=hardware, findings=(*findings, *gpu_findings))


def probe_gpus(nvml: ModuleType | Any | None) -> tuple[tuple[Processor, ...], tuple[Finding, ...]]:
    """Returns the GPUs that the driver shows, and what can cut them.

    Args:
        nvml: The module `pynvml`, or None if it is not installed.
    """
    if nvml is None:
        return _no_gpu("the package nvidia-ml-py (module pynvml) is not installed")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound:
        return _no_gpu("no NVIDIA driver")
    except nvml.NVMLError as error:
        return _no_gpu(f"the NVIDIA driver does not answer: {error}")
    try:
        count = nvml.nvmlDeviceGetCount()
        if count == 0:
            return _no_gpu("the NVIDIA driver shows no GPU")
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        gpus = tuple(_gpu(nvml, handle, index) for index, handle in enumerate(handles))
        findings = (
            Finding(
                name="GPU",
                is_present=True,
                detail="; ".join(
                    f"{gpu.model}, {gpu.num_units} SMs, {gpu.memory_bytes / GIB:.0f} GiB"
                    for gpu in gpus
                ),
            ),
            _mps_finding(),
            _mig_finding(nvml, handles),
            _green_context_finding(),
        )
        return gpus, findings
    finally:
        nvml.nvmlShutdown()


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


def _no_gpu(reason: str) -> tuple[tuple[Processor, ...], tuple[Finding, ...]]:
    names = ("GPU", "MPS", "MIG", "green contexts")
    return (), tuple(
        Finding(name=name, is_present=False, detail=f"absent: {reason}") for name in names
    )


def _gpu(nvml: Any, handle: Any, index: int) -> Processor:
    capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))
    num_cores = nvml.nvmlDeviceGetNumGpuCores(handle)
    model = nvml.nvmlDeviceGetName(handle)
    return Processor(
        name=f"gpu{index}",
        kind="gpu",
        model=model.decode() if isinstance(model, bytes) else model,
        num_units=num_cores // CORES_PER_SM.get(capability, 128),
        memory_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
        # NVML does not tell the number; every GPU since 2008 has at least one.
        copy_engines=1,
    )


def _mps_finding() -> Finding:
    control = shutil.which(MPS_CONTROL)
    if control is None:
        return Finding(
            name="MPS", is_present=False, detail=f"absent: no {MPS_CONTROL} on the search path"
        )
    pipe = Path(os.environ.get(MPS_PIPE_VARIABLE, MPS_PIPE_DEFAULT))
    state = "a daemon has its pipe" if pipe.exists() else "no daemon has its pipe"
    return Finding(name="MPS", is_present=True, detail=f"{control}; {state} in {pipe}")


def _mig_finding(nvml: Any, handles: list[Any]) -> Finding:
    states: list[str] = []
    is_present = False
    for index, handle in enumerate(handles):
        try:
            current, _ = nvml.nvmlDeviceGetMigMode(handle)
        except nvml.NVMLError as error:
            states.append(f"gpu{index}: absent: {error}")
            continue
        is_present = is_present or bool(current)
        states.append(f"gpu{index}: {'on' if current else 'absent: supported and switched off'}")
    return Finding(name="MIG", is_present=is_present, detail="; ".join(states))


def _green_context_finding() -> Finding:
    module = _import("torch.cuda.green_contexts")
    if module is None:
        return Finding(
            name="green contexts",
            is_present=False,
            detail="absent: this torch has no torch.cuda.green_contexts",
        )
    is_present = bool(module.SUPPORTED)
    detail = "torch.cuda.green_contexts" if is_present else "absent: this torch is built without"
    return Finding(name="green contexts", is_present=is_present, detail=detail)


def _import(name: str) -> ModuleType | None:
    """Imports only when a probe asks, so that workers and the simulator never load GPU packages."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
