"""All-reduce between processes by gloo, where it is asked for instead of shared memory.

Only torch knows gloo, so it is loaded when a group is opened. Who dies or does not come is named by
the group's own lines in shared memory, because gloo only says that a connection broke.

Source: PyTorch documentation, torch.distributed (gloo back end, stores).
"""

import mmap
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from doppler.core.errors import ExecutionError
from executor.collectives.peers import Peers, WaitOptions, check_names
from executor.launch.gpus import load_module

INTERFACE = "lo"
"""Members are processes of one host."""


class GlooAllReduce:
    """One member's end of an all-reduce by gloo.

    Args:
        num_elements: Length of every member's array.
        dtype: numpy's name of its type.
        memory: Shared memory of the members.
        base: First byte of this group's `peers_bytes` in it.
        member: Position of this process.
        names: Name of each member.
        store: File through which the members find each other, with a name for this group.
        options: How members are waited for.

    Raises:
        ExecutionError: If names do not fit or torch is built without gloo.
    """

    def __init__(
        self,
        num_elements: int,
        dtype: str,
        memory: mmap.mmap,
        base: int,
        member: int,
        names: Sequence[str],
        store: tuple[str, str],
        options: WaitOptions | None = None,
    ) -> None:
        check_names(names, len(names))
        torch: Any = load_module("torch")
        self._distributed: Any = load_module("torch.distributed")
        if self._distributed is None or not self._distributed.is_gloo_available():
            raise ExecutionError("an all-reduce by gloo needs a torch that is built with gloo")
        self._from_numpy = torch.from_numpy
        self._shape, self._dtype = (num_elements,), np.dtype(dtype)
        self._options = options or WaitOptions()
        self._peers = Peers(memory, base, names, member, self._options)
        self._store = store
        self._group: Any = None
        self._call = 0

    def join(self) -> None:
        """Meets the other members and connects to them.

        Raises:
            WorkerHungError, WorkerDiedError: As `Peers.join`.
        """
        self._peers.join()
        distributed, (path, name) = self._distributed, self._store
        options = distributed.ProcessGroupGloo._Options()
        options._devices = [distributed.ProcessGroupGloo.create_device(interface=INTERFACE)]
        options._timeout = timedelta(microseconds=self._options.deadline_ns / 1000)
        store = distributed.PrefixStore(name, distributed.FileStore(path, -1))
        size = len(self._peers.names)
        try:
            self._group = distributed.ProcessGroupGloo(store, self._peers.member, size, options)
        except RuntimeError as error:
            self._peers.blame("connecting by gloo", str(error))

    def all_reduce(self, values: npt.NDArray[Any]) -> None:
        """Replaces `values` by the sum over all members, in gloo's order.

        Args:
            values: [num_elements] of the group's type, contiguous.

        Raises:
            ExecutionError: If shape or type differ from the group's.
            WorkerDiedError, WorkerHungError: Name the member that failed; the group is broken then.
        """
        if values.shape != self._shape or values.dtype != self._dtype:
            raise ExecutionError(
                f"this all-reduce is over {self._shape[0]} elements of {self._dtype}, and the "
                f"array has shape {values.shape} of {values.dtype}"
            )
        self._call += 1
        self._peers.enter(self._call)
        try:
            self._group.allreduce([self._from_numpy(values)]).wait()
        except RuntimeError as error:
            self._peers.blame("waiting for gloo", str(error))
        self._peers.leave(self._call)

    def close(self) -> None:
        """Leaves the group."""
        self._group = None
        self._peers.close()
