"""All-reduce by NCCL, also between several processes on one GPU where the version allows it.

Not yet run on hardware.

Source: NCCL user guide 2.30 and environment variables (NCCL_MULTI_RANK_GPU_ENABLE from 2.30.3 on;
NVLink SHARP is invalid between ranks of one GPU); PyTorch documentation, torch.distributed.
"""

import os
from typing import Any

from doppler.core.errors import ExecutionError
from executor.collectives.process_group import Meeting, ProcessGroupAllReduce
from executor.launch.gpus import load_module

SHARING_VERSION = (2, 30, 3)
REFUSING_VERSION = (2, 5, 0)


def nccl_environment(version: tuple[int, ...], shares_gpu: bool) -> dict[str, str]:
    """Returns the variables that a communicator needs; NCCL reads them when it starts.

    Args:
        version: Of NCCL.
        shares_gpu: True if two members are on one GPU.

    Raises:
        ExecutionError: If this version refuses two members on one GPU.
    """
    if not shares_gpu or version < REFUSING_VERSION:
        return {}
    if version < SHARING_VERSION:
        text, least = (".".join(map(str, v[:3])) for v in (version, SHARING_VERSION))
        raise ExecutionError(
            f"members of one GPU need NCCL {least}, and this torch has {text}: take kernel "
            f"cuda_ipc, or one member per GPU"
        )
    return {
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        # Members of one GPU wait for each other in kernels, which must all fit at once.
        "NCCL_MAX_CTAS": "2",
    }


class NcclAllReduce(ProcessGroupAllReduce):
    """One member's end of an all-reduce by NCCL.

    Args:
        shares_gpu: True if two members are on one GPU.
        meeting: Where the members meet.

    Raises:
        ExecutionError: If torch has no NCCL, or one that refuses these members.
    """

    def __init__(self, shares_gpu: bool, meeting: Meeting) -> None:
        self._shares_gpu = shares_gpu
        super().__init__("NCCL", lambda distributed: distributed.is_nccl_available(), meeting)

    def all_reduce(self, values: Any) -> None:
        """Replaces `values`, a tensor on this process's GPU, by the sum over all members.

        Raises:
            WorkerDiedError, WorkerHungError: Name the member that failed; the group is broken then.
        """

        def add_up() -> None:
            self._group.allreduce([values]).wait()
            self._torch.cuda.synchronize()

        self._reduce(add_up)

    def _prepare(self) -> None:
        nccl: Any = load_module("torch.cuda.nccl")
        os.environ.update(nccl_environment(nccl.version()[:3], self._shares_gpu))

    def _open(self, store: Any, member: int, size: int) -> Any:
        """Returns the group; NCCL itself connects in the first call."""
        options = self._distributed.ProcessGroupNCCL.Options()
        options._timeout = self._timeout
        return self._distributed.ProcessGroupNCCL(store, member, size, options)
