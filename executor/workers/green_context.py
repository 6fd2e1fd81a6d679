"""CUDA green contexts: how many multiprocessors the driver grants, and making the contexts.

All contexts share one process and one memory. Only one joint split gives disjoint sets, and torch
has it from 2.15 on (`SMPartition`); contexts that are made one by one may overlap, which is said,
not hidden. Not yet run on hardware.

Source: CUDA driver API, cuDevSmResourceSplitByCount (least count and multiple by compute
capability); PyTorch documentation of torch.cuda.green_contexts, 2.10 to 2.15.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from doppler.core.errors import ClusterError, ExecutionError

_GRANULARITY = (((9, 0), 8, 8), ((8, 0), 4, 2), ((7, 0), 2, 2), ((6, 0), 1, 1))


def granted_sms(asked: int, capability: tuple[int, int]) -> int:
    """Returns what the driver grants: at least the least count, rounded up to a multiple.

    Raises:
        ClusterError: If the GPU cannot be split, or nothing is asked.
    """
    if asked < 1:
        raise ClusterError(f"a green context has at least one SM, and {asked} are asked")
    for least_capability, least, multiple in _GRANULARITY:
        if capability >= least_capability:
            return max(least, -(-asked // multiple) * multiple)
    raise ClusterError(
        f"green contexts need compute capability 6.0, and the GPU has "
        f"{capability[0]}.{capability[1]}"
    )


def plan_split(asked: Sequence[int], total: int, capability: tuple[int, int]) -> tuple[int, ...]:
    """Returns what a joint split of a GPU grants each part.

    Raises:
        ClusterError: If the granted parts do not fit together; says how many there are.
    """
    granted = tuple(granted_sms(count, capability) for count in asked)
    if sum(granted) > total:
        raise ClusterError(
            f"a joint split has at most the GPU's {total} SMs, and parts of {list(asked)} are "
            f"rounded up to {list(granted)}, {sum(granted)} in all"
        )
    return granted


@dataclass(frozen=True)
class GreenContexts:
    """The contexts of one GPU.

    Attributes:
        contexts: torch's objects; work goes to a stream of each.
        granted: Multiprocessors of each as the driver tells, or 0 where torch does not tell.
        is_disjoint: False if their multiprocessors may overlap.
    """

    contexts: tuple[Any, ...]
    granted: tuple[int, ...]
    is_disjoint: bool


def make_contexts(green_contexts: Any, sms: Sequence[int], device: int) -> GreenContexts:
    """Makes one context per count: by one joint split where this torch has it, else one by one.

    Args:
        green_contexts: The module `torch.cuda.green_contexts`.
        sms: Multiprocessors of each, as `plan_split` grants them.
        device: Index of the GPU.

    Raises:
        ExecutionError: If this torch is built without green contexts.
    """
    if not green_contexts.SUPPORTED:
        raise ExecutionError("green contexts need a torch that is built with them, and this is not")
    create = green_contexts.GreenContext
    if hasattr(green_contexts, "SMPartition"):  # torch 2.15
        whole = green_contexts.SMPartition.from_device(device)
        parts, _ = whole.split(num_sms=tuple(sms))
        return GreenContexts(
            contexts=tuple(create(sm_partition=part, device_id=device) for part in parts),
            granted=tuple(part.sm_count for part in parts),
            is_disjoint=True,
        )
    contexts = tuple(create.create(num_sms=count, device_id=device) for count in sms)
    return GreenContexts(contexts, (0,) * len(sms), is_disjoint=len(contexts) < 2)
