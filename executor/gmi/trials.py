"""GMIs that measure ways to communicate, on the devices of those that will use them."""

import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from executor.gmi.base import GMI

CONTROL = "control"
"""The collective, one float64, at which the members of a trial meet before each measurement."""


class Trial(GMI):
    """Measures links in turns, in rounds of random order that is the same for all members.

    Settings: `links`, their names, and `seconds`, after which no round begins; one at least is run.
    """

    def rounds(self, num_rounds: int) -> Iterator[tuple[int, list[int]]]:
        """Yields number and order of the links of each round, until the time is up."""
        order = np.random.default_rng(0)
        until = time.monotonic() + self.settings["seconds"]
        for index in range(num_rounds):
            is_over = index > 0 and self.rank == 0 and time.monotonic() > until
            if self.meet(float(is_over)):
                return
            yield index, order.permutation(len(self.settings["links"])).tolist()

    def meet(self, word: float = 0.0) -> float:
        """Returns when all members are there: the sum of their words."""
        words = np.array([word])
        self.all_reduce(words, CONTROL)
        return float(words[0])


class ReduceTrial(Trial):
    """Calls every collective once per round.

    Settings: `num_elements` and `dtype` of the arrays, beside those of `Trial`.
    """

    def run(self, num_episodes: int, num_steps: int) -> npt.NDArray[np.int64]:
        """Returns int64[rounds, links, 2], when each call began and ended here."""
        links = self.settings["links"]
        values = np.zeros(self.settings["num_elements"], self.settings["dtype"])
        spans = np.zeros((num_episodes, len(links), 2), np.int64)
        done = 0
        for index, order in self.rounds(num_episodes):
            for link in order:
                self.meet()
                spans[index, link, 0] = time.monotonic_ns()
                self.all_reduce(values, links[link])
                spans[index, link, 1] = time.monotonic_ns()
            done = index + 1
        return spans[:done]


class MoveTrial(Trial):
    """Moves equal records through every channel once per round; rank 0 sends, rank 1 receives.

    Settings: `packages` in the order of the channels, `num_records` per measurement, `num_sent` per
    call of `send`, `num_received` per training batch, beside those of `Trial`.
    """

    def run(self, num_episodes: int, num_steps: int) -> npt.NDArray[np.int64]:
        """Returns int64[rounds, links, 2], when this end began and ended."""
        links, total = self.settings["links"], self.settings["num_records"]
        size = self.settings["num_sent" if self.rank == 0 else "num_received"]
        arrays = {p.name: np.zeros((size, *p.shape), p.dtype) for p in self.settings["packages"]}
        out = tuple(arrays.values())
        spans = np.zeros((num_episodes, len(links), 2), np.int64)
        done = 0
        for index, order in self.rounds(num_episodes):
            for link in order:
                self.meet()
                spans[index, link, 0] = time.monotonic_ns()
                for _ in range(total // size):
                    if self.rank == 0:
                        self.send(arrays, 0, links[link])
                    else:
                        self.receive(out, 0, links[link])
                if self.rank == 0:
                    self.flush(links[link])
                spans[index, link, 1] = time.monotonic_ns()
            done = index + 1
        return spans[:done]
