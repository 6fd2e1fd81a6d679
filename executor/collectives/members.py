"""Which devices the members of an all-reduce may be, by kernel: checked when it is declared.

Source: CUDA runtime API, interprocess communication (handles of device memory); NVIDIA MIG User
Guide (no memory is shared between instances); PyTorch documentation, symmetric memory; NCCL user
guide, communicators with several ranks per GPU.
"""

from collections.abc import Sequence

from doppler.core.cluster import Device
from doppler.core.errors import ConfigError
from executor.collectives.kernels import CollectiveKernel
from executor.workers.share import GPU_KINDS, GREEN_CONTEXT, MIG

_MAPPING = (
    CollectiveKernel.cuda_ipc,
    CollectiveKernel.symmetric_memory,
    CollectiveKernel.hierarchical,
)
"""Kernels whose members on one GPU map each other's memory."""
_OF_PROCESSES = (CollectiveKernel.nccl, CollectiveKernel.symmetric_memory)
"""Kernels that have a process per member."""
MIG_RULE = "maps the memory of others, and MIG instances share none"


def check_members(kernel: CollectiveKernel, devices: Sequence[Device], name: str) -> None:
    """Checks that the members of an all-reduce are what its kernel can reach.

    Args:
        kernel: What does it.
        devices: Device of each member.
        name: Of the all-reduce, for messages.

    Raises:
        ConfigError: Says the rule, which devices break it, and what to take instead.
    """
    if not kernel.on_gpu:
        return
    where = f"collective {name!r} (kernel {kernel.value!r})"
    for device in devices:
        if device.kind not in GPU_KINDS:
            raise ConfigError(
                f"members of {where} are cut from GPUs, and device {device.name!r} is of kind "
                f"{device.kind!r}: take kernel 'shared_memory' or 'gloo'"
            )
    parents = list(dict.fromkeys(device.parent for device in devices))
    if kernel is CollectiveKernel.cuda_ipc and len(parents) > 1:
        raise ConfigError(
            f"members of {where} map the memory of one GPU, and they are cut from "
            f"{', '.join(map(repr, parents))}: take kernel 'hierarchical', which maps memory "
            f"within each GPU, or 'nccl'"
        )
    for parent in parents:
        _check_neighbours(kernel, [d for d in devices if d.parent == parent], where)
    if kernel is CollectiveKernel.symmetric_memory and len(devices) > 1:
        _refuse_kind(
            MIG, devices, where, "reads the memory of others, and MIG instances share none"
        )


def _check_neighbours(kernel: CollectiveKernel, devices: Sequence[Device], where: str) -> None:
    """Checks members that are cut from one GPU."""
    if len(devices) < 2:
        return
    if kernel in _MAPPING:
        _refuse_kind(MIG, devices, where, MIG_RULE)
    if kernel in _OF_PROCESSES:
        rule = "has a process for each member, and green contexts of one GPU share one"
        _refuse_kind(GREEN_CONTEXT, devices, where, rule)


def _refuse_kind(kind: str, devices: Sequence[Device], where: str, rule: str) -> None:
    found = [device.name for device in devices if device.kind == kind]
    if found:
        instead = "'shared_memory'" if kind == MIG else "'cuda_ipc' or 'hierarchical'"
        raise ConfigError(
            f"{where} {rule}, and devices {', '.join(map(repr, found))} are of kind {kind!r}: take "
            f"kernel {instead}"
        )
