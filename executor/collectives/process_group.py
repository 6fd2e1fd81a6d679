"""What all-reduces by a process group of torch share: meeting, calls, and who is to blame.

Only torch knows these groups, so it is loaded when one is opened. Who dies or does not come is
named by the group's own lines in shared memory, because torch only says that a connection broke.

Source: PyTorch documentation, torch.distributed (back ends, stores).
"""

import mmap
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from doppler.core.errors import ExecutionError
from executor.collectives.peers import Peers, WaitOptions, check_names
from executor.launch.gpus import load_module


class ProcessGroupAllReduce:
    """One member's end; a back end opens the group and adds up one array.

    Args:
        back_end: Its name, for messages.
        is_available: True if torch has the back end.
        memory: Shared memory of the members.
        base: First byte of this group's `peers_bytes` in it.
        member: Position of this process.
        names: Name of each member.
        store: File through which the members find each other, with a name for this group.
        options: How members are waited for.

    Raises:
        ExecutionError: If names do not fit or torch is built without the back end.
    """

    def __init__(
        self,
        back_end: str,
        is_available: Callable[[Any], bool],
        memory: mmap.mmap,
        base: int,
        member: int,
        names: Sequence[str],
        store: tuple[str, str],
        options: WaitOptions | None = None,
    ) -> None:
        check_names(names, len(names))
        self._back_end = back_end
        self._torch: Any = load_module("torch")
        self._distributed: Any = load_module("torch.distributed")
        if self._distributed is None or not is_available(self._distributed):
            raise ExecutionError(
                f"an all-reduce by {back_end} needs a torch that is built with {back_end}"
            )
        self._prepare()
        options = options or WaitOptions()
        self._timeout = timedelta(microseconds=options.deadline_ns / 1000)
        self._peers = Peers(memory, base, names, member, options)
        self._store = store
        self._group: Any = None
        self._call = 0

    def join(self) -> None:
        """Meets the other members and opens the group.

        Raises:
            WorkerHungError, WorkerDiedError: As `Peers.join`.
        """
        self._peers.join()
        distributed, (path, name) = self._distributed, self._store
        store = distributed.PrefixStore(name, distributed.FileStore(path, -1))
        self._group = self._open(store, self._peers.member, len(self._peers.names))

    def close(self) -> None:
        """Leaves the group."""
        self._group = None
        self._peers.close()

    def _prepare(self) -> None:
        """What the back end needs before anything of the group is open; it may refuse."""

    def _open(self, store: Any, member: int, size: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__} opens its own group")

    def _reduce(self, add_up: Callable[[], None]) -> None:
        """Runs one call among all members; names the member that fails."""
        self._call += 1
        self._peers.enter(self._call)
        try:
            add_up()
        except RuntimeError as error:
            self._peers.blame(f"waiting for {self._back_end}", str(error))
        self._peers.leave(self._call)
