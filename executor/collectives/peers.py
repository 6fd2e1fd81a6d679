"""The members of a collective as processes: who they are, whether they live, how to wait for them.

Shared memory holds one cache line per member with its process id, the last call that it has left,
the last that it has entered and a count of its looks at the others while it waits, and one line for
the group's state. A member that finds a peer
dead within a call, or late, marks the group as broken, so that all others stop waiting at once and
name the same peer.
"""

import mmap
import os
import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from doppler.core.errors import ExecutionError, WorkerDiedError, WorkerHungError

LINE_BYTES = 64
LINE_WORDS = LINE_BYTES // 8
DIED, HUNG = 1, 2
YIELDS_PER_LOOK = 256
DEATH_MS = 500
"""A connection breaks a moment before the kernel tells of the process."""
SILENCE_S = 0.5
"""A member that waits looks at the others many times in so long."""
GAVE_UP = -1
"""Count of looks of a member that has waited in vain and looks no more."""


def check_part(values: Any, num_elements: int, dtype: Any, what: str = "array") -> None:
    """Checks that what a member hands in is of its group's shape and type.

    Args:
        values: numpy array or torch tensor.
        num_elements: Length of every member's part.
        dtype: Its type.
        what: What it is called in the message.

    Raises:
        ExecutionError: If it is not.
    """
    if tuple(values.shape) != (num_elements,) or values.dtype != dtype:
        raise ExecutionError(
            f"this all-reduce is over {num_elements} elements of {dtype}, and the {what} has "
            f"shape {tuple(values.shape)} of {values.dtype}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitOptions:
    """How a member waits for others.

    Attributes:
        spin_ns: Polls without pause for so long; None = 20 us if every member has a core, else 0.
        yield_ns: Then gives the core away between polls for so long.
        nap_ns: Then sleeps between polls.
        deadline_ns: A member that is awaited for longer counts as hung.
        join_deadline_ns: The same for the first meeting, when processes still start.
    """

    spin_ns: int | None = None
    yield_ns: int = 2_000_000
    nap_ns: int = 50_000
    deadline_ns: int = 30_000_000_000
    join_deadline_ns: int = 120_000_000_000


def peers_bytes(num_members: int) -> int:
    """Returns the shared memory that `Peers` takes."""
    return LINE_BYTES * (num_members + 1)


class Peers:
    """One member's view of the group.

    Attributes:
        names: Name of each member, for messages.
        member: Position of this process.
    """

    def __init__(
        self,
        memory: mmap.mmap,
        base: int,
        names: Sequence[str],
        member: int,
        options: WaitOptions,
    ) -> None:
        self.names = tuple(names)
        self.member = member
        self._words = memoryview(memory).cast("q")
        self._state = base // 8
        self._pids = [self._state + LINE_WORDS * (1 + m) for m in range(len(names))]
        self._options = options
        crowded = len(names) > (os.cpu_count() or 1)
        self._spin_ns = (0 if crowded else 20_000) if options.spin_ns is None else options.spin_ns
        self._call = 0
        self._pidfds: dict[int, int] = {}
        self._poller = select.poll()

    def join(self) -> None:
        """Meets the others; returns when all are there.

        Raises:
            WorkerHungError: If some are not there before the deadline; names them.
            WorkerDiedError: If one has come and died.
        """
        self._words[self._pids[self.member]] = os.getpid()
        until_ns = time.monotonic_ns() + self._options.join_deadline_ns
        for peer, word in enumerate(self._pids):
            while self._words[word] == 0:
                if time.monotonic_ns() > until_ns:
                    missing = [m for m, w in enumerate(self._pids) if self._words[w] == 0]
                    self._break(HUNG, missing[0])
                    raise WorkerHungError(
                        f"members of a collective meet within "
                        f"{self._options.join_deadline_ns / 1e9:g} s, and "
                        f"{', '.join(repr(self.names[m]) for m in missing)} did not come"
                    )
                self._check_state("joining")
                time.sleep(self._options.nap_ns / 1e9)
            if peer != self.member:
                self._watch(peer, int(self._words[word]))

    def enter(self, call: int) -> None:
        """Says which call this member is in; who has left it may end without harm."""
        self._call = call
        self._words[self._pids[self.member] + 2] = call

    def leave(self, call: int) -> None:
        """Says that this member needs nothing more of a call."""
        self._words[self._pids[self.member] + 1] = call

    def wait_entered(self, peer: int, call: int) -> None:
        """Returns when a member has entered a call.

        Raises:
            WorkerDiedError, WorkerHungError: As `wait`.
        """
        self.wait(self._pids[peer] + 2, call, peer, f"waiting for {self.names[peer]!r}")

    def wait(self, word: int, value: int, peer: int, what: str) -> None:
        """Returns when the 64-bit word at position `word` is at least `value`.

        Args:
            word: Position in the shared memory, in words.
            value: Awaited value.
            peer: Who will store it.
            what: What is awaited, in words.

        Raises:
            WorkerDiedError: If a member has died; names it.
            WorkerHungError: If the deadline has passed; names the awaited member.
        """
        words = self._words
        if words[word] >= value:
            return
        start_ns = time.monotonic_ns()
        until_ns = start_ns + self._spin_ns
        while words[word] < value:
            if time.monotonic_ns() >= until_ns:
                break
        else:
            return
        until_ns += self._options.yield_ns
        while True:
            for _ in range(YIELDS_PER_LOOK):
                if words[word] >= value:
                    return
                os.sched_yield()
            if time.monotonic_ns() >= until_ns:
                break
        self._nap_until(word, value, peer, what, start_ns)

    def wait_for(
        self, is_done: Callable[[], bool], what: str, deadline_ns: int | None = None
    ) -> None:
        """Returns when something is done that other members take part in.

        Args:
            is_done: Says so at once, without waiting.
            what: What is awaited, in words.
            deadline_ns: The longest wait; None = that of the options.

        Raises:
            WorkerDiedError: If a member has died; names it.
            WorkerHungError: If the deadline has passed and a member has not come, or has come and
                does not wait as this one does; names it.
            ExecutionError: If the deadline has passed and all wait.
        """
        limit_ns = self._options.deadline_ns if deadline_ns is None else deadline_ns
        start_ns = time.monotonic_ns()
        spin_until_ns = start_ns + self._spin_ns
        yield_until_ns = spin_until_ns + self._options.yield_ns
        while not is_done():
            now_ns = time.monotonic_ns()
            if now_ns < spin_until_ns:
                continue
            if now_ns < yield_until_ns:
                os.sched_yield()
                continue
            self._look_at_peers(what)
            if now_ns - start_ns > limit_ns:
                self._blame_silent(what)
                self.blame(what, f"it was not done within {limit_ns / 1e9:g} s")
            time.sleep(self._options.nap_ns / 1e9)

    def has_entered(self, peer: int, call: int) -> bool:
        """Returns True if a member has entered a call."""
        return int(self._words[self._pids[peer] + 2]) >= call

    def has_left(self, peer: int, call: int) -> bool:
        """Returns True if a member has left a call."""
        return int(self._words[self._pids[peer] + 1]) >= call

    def blame(self, what: str, reason: str) -> NoReturn:
        """Says whose fault it is that a call of another library has failed or timed out.

        Args:
            what: What this member was doing, in words.
            reason: What the library said.

        Raises:
            WorkerDiedError: If a member has died; names it.
            WorkerHungError: If a member has not come to the call; names it.
            ExecutionError: If all live and have come.
        """
        self._check_state(what)
        for pidfd, _ in self._poller.poll(DEATH_MS):
            dead = self._pidfds[pidfd]
            if self._words[self._pids[dead] + 1] < self._call:
                self._break(DIED, dead)
                self._check_state(what)
        late = [m for m, word in enumerate(self._pids) if self._words[word + 2] < self._call]
        if late:
            self._break(HUNG, late[0])
            self._check_state(what)
        raise ExecutionError(f"{self.names[self.member]!r} was {what}, and it failed: {reason}")

    def close(self) -> None:
        """Releases the descriptors and the view of the shared memory."""
        for pidfd in self._pidfds:
            os.close(pidfd)
        self._pidfds.clear()
        self._words.release()

    def _nap_until(self, word: int, value: int, peer: int, what: str, start_ns: int) -> None:
        nap_s = self._options.nap_ns / 1e9
        while self._words[word] < value:
            self._look_at_peers(what)
            if time.monotonic_ns() - start_ns > self._options.deadline_ns:
                self._break(HUNG, peer)
                self._check_state(what)
            time.sleep(nap_s)

    def _look_at_peers(self, what: str) -> None:
        """Raises if the group is broken or a member has died within the call."""
        self._words[self._pids[self.member] + 3] += 1
        self._check_state(what)
        for pidfd, _ in self._poller.poll(0):
            dead = self._pidfds[pidfd]
            if self._words[self._pids[dead] + 1] >= self._call:  # it had done its part
                continue
            self._break(DIED, dead)
            self._check_state(what)

    def _blame_silent(self, what: str) -> None:
        """Raises if a member is in the call and neither waits nor has waited in vain."""
        self._words[self._pids[self.member] + 3] = GAVE_UP
        self._check_state(what)
        before = {peer: int(self._words[word + 3]) for peer, word in enumerate(self._pids)}
        time.sleep(SILENCE_S)
        self._check_state(what)
        for peer, word in enumerate(self._pids):
            in_call = self.has_entered(peer, self._call) and not self.has_left(peer, self._call)
            if in_call and int(self._words[word + 3]) == before[peer] != GAVE_UP:
                self._break(HUNG, peer)
                self._check_state(what)

    def _watch(self, peer: int, pid: int) -> None:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._break(DIED, peer)
            self._check_state("joining")
            return
        self._pidfds[pidfd] = peer
        self._poller.register(pidfd, select.POLLIN)

    def _break(self, how: int, peer: int) -> None:
        if self._words[self._state] == 0:
            self._words[self._state] = how | (peer + 1) << 8

    def _check_state(self, what: str) -> None:
        state = int(self._words[self._state])
        if state == 0:
            return
        peer = (state >> 8) - 1
        pid = int(self._words[self._pids[peer]])
        where = f"member {self.names[peer]!r} of a collective (process {pid})"
        mine = f"{self.names[self.member]!r} was {what}"
        if state & 0xFF == DIED:
            raise WorkerDiedError(f"{where} has died, and {mine}")
        raise WorkerHungError(
            f"{where} did not do its part within {self._options.deadline_ns / 1e9:g} s, and {mine}"
        )


def check_names(names: Sequence[str], num_members: int) -> None:
    """Checks that there is one name per member.

    Raises:
        ExecutionError: Says how many there are.
    """
    if len(names) != num_members:
        raise ExecutionError(
            f"a collective has one name per member ({num_members}), and it got {len(names)}"
        )
