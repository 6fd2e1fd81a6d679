"""Opens the end of an all-reduce for the kernel that was asked for."""

import mmap
from collections.abc import Sequence

from executor.collectives.gloo import GlooAllReduce
from executor.collectives.hierarchical import HierarchicalAllReduce
from executor.collectives.kernels import AllReduce, CollectiveKernel
from executor.collectives.nccl import NcclAllReduce, nccl_library
from executor.collectives.peers import WaitOptions
from executor.collectives.polled import cuda_fence
from executor.collectives.process_group import Meeting
from executor.collectives.rows import RowsAllReduce, cuda_ipc_rows, symmetric_rows
from executor.collectives.shared import AllReduceLayout, SharedAllReduce
from executor.workers.accelerator import CUDA_DEVICE


def open_all_reduce(
    kernel: CollectiveKernel,
    layout: AllReduceLayout,
    memory: mmap.mmap,
    base: int,
    member: int,
    names: Sequence[str],
    store: tuple[str, str],
    options: WaitOptions,
    parents: Sequence[str],
) -> AllReduce:
    """Returns a member's end.

    Args:
        kernel: What does it.
        layout: Length and type, and for shared memory the schedule.
        memory: Shared memory of the members.
        base: First byte of this group in it.
        member: Position of this process.
        names: Name of each member.
        store: File through which the members of a library's group meet, with the group's name.
        options: How members are waited for.
        parents: Processor that each member is cut from.

    Raises:
        ExecutionError: If torch or its libraries cannot do it; says what is missing.
    """
    if kernel is CollectiveKernel.shared_memory:
        return SharedAllReduce(layout, memory, base, member, names, options)
    length, dtype = layout.num_elements, layout.dtype
    meeting = Meeting(
        memory=memory, base=base, member=member, names=names, store=store, options=options
    )
    if kernel is CollectiveKernel.gloo:
        return GlooAllReduce(length, dtype, meeting)
    if kernel is CollectiveKernel.nccl:
        return NcclAllReduce(len(set(parents)) < len(parents), meeting)
    if kernel is CollectiveKernel.hierarchical:
        return HierarchicalAllReduce(
            parents,
            length,
            dtype,
            cuda_ipc_rows(length, dtype, CUDA_DEVICE),
            cuda_fence,
            nccl_library(False, options.deadline_ns),
            meeting,
        )
    rows = cuda_ipc_rows if kernel is CollectiveKernel.cuda_ipc else symmetric_rows
    return RowsAllReduce(rows(length, dtype, CUDA_DEVICE), cuda_fence, meeting)
