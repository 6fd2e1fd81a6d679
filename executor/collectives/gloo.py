"""All-reduce between processes by gloo, where it is asked for instead of shared memory.

Source: PyTorch documentation, torch.distributed (gloo back end, stores).
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from executor.collectives.peers import check_part
from executor.collectives.process_group import Meeting, ProcessGroupAllReduce

INTERFACE = "lo"
"""Members are processes of one host."""


class GlooAllReduce(ProcessGroupAllReduce):
    """One member's end of an all-reduce by gloo.

    Args:
        num_elements: Length of every member's array.
        dtype: numpy's name of its type.
        meeting: Where the members meet.

    Raises:
        ExecutionError: If torch is built without gloo.
    """

    def __init__(self, num_elements: int, dtype: str, meeting: Meeting) -> None:
        super().__init__("gloo", lambda distributed: distributed.is_gloo_available(), meeting)
        self._num_elements, self._dtype = num_elements, np.dtype(dtype)

    def all_reduce(self, values: npt.NDArray[Any]) -> None:
        """Replaces `values` by the sum over all members, in gloo's order.

        Args:
            values: [num_elements] of the group's type, contiguous.

        Raises:
            ExecutionError: If shape or type differ from the group's.
            WorkerDiedError, WorkerHungError: Name the member that failed; the group is broken then.
        """
        check_part(values, self._num_elements, self._dtype)
        tensors = [self._torch.from_numpy(values)]
        self._together(lambda: self._group.allreduce(tensors).wait(), "waiting for gloo")

    def _open(self, store: Any, member: int, size: int) -> Any:
        gloo = self._distributed.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(interface=INTERFACE)]
        options._timeout = self._timeout
        return gloo(store, member, size, options)
