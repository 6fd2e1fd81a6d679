"""Which kernels of all-reduce this machine can run, and why the others are absent."""

import os
import shutil
from pathlib import Path
from typing import Any

from doppler.core.errors import ExecutionError
from executor.collectives.kernels import CollectiveKernel
from executor.collectives.nccl import nccl_environment
from executor.launch.gpus import GpuInventory, host_gpus, load_module
from executor.launch.seats import MPS_PIPE_DEFAULT, MPS_PIPE_VARIABLE
from executor.probe import Finding
from executor.workers.mps import CONTROL

UNTRIED = "not yet run on hardware"


def probe_collectives() -> list[Finding]:
    """Looks at this machine; loads torch."""
    torch: Any = load_module("torch")
    distributed: Any = load_module("torch.distributed")
    has_nccl = bool(distributed.is_nccl_available())
    nccl: Any = load_module("torch.cuda.nccl")
    pipe = Path(os.environ.get(MPS_PIPE_VARIABLE, MPS_PIPE_DEFAULT))
    return collective_findings(
        host_gpus(),
        gloo=bool(distributed.is_gloo_available()),
        nccl=tuple(nccl.version()[:3]) if has_nccl else None,
        cuda=torch.version.cuda,
        symmetric=load_module("torch.distributed._symmetric_memory") is not None,
        mps=shutil.which(CONTROL) is not None and pipe.exists(),
    )


def collective_findings(
    inventory: GpuInventory,
    *,
    gloo: bool,
    nccl: tuple[int, ...] | None,
    cuda: str | None,
    symmetric: bool,
    mps: bool,
) -> list[Finding]:
    """Returns a finding per kernel.

    Args:
        inventory: GPUs of this host.
        gloo: True if torch is built with gloo.
        nccl: Version of torch's NCCL, None without.
        cuda: Version of torch's CUDA, None without.
        symmetric: True if torch has symmetric memory.
        mps: True if an MPS daemon has its pipe.
    """
    no_gpu = inventory.reason or ("this torch is built without CUDA" if cuda is None else "")
    no_nccl = no_gpu or ("this torch is built without NCCL" if nccl is None else "")
    no_symmetric = no_gpu or ("" if symmetric else "this torch has none")
    return [
        _finding(CollectiveKernel.shared_memory, "", "between the processes of this host"),
        _finding(
            CollectiveKernel.gloo,
            "" if gloo else "this torch is built without gloo",
            "between the processes of this host",
        ),
        _finding(CollectiveKernel.nccl, no_nccl, _nccl_text(nccl or (), mps)),
        _finding(CollectiveKernel.cuda_ipc, no_gpu, UNTRIED),
        _finding(CollectiveKernel.symmetric_memory, no_symmetric, UNTRIED),
    ]


def _nccl_text(version: tuple[int, ...], mps: bool) -> str:
    text = f"NCCL {'.'.join(map(str, version))}, "
    try:
        nccl_environment(version, shares_gpu=True)
    except ExecutionError as error:
        return f"{text}one member per GPU: {error}; {UNTRIED}"
    if not mps:
        return f"{text}one member per GPU: no MPS daemon has its pipe; {UNTRIED}"
    return f"{text}several members per GPU under MPS; {UNTRIED}"


def _finding(kernel: CollectiveKernel, reason: str, detail: str) -> Finding:
    return Finding(
        name=f"all-reduce by {kernel.value}",
        is_present=not reason,
        detail=f"absent: {reason}" if reason else detail,
    )
