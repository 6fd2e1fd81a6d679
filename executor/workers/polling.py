"""How a worker waits: polling without pause for a while, then with naps."""

import ctypes
import time
from collections.abc import Callable

from doppler.core.errors import ExecutionError

PR_SET_TIMERSLACK = 29
TURNS_PER_LOOK = 64


class Poll:
    """The waiting side of a poll loop.

    Args:
        spin_ns: Polls without pause for so long: the shortest latency, at the price of a busy core.
        sleep_ns: Length of a nap after that.
        look: Called every `TURNS_PER_LOOK` naps, to answer the parent.
    """

    def __init__(self, spin_ns: int, sleep_ns: int, look: Callable[[], None]) -> None:
        self._spin_ns = spin_ns
        self._sleep_s = sleep_ns / 1e9
        self._look = look
        self._until_ns = 0
        self._naps = 0

    def reset(self) -> None:
        """Says that something has happened: polling starts without pause again."""
        self._until_ns = 0

    def pause(self) -> None:
        """Returns when it is time to poll again."""
        now = time.monotonic_ns()
        if self._until_ns == 0:
            self._until_ns = now + self._spin_ns
        if now < self._until_ns:
            return
        time.sleep(self._sleep_s)
        self._naps += 1
        if self._naps % TURNS_PER_LOOK == 0:
            self._look()


def shorten_naps() -> None:
    """Asks the kernel to end sleeps of this thread on time (it may add 50 us otherwise).

    Raises:
        ExecutionError: If the kernel refuses.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0) != 0:
        raise ExecutionError(
            f"the timer slack of a worker is 1 ns, and prctl says {ctypes.get_errno()}"
        )
