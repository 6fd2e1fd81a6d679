"""Waiting for a GPU, or for a library between processes, with a deadline: polled, never blocked on.

A member that waits inside CUDA or NCCL neither hears of a dead member nor can be stopped. So work
is started, an event or a work handle is polled, the members are watched meanwhile, and when one
fails the communicator is aborted: its kernels spin on the GPU until then.

Source: PyTorch documentation, torch.cuda.Event (`record`, `query`) and torch.distributed
(`Work.is_completed`, `Backend.abort`); NCCL user guide, error handling and communicator abort.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from executor.collectives.peers import Peers
from executor.launch.gpus import load_module

Fence = Callable[[], Callable[[], bool]]
"""fence() marks the work that was started so far; what it returns says whether that has ended."""
OpenGroup = Callable[[Any, int, int], Any]
"""open_group(store, rank, size) -> torch's process group of these members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """What opens process groups.

    Attributes:
        title: Its name, for messages.
        is_available: is_available(torch.distributed), True if this torch has it.
        prepare: Sets what it reads when it starts; raises if it refuses the members.
        open_group: Opens a group; may block while it connects.
        first: Makes a tensor of one element, for the first call.
    """

    title: str
    is_available: Callable[[Any], bool]
    prepare: Callable[[], None]
    open_group: OpenGroup
    first: Callable[[], Any]


ABORT_S = 5.0
"""An abort that takes longer is left to the end of the process."""
_aborted: list[Any] = []
"""Groups that end with the process: without an abort of the library, their end waits for calls."""


def cuda_fence() -> Callable[[], bool]:
    """Marks the work of the current stream of this thread (see `Fence`)."""
    torch: Any = load_module("torch")
    event = torch.cuda.Event()
    event.record()
    query: Callable[[], bool] = event.query
    return query


def host_fence() -> Callable[[], bool]:
    """Marks work on host memory, which has ended when its call returns (see `Fence`)."""
    return lambda: True


class PolledGroup:
    """A process group of a library, whose calls are polled while the members are watched.

    Args:
        library: Opens it.
        peers: The members; some of them belong to the group.
    """

    def __init__(self, library: Library, peers: Peers) -> None:
        self._library, self._peers = library, peers
        self._group: Any = None

    def open(self, store: Any, rank: int, size: int, deadline_ns: int) -> None:
        """Connects, and makes a first all-reduce: NCCL connects in it.

        Both may block, so a thread of its own does them; it is left behind if they never end.

        Args:
            store: Where the group's members find each other.
            rank: Of this member in the group.
            size: Members of the group.
            deadline_ns: The longest wait.

        Raises:
            WorkerDiedError, WorkerHungError, ExecutionError: As `Peers.wait_for`; or the library
                raised, and this is whose fault it is (`Peers.blame`). The group is aborted then.
        """
        first = self._library.first()
        works: list[Any] = []
        errors: list[BaseException] = []

        def connect() -> None:
            try:
                self._group = self._library.open_group(store, rank, size)
                works.append(self._group.allreduce([first]))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(
            target=connect, name=f"{self._library.title} connects", daemon=True
        )
        thread.start()
        what = f"connecting by {self._library.title}"
        with self._guarded(what):
            self._peers.wait_for(lambda: not thread.is_alive(), what, deadline_ns)
            if errors:
                raise errors[0]
            self._finish(works[0], what, deadline_ns)

    def all_reduce(self, values: Any) -> None:
        """Replaces a tensor by its sum over the group's members.

        Raises:
            WorkerDiedError, WorkerHungError, ExecutionError: As `open`.
        """
        what = f"waiting for {self._library.title}"
        with self._guarded(what):
            self._finish(self._group.allreduce([values]), what, None)

    def abort(self) -> None:
        """Stops what still runs, and leaves the group."""
        group, self._group = self._group, None
        if group is None:
            return
        _aborted.append(group)

        def stop() -> None:
            with contextlib.suppress(RuntimeError):  # a library that has no abort
                group.abort()

        thread = threading.Thread(target=stop, name=f"{self._library.title} aborts", daemon=True)
        thread.start()
        thread.join(ABORT_S)

    def _finish(self, work: Any, what: str, deadline_ns: int | None) -> None:
        self._peers.wait_for(work.is_completed, what, deadline_ns)
        work.wait()  # has ended: only raises what went wrong, and lets go of the tensors

    @contextlib.contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            self.abort()
            self._peers.blame(what, str(error))
        except BaseException:
            self.abort()
            raise
