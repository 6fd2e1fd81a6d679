"""GMIs that measure ways to communicate, on the devices of those that will use them."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from executor.gmi.base import GMI
from executor.host import waited_ns

CONTROL = "control"
"""The collective, one float64, at which the members of a trial meet before each measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """What one member has measured in a run.

    Attributes:
        spans: int64[rounds, links, 2], when each call began and ended here.
        scheduled: int64[rounds, 3], how long each round took here, and for how long of that the
            member was on a core and was kept waiting for one, in ns.
    """

    spans: npt.NDArray[np.int64]
    scheduled: npt.NDArray[np.int64]


def _clocks_ns() -> tuple[int, int, int]:
    return time.monotonic_ns(), time.thread_time_ns(), waited_ns()


class Trial(GMI):
    """Measures links in turns, in rounds of random order that is the same for all members.

    It can be run again and again. Settings: `links`, their names, and `seconds`, after which no
    round of a run begins; one at least is run.
    """

    def setup(self) -> None:
        """Begins the orders of rounds, which go on from run to run."""
        self._order = np.random.default_rng(0)

    def run(self, num_episodes: int, num_steps: int) -> Timed:
        """Returns the times of `num_episodes` rounds, fewer if the time is up."""
        links = self.settings["links"]
        spans = np.zeros((num_episodes, len(links), 2), np.int64)
        scheduled = np.zeros((num_episodes, 3), np.int64)
        done = 0
        for index, order in self.rounds(num_episodes):
            before = _clocks_ns()
            for link in order:
                self.meet()
                spans[index, link, 0] = time.monotonic_ns()
                self.use(links[link])
                spans[index, link, 1] = time.monotonic_ns()
            scheduled[index] = np.subtract(_clocks_ns(), before)
            done = index + 1
        return Timed(spans=spans[:done], scheduled=scheduled[:done])

    def use(self, link: str) -> None:
        """Does what is timed, once."""
        raise NotImplementedError

    def rounds(self, num_rounds: int) -> Iterator[tuple[int, list[int]]]:
        """Yields number and order of the links of each round, until the time is up."""
        until = time.monotonic() + self.settings["seconds"]
        for index in range(num_rounds):
            is_over = index > 0 and self.rank == 0 and time.monotonic() > until
            if self.meet(float(is_over)):
                return
            yield index, self._order.permutation(len(self.settings["links"])).tolist()

    def meet(self, word: float = 0.0) -> float:
        """Returns when all members are there: the sum of their words."""
        words = np.array([word])
        self.all_reduce(words, CONTROL)
        return float(words[0])


class ReduceTrial(Trial):
    """Calls every collective once per round.

    Settings: `num_elements` and `dtype` of the arrays, beside those of `Trial`.
    """

    def setup(self) -> None:
        """Makes the array."""
        super().setup()
        self._values = np.zeros(self.settings["num_elements"], self.settings["dtype"])

    def use(self, link: str) -> None:
        """All-reduces the array."""
        self.all_reduce(self._values, link)


class MoveTrial(Trial):
    """Moves equal records through every channel once per round; rank 0 sends, rank 1 receives.

    Settings: `packages` in the order of the channels, `num_records` per measurement, `num_sent` per
    call of `send`, `num_received` per training batch, beside those of `Trial`.
    """

    def setup(self) -> None:
        """Makes the records of a call."""
        super().setup()
        self._size = self.settings["num_sent" if self.rank == 0 else "num_received"]
        packages = self.settings["packages"]
        self._arrays = {p.name: np.zeros((self._size, *p.shape), p.dtype) for p in packages}

    def use(self, link: str) -> None:
        """Sends or receives all records."""
        out = tuple(self._arrays.values())
        for _ in range(self.settings["num_records"] // self._size):
            if self.rank == 0:
                self.send(self._arrays, 0, link)
            else:
                self.receive(out, 0, link)
        if self.rank == 0:
            self.flush(link)
