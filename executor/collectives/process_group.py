"""What all-reduces whose members meet through torch share: meeting, calls, and who is to blame.

Only torch knows these groups, so it is loaded when one is opened. Who dies or does not come is
named by the group's own lines in shared memory, because torch only says that a connection broke.

Source: PyTorch documentation, torch.distributed (back ends, stores).
"""

import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from doppler.core.errors import ExecutionError
from executor.collectives.peers import Peers, WaitOptions
from executor.launch.gpus import load_module


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where one member meets the others.

    Attributes:
        memory: Shared memory of the members.
        base: First byte of this group's `peers_bytes` in it.
        member: Position of this process.
        names: Name of each member.
        store: File through which the members find each other, with a name for this group.
        options: How members are waited for.
    """

    memory: mmap.mmap
    base: int = 0
    member: int
    names: Sequence[str]
    store: tuple[str, str]
    options: WaitOptions = field(default_factory=WaitOptions)


class ProcessGroupAllReduce:
    """One member's end; a back end opens the group and adds up one array.

    Args:
        back_end: Its name, for messages.
        is_available: True if torch has the back end.
        meeting: Where the members meet.

    Raises:
        ExecutionError: If torch is built without the back end.
    """

    def __init__(
        self, back_end: str, is_available: Callable[[Any], bool], meeting: Meeting
    ) -> None:
        self._back_end = back_end
        self._torch: Any = load_module("torch")
        self._distributed: Any = load_module("torch.distributed")
        if self._distributed is None or not is_available(self._distributed):
            raise ExecutionError(
                f"this torch is built without what an all-reduce by {back_end} needs"
            )
        self._prepare()
        options = meeting.options
        self._timeout = timedelta(microseconds=options.deadline_ns / 1000)
        self._join_deadline_ns = options.join_deadline_ns
        self._peers = Peers(meeting.memory, meeting.base, meeting.names, meeting.member, options)
        self._store = meeting.store
        self._group: Any = None
        self._call = 0

    def join(self) -> None:
        """Meets the other members and opens the group, which counts as the first call.

        Raises:
            WorkerHungError, WorkerDiedError: As `Peers.join`; or as a call.
            ExecutionError: If all are there and the group cannot be opened.
        """
        self._peers.join()

        def open_group() -> None:
            distributed, (path, name) = self._distributed, self._store
            store = distributed.PrefixStore(name, distributed.FileStore(path, -1))
            store.set_timeout(self._timeout)
            self._group = self._open(store, self._peers.member, len(self._peers.names))

        self._together(open_group, f"opening {self._back_end}")

    def close(self) -> None:
        """Leaves the group."""
        self._group = None
        self._peers.close()

    def _prepare(self) -> None:
        """What the back end needs before anything of the group is open; it may refuse."""

    def _open(self, store: Any, member: int, size: int) -> Any:
        """Returns the group that the members have met in."""
        raise NotImplementedError(f"{type(self).__name__} opens its own group")

    def _together(self, act: Callable[[], None], what: str, num_calls: int = 1) -> None:
        """Does something among all members; names the member that fails.

        Args:
            act: This member's part.
            what: That in words.
            num_calls: Numbers of calls that it takes; `act` may enter the later ones itself.
        """
        call = self._call + 1
        self._call += num_calls
        self._peers.enter(call)
        try:
            act()
        except RuntimeError as error:
            self._peers.blame(what, str(error))
        self._peers.leave(self._call)
