"""What can do an all-reduce between GMIs, and what all of these offer."""

import enum
from typing import Any, Protocol, runtime_checkable


class CollectiveKernel(enum.Enum):
    """What does an all-reduce: the first two on numpy arrays, the others on tensors of a GPU.

    `hierarchical` is local reduce and leader ring: mapped memory within a GPU, NCCL between them.
    """

    shared_memory = "shared_memory"
    gloo = "gloo"
    nccl = "nccl"
    cuda_ipc = "cuda_ipc"
    symmetric_memory = "symmetric_memory"
    hierarchical = "hierarchical"

    @property
    def on_gpu(self) -> bool:
        """True if arrays are tensors of a GPU."""
        return self not in (CollectiveKernel.shared_memory, CollectiveKernel.gloo)


@runtime_checkable
class AllReduce(Protocol):
    """One member's end of an all-reduce, whatever does it."""

    def join(self) -> None:
        """Meets the other members."""
        ...

    def all_reduce(self, values: Any) -> None:
        """Replaces `values`, [num_elements], by the sum over all members."""
        ...

    def close(self) -> None:
        """Leaves the group."""
        ...
