"""What each GMI does now, in shared memory, so that a dead or hung one can be told of.

A GMI writes its own line only: steps taken, whether it waits for others, which link it uses and how
often it has used it. Within a wait the line changes only with what comes of it (batches).
"""

import mmap
from dataclasses import dataclass

from executor.gmi.communication import LINE_WORDS, Communication

STEPS, WAITS, LINK, CALLS = range(4)


@dataclass(frozen=True, slots=True)
class Status:
    """One line.

    Attributes:
        steps: Grows with every use of a link, every batch of one, and every report.
        waits: True within a link, where others may be waited for.
        link: Position of the link that is, or was last, used; -1 before the first.
        calls: Uses of links so far.
    """

    steps: int
    waits: bool
    link: int
    calls: int


class StatusBoard:
    """All lines; `gmi_id` is the one that this process may write, None in the parent."""

    def __init__(self, memory: mmap.mmap, gmi_id: int | None = None) -> None:
        self._words = memoryview(memory).cast("q")
        self._first = -1 if gmi_id is None else gmi_id * LINE_WORDS

    def enter(self, link: int) -> None:
        """Says that this GMI begins to use a link."""
        words, first = self._words, self._first
        words[first + LINK] = link + 1
        words[first + CALLS] += 1
        words[first + STEPS] += 1
        words[first + WAITS] = 1

    def leave(self) -> None:
        """Says that it goes on with its own work."""
        self._words[self._first + WAITS] = 0
        self._words[self._first + STEPS] += 1

    def step(self) -> None:
        """Says that it lives."""
        self._words[self._first + STEPS] += 1

    def read(self, gmi_id: int) -> Status:
        """Returns the line of a GMI."""
        first = gmi_id * LINE_WORDS
        line = self._words[first : first + LINE_WORDS]
        return Status(int(line[STEPS]), bool(line[WAITS]), int(line[LINK]) - 1, int(line[CALLS]))

    def describe(self, gmi_id: int, communication: Communication) -> str:
        """Returns what a GMI does, in words."""
        status = self.read(gmi_id)
        if status.link < 0:
            return "before its first communication"
        name = communication.links[status.link].name
        where = "in" if status.waits else "after"
        return f"{where} {name!r}, call {status.calls} of all its links"

    def close(self) -> None:
        """Lets go of the shared memory."""
        self._words.release()
