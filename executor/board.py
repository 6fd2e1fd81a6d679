"""The board: what every worker is doing now, in shared memory, so that a dead one can be told of.

Per device: a header (waiting flag, beat, progress, spans written), one line per stream (op + 1 or
0, iteration, start), and the last spans (op, iteration, start, end). A worker writes its own part
only; the parent reads all. A read may fall between two stores, so the parent believes what it has
read twice.
"""

import mmap
import struct
from dataclasses import dataclass

WORD_BYTES = 8
HEADER_WORDS = 8
LINE_WORDS = 4
NUM_LAST_SPANS = 8
WAITING, BEAT, PROGRESS, NUM_SPANS = range(4)

_LINE = struct.Struct("=qqq")
_SPAN = struct.Struct("=qqqq")


def board_bytes(num_streams: int) -> int:
    """Returns the shared memory that the board of one device takes."""
    words = HEADER_WORDS + LINE_WORDS * (num_streams + NUM_LAST_SPANS)
    return -(-words * WORD_BYTES // 64) * 64


@dataclass(frozen=True, slots=True)
class Activity:
    """One op that a stream runs now; times on the host's monotonic clock."""

    op: int
    iteration: int
    start_ns: int


@dataclass(frozen=True, slots=True)
class LastSpan:
    """One op that a device has run; times on the host's monotonic clock."""

    op: int
    iteration: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """What the board says of one device at one moment.

    Attributes:
        waiting: True if nothing runs and the worker waits for messages.
        beat: Changes whenever the worker's loop turns.
        progress: Changes whenever the worker starts an op or takes a message; current if waiting.
        num_spans: Ops that have ended.
        activities: Ops that run now, by stream.
    """

    waiting: bool
    beat: int
    progress: int
    num_spans: int
    activities: tuple[Activity, ...]


class BoardWriter:
    """A worker's own part of the board."""

    def __init__(self, memory: mmap.mmap, base: int, num_streams: int) -> None:
        self._memory = memory
        self._words = memoryview(memory).cast("q")
        self._first = base // WORD_BYTES
        self._lines = base + HEADER_WORDS * WORD_BYTES
        self._spans = self._lines + num_streams * LINE_WORDS * WORD_BYTES
        self._num_spans = 0
        self._beat = 0

    def begin(self, stream: int, op: int, iteration: int, start_ns: int) -> None:
        """Says that a stream enters the kernel of an op."""
        position = self._lines + stream * LINE_WORDS * WORD_BYTES
        _LINE.pack_into(self._memory, position, op + 1, iteration, start_ns)

    def end(self, stream: int, op: int, iteration: int, start_ns: int, end_ns: int) -> None:
        """Says that the kernel has returned, and keeps its span."""
        number = self._num_spans
        position = self._spans + (number % NUM_LAST_SPANS) * LINE_WORDS * WORD_BYTES
        _SPAN.pack_into(self._memory, position, op, iteration, start_ns, end_ns)
        self._num_spans = number + 1
        self._words[self._first + NUM_SPANS] = number + 1
        line = (self._lines + stream * LINE_WORDS * WORD_BYTES) // WORD_BYTES
        self._words[line] = 0

    def wait(self, progress: int) -> None:
        """Says that the worker waits for messages, with all that it has done so far."""
        self._beat += 1
        words, first = self._words, self._first
        words[first + PROGRESS] = progress
        words[first + BEAT] = self._beat
        words[first + WAITING] = 1

    def go_on(self) -> None:
        """Says that the worker waits no more."""
        self._words[self._first + WAITING] = 0


class BoardReader:
    """The parent's view of one device's part."""

    def __init__(self, memory: mmap.mmap, base: int, num_streams: int) -> None:
        self._memory = memory
        self._words = memoryview(memory).cast("q")
        self._first = base // WORD_BYTES
        self._num_streams = num_streams
        self._lines = base + HEADER_WORDS * WORD_BYTES
        self._spans = self._lines + num_streams * LINE_WORDS * WORD_BYTES

    def close(self) -> None:
        """Lets go of the memory; nothing can be read any more."""
        self._words.release()
        del self._memory

    def status(self) -> DeviceStatus:
        """Returns what the device does now."""
        activities: list[Activity] = []
        for stream in range(self._num_streams):
            position = self._lines + stream * LINE_WORDS * WORD_BYTES
            op, iteration, start_ns = _LINE.unpack_from(self._memory, position)
            if op:
                activities.append(Activity(op - 1, iteration, start_ns))
        words, first = self._words, self._first
        return DeviceStatus(
            waiting=bool(words[first + WAITING]),
            beat=words[first + BEAT],
            progress=words[first + PROGRESS],
            num_spans=words[first + NUM_SPANS],
            activities=tuple(activities),
        )

    def last_spans(self) -> tuple[LastSpan, ...]:
        """Returns the last spans of the device, oldest first."""
        count = self._words[self._first + NUM_SPANS]
        spans: list[LastSpan] = []
        for number in range(max(0, count - NUM_LAST_SPANS), count):
            position = self._spans + (number % NUM_LAST_SPANS) * LINE_WORDS * WORD_BYTES
            spans.append(LastSpan(*_SPAN.unpack_from(self._memory, position)))
        return tuple(spans)
