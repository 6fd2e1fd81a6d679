"""All-reduce by NCCL, also between several processes on one GPU where the version allows it.

Not yet run on hardware.

Source: NCCL user guide 2.30 and environment variables (NCCL_MULTI_RANK_GPU_ENABLE from 2.30.3 on;
NVLink SHARP is invalid between ranks of one GPU); PyTorch documentation, torch.distributed and
environment variables of ProcessGroupNCCL (TORCH_NCCL_ASYNC_ERROR_HANDLING); NCCL_RUNTIME_CONNECT
(from 2.22 on peers connect within the first call of an algorithm unless it is 0).
"""

import os
from datetime import timedelta
from typing import Any

from doppler.core.errors import ExecutionError
from executor.collectives.polled import Library, PolledGroup
from executor.collectives.process_group import Meeting, ProcessGroupAllReduce
from executor.launch.gpus import load_module
from executor.workers.accelerator import CUDA_DEVICE

SHARING_VERSION = (2, 30, 3)
"""The first that documents several ranks on one GPU."""
OWN_HANDLING = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "NCCL_RUNTIME_CONNECT": "0"}
"""torch's watchdog would end the process at a time-out; here the member that failed is named. All
connections are made when the group is opened, where deaths are watched, and none within a call."""


def nccl_environment(version: tuple[int, ...], shares_gpu: bool) -> dict[str, str]:
    """Returns the variables that a communicator needs; NCCL reads them when it starts.

    Args:
        version: Of NCCL.
        shares_gpu: True if two members are on one GPU.

    Raises:
        ExecutionError: If this version does not document two members on one GPU.
    """
    if not shares_gpu:
        return dict(OWN_HANDLING)
    check_sharing(version)
    return {
        **OWN_HANDLING,
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        # Members of one GPU wait for each other in kernels, which must all fit at once.
        "NCCL_MAX_CTAS": "2",
    }


def check_sharing(version: tuple[int, ...]) -> None:
    """Checks that a version of NCCL takes several members on one GPU.

    Raises:
        ExecutionError: Says which is needed and which this is.
    """
    if version < SHARING_VERSION:
        text, least = (".".join(map(str, v[:3])) for v in (version, SHARING_VERSION))
        raise ExecutionError(
            f"members of one GPU need NCCL {least}, and this torch has {text}: take kernel "
            f"hierarchical, or one member per GPU"
        )


def prepare_nccl(shares_gpu: bool) -> None:
    """Sets what NCCL reads when it starts, but for a cap on its blocks that the user has set.

    Raises:
        ExecutionError: As `nccl_environment`.
    """
    nccl: Any = load_module("torch.cuda.nccl")
    needed = nccl_environment(nccl.version()[:3], shares_gpu)
    if "NCCL_MAX_CTAS" in os.environ:
        needed.pop("NCCL_MAX_CTAS", None)
    os.environ.update(needed)


def nccl_library(shares_gpu: bool, deadline_ns: int) -> Library:
    """Returns what opens groups of NCCL.

    Args:
        shares_gpu: True if two members are on one GPU.
        deadline_ns: Of a call; torch's watchdog logs one that takes twice as long.
    """

    def open_group(store: Any, rank: int, size: int) -> Any:
        distributed: Any = load_module("torch.distributed")
        options = distributed.ProcessGroupNCCL.Options()
        options._timeout = timedelta(microseconds=2 * deadline_ns / 1000)
        return distributed.ProcessGroupNCCL(store, rank, size, options)

    def first() -> Any:
        torch: Any = load_module("torch")
        return torch.zeros(1, device=CUDA_DEVICE)

    return Library(
        title="NCCL",
        is_available=lambda distributed: bool(distributed.is_nccl_available()),
        prepare=lambda: prepare_nccl(shares_gpu),
        open_group=open_group,
        first=first,
    )


class NcclAllReduce(ProcessGroupAllReduce):
    """One member's end of an all-reduce by NCCL.

    Args:
        shares_gpu: True if two members are on one GPU.
        meeting: Where the members meet.

    Raises:
        ExecutionError: If torch has no NCCL, or one that refuses these members.
    """

    def __init__(self, shares_gpu: bool, meeting: Meeting) -> None:
        self._library = nccl_library(shares_gpu, meeting.options.deadline_ns)
        super().__init__(self._library.title, self._library.is_available, meeting)

    def all_reduce(self, values: Any) -> None:
        """Replaces `values`, a tensor on this process's GPU, by the sum over all members.

        Raises:
            WorkerDiedError, WorkerHungError: Name the member that failed; the group is aborted.
            ExecutionError: If all have come, and it is not done before the deadline.
        """
        self._together(lambda: self._group.all_reduce(values), "waiting for NCCL")

    def close(self) -> None:
        """Leaves the group."""
        if self._group is not None:
            self._group.abort()
        super().close()

    def _prepare(self) -> None:
        self._library.prepare()

    def _open(self, store: Any, member: int, size: int) -> PolledGroup:
        group = PolledGroup(self._library, self._peers)
        group.open(store, member, size, self._join_deadline_ns)
        return group
