"""Which kernels of all-reduce this machine can run, and why the others are absent.

What the versions allow is tried: real processes make a small all-reduce and check its sums.
"""

from collections.abc import Callable, Sequence
from typing import Any

from doppler.core.errors import DopplerError, ExecutionError
from executor.collectives.kernels import CollectiveKernel
from executor.collectives.nccl import check_sharing
from executor.collectives.verify import Trial, core_trial, gpu_trial, run_trial
from executor.launch.gpus import GpuInventory, load_module
from executor.probe import BACKENDS, Finding, ProbeResult
from executor.workers.share import MPS

ON_MIG = "every GPU is in MIG mode, whose instances share no memory"
Attempt = Callable[[Trial], dict[str, str]]
"""Tries an all-reduce; returns {"text": what came out} or {"error": who failed, and why}."""


def probe_collectives(found: ProbeResult, attempt: Attempt = run_trial) -> list[Finding]:
    """Looks at this machine, loads torch, and tries what seems present.

    Args:
        found: What the probe found, its back ends verified.
        attempt: Tries one.

    Returns:
        A finding per kernel; present if a trial between real processes gave the right sums.
    """
    torch: Any = load_module("torch")
    distributed: Any = load_module("torch.distributed")
    version: tuple[int, ...] | None = None
    if distributed.is_nccl_available():
        nccl: Any = load_module("torch.cuda.nccl")
        version = tuple(nccl.version()[:3])
    has_mps = any(f.name == BACKENDS[MPS] and f.is_present for f in found.findings)
    reasons = absence_reasons(
        found.inventory,
        gloo=bool(distributed.is_gloo_available()),
        nccl=version,
        cuda=torch.version.cuda,
        symmetric=load_module("torch.distributed._symmetric_memory") is not None,
    )
    (cpu,) = (part for part in found.hardware.processors if part.kind == "cpu")
    findings = []
    for kernel, reason in reasons.items():
        if reason:
            findings.append(_finding(kernel, reason, ""))
            continue
        try:
            trials, note = plan_trials(kernel, found.inventory, cpu.core_ids, has_mps, version)
        except DopplerError as error:
            findings.append(_finding(kernel, f"no trial can be planned: {error}", ""))
            continue
        findings.append(tried(kernel, trials, note, attempt))
    return findings


def absence_reasons(
    inventory: GpuInventory,
    *,
    gloo: bool,
    nccl: tuple[int, ...] | None,
    cuda: str | None,
    symmetric: bool,
) -> dict[CollectiveKernel, str]:
    """Returns why each kernel cannot be here, empty if it may be.

    Args:
        inventory: GPUs of this host.
        gloo: True if torch is built with gloo.
        nccl: Version of torch's NCCL, None without.
        cuda: Version of torch's CUDA, None without.
        symmetric: True if torch has symmetric memory.
    """
    no_gpu = inventory.reason or ("this torch is built without CUDA" if cuda is None else "")
    if not no_gpu and all(gpu.has_mig for gpu in inventory.gpus):
        no_gpu = ON_MIG
    return {
        CollectiveKernel.shared_memory: "",
        CollectiveKernel.gloo: "" if gloo else "this torch is built without gloo",
        CollectiveKernel.nccl: no_gpu
        or ("this torch is built without NCCL" if nccl is None else ""),
        CollectiveKernel.cuda_ipc: no_gpu,
        CollectiveKernel.symmetric_memory: no_gpu or ("" if symmetric else "this torch has none"),
        CollectiveKernel.hierarchical: no_gpu,
    }


def plan_trials(
    kernel: CollectiveKernel,
    inventory: GpuInventory,
    core_ids: Sequence[int],
    has_mps: bool,
    nccl: tuple[int, ...] | None,
) -> tuple[list[Trial], str]:
    """Returns the trials of a kernel, and what is left out with the reason.

    Within one GPU two members; between GPUs one on each of the first two, and for hierarchical two
    on the first and one on the second.

    Args:
        kernel: What is tried.
        inventory: GPUs of this host.
        core_ids: Cores that this process may use.
        has_mps: True if the MPS daemon serves clients.
        nccl: Version of torch's NCCL, None without.
    """
    if not kernel.on_gpu:
        return [core_trial(kernel, core_ids)], ""
    names = [gpu.name for gpu in inventory.gpus if not gpu.has_mig][:2]
    within, between, note = {names[0]: 2}, dict.fromkeys(names, 1), ""
    places = [within]
    if kernel is CollectiveKernel.nccl:
        note = _why_apart(nccl or (), has_mps)
        places = [between] if note else [between, within]
    elif kernel is CollectiveKernel.symmetric_memory and len(names) > 1:
        places.append(between)
    elif kernel is CollectiveKernel.hierarchical and len(names) > 1:
        if nccl is None:
            note = "on one GPU only: this torch is built without NCCL"
        else:
            places.append({names[0]: 2, names[1]: 1})
    return [gpu_trial(kernel, inventory, place, has_mps) for place in places], note


def tried(
    kernel: CollectiveKernel, trials: Sequence[Trial], note: str, attempt: Attempt
) -> Finding:
    """Tries a kernel; it is present if one of its trials gives the right sums.

    Args:
        kernel: What is tried.
        trials: Where.
        note: What is left out, in words; empty = nothing.
        attempt: Tries one.
    """
    right: list[str] = []
    wrong: list[str] = []
    for trial in trials:
        try:
            answer = attempt(trial)
        except DopplerError as error:
            answer = {"error": str(error)}
        if "error" in answer:
            wrong.append(f"{trial.place}: {answer['error']}")
        else:
            right.append(f"{trial.place}: {answer['text']}")
    if not right:
        return _finding(kernel, "; ".join(wrong), "")
    parts = [f"tried between processes: {'; '.join(right)}"]
    parts += [f"not {text}" for text in wrong]
    return _finding(kernel, "", "; ".join([*parts, note] if note else parts))


def _why_apart(version: tuple[int, ...], has_mps: bool) -> str:
    """Why NCCL has one member per GPU here; empty if it may have more."""
    try:
        check_sharing(version)
    except ExecutionError as error:
        return f"one member per GPU: {error}"
    return "" if has_mps else "one member per GPU: the MPS daemon serves no clients here"


def _finding(kernel: CollectiveKernel, reason: str, detail: str) -> Finding:
    return Finding(
        name=f"all-reduce by {kernel.value}",
        is_present=not reason,
        detail=f"absent: {reason}" if reason else detail,
    )
