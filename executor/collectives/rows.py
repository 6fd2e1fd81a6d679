"""All-reduce over rows that every member can read: CUDA IPC and symmetric memory.

Each member has two rows, used in turns. In call g it copies its array into row g mod 2, says so,
waits for all others, and adds all rows in the order of the members, so every member gets the same
bits. A row is written again in call g + 2, when all have said that they are in g + 1, and so have
read the rows of g. On a GPU *not yet run on hardware*; the same steps run on host memory in the
tests.

Source: CUDA runtime API, interprocess communication; PyTorch documentation, torch.multiprocessing
(sharing CUDA tensors) and torch.distributed._symmetric_memory (`empty`, `rendezvous`,
`get_buffer`), 2.11 to 2.15.
"""

import os
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from doppler.core.errors import ExecutionError
from executor.channels import check_memory_order
from executor.collectives.peers import check_part
from executor.collectives.polled import Fence
from executor.collectives.process_group import Meeting, ProcessGroupAllReduce
from executor.launch.gpus import load_module

Store = Any
OpenRows = Callable[[Store, int, int], Sequence[Any]]
"""open_rows(store, member, num_members) -> every member's rows, tensors [2, num_elements]."""
OVERLAP_VARIABLE = "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"
"""Every worker calls its GPU cuda:0, which torch takes for one device that is used twice."""
_rows_here: dict[int, Any] = {}
"""Rows that this process has shared, by identity; they live as long as it: others map them."""


class RowsAllReduce(ProcessGroupAllReduce):
    """One member's end of an all-reduce over rows.

    Args:
        open_rows: Makes this member's rows and opens those of the others.
        fence: Marks the work on the rows that was started so far.
        meeting: Where the members meet.

    Raises:
        ExecutionError: If the machine's store order does not suffice, or torch has no stores.
    """

    def __init__(self, open_rows: OpenRows, fence: Fence, meeting: Meeting) -> None:
        check_memory_order()
        super().__init__("shared rows", lambda _: True, meeting)
        self._open_rows, self._fence = open_rows, fence

    def all_reduce(self, values: Any) -> None:
        """Replaces `values` by the sum over all members.

        Args:
            values: Tensor [num_elements] where the rows are.

        Raises:
            ExecutionError: If shape or type differ from the group's.
            WorkerDiedError, WorkerHungError: Name the member that failed; the group is broken then.
        """
        own = self._group[self._peers.member]
        check_part(values, own.shape[1], own.dtype, "tensor")
        turn = (self._call + 1) % 2
        own[turn].copy_(values)
        self._finish("copying to its row")
        # Entering the call says that the row is written.
        self._together(lambda: self._add_up(values, turn), "waiting for shared rows")

    def _open(self, store: Store, member: int, size: int) -> Sequence[Any]:
        return self._open_rows(store, member, size)

    def _add_up(self, values: Any, turn: int) -> None:
        for member in range(len(self._group)):
            self._peers.wait_entered(member, self._call)
        values.copy_(self._group[0][turn])
        for row in self._group[1:]:
            values.add_(row[turn])
        self._finish("adding rows")

    def _finish(self, what: str) -> None:
        self._peers.wait_for(self._fence(), what)


def cuda_ipc_rows(num_elements: int, dtype: str, device: str) -> OpenRows:
    """Returns what opens rows by CUDA IPC: every member maps the memory of the others.

    Handles go through the store as pickles between processes of one run, one per reader, because
    torch counts who has opened it. A process cannot map its own memory: members that share one
    (green contexts) hand each other the tensor.
    """

    def open_rows(store: Store, member: int, num_members: int) -> list[Any]:
        torch: Any = load_module("torch")
        reductions: Any = load_module("torch.multiprocessing.reductions")
        own = torch.empty((2, num_elements), dtype=getattr(torch, dtype), device=device)
        others = [other for other in range(num_members) if other != member]
        _rows_here[id(own)] = own
        for other in others:
            handle = pickle.dumps(reductions.reduce_tensor(own))
            store.set(f"{member} to {other}", pickle.dumps((os.getpid(), id(own), handle)))
        rows = {member: own}
        for other in others:
            pid, key, handle = pickle.loads(store.get(f"{other} to {member}"))
            if pid == os.getpid():
                rows[other] = _rows_here[key]
            else:
                rebuild, arguments = pickle.loads(handle)
                rows[other] = rebuild(*arguments)
        return [rows[other] for other in range(num_members)]

    return open_rows


def symmetric_rows(num_elements: int, dtype: str, device: str) -> OpenRows:
    """Returns what opens rows in torch's symmetric memory."""

    def open_rows(store: Store, member: int, num_members: int) -> list[Any]:
        os.environ[OVERLAP_VARIABLE] = "1"
        torch: Any = load_module("torch")
        distributed: Any = load_module("torch.distributed")
        symmetric: Any = load_module("torch.distributed._symmetric_memory")
        if distributed.is_initialized():
            raise ExecutionError(
                "a GMI has one collective by symmetric memory, and this is another"
            )
        distributed.init_process_group(
            "gloo", store=store, rank=member, world_size=num_members, timeout=store.timeout
        )
        kind = getattr(torch, dtype)
        own = symmetric.empty((2, num_elements), dtype=kind, device=device)
        handle = symmetric.rendezvous(own, distributed.group.WORLD)
        return [handle.get_buffer(m, (2, num_elements), kind) for m in range(num_members)]

    return open_rows
