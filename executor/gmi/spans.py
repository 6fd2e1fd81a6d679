"""What a GMI did when: spans of its methods and of its uses of links, on the monotonic clock."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import numpy as np
import numpy.typing as npt

RUN, TRAIN, COLLECTIVE = range(3)
METHODS = ("run", "train", "collective")
FIRST_LINK = len(METHODS)
MAX_SPANS = 100_000
"""Spans that a GMI keeps, the newest; 3.2 MB."""


class SpanLog:
    """Spans of one GMI; its threads may add to it together.

    A span's kind is a position in `METHODS`, or `FIRST_LINK` plus the position of a link.

    Attributes:
        num_dropped: Spans that were too many to keep, the oldest.
    """

    def __init__(self) -> None:
        self.num_dropped = 0
        self._calls: dict[int, int] = {}
        self._spans: deque[tuple[int, int, int, int]] = deque(maxlen=MAX_SPANS)
        self._lock = threading.Lock()

    @contextmanager
    def span(self, kind: int) -> Iterator[None]:
        """Writes down what happens inside, also if it raises."""
        with self._lock:
            call = self._calls.get(kind, 0)
            self._calls[kind] = call + 1
        start_ns = time.monotonic_ns()
        try:
            yield
        finally:
            with self._lock:
                self.num_dropped += len(self._spans) == MAX_SPANS
                self._spans.append((kind, call, start_ns, time.monotonic_ns()))

    def wrapped(self, kind: int, method: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a method every call of which is written down."""

        @wraps(method)
        def call(*arguments: Any, **named: Any) -> Any:
            with self.span(kind):
                return method(*arguments, **named)

        return call

    def array(self) -> npt.NDArray[np.int64]:
        """Returns int64[spans, 4]: kind, call (from 0 per kind), start_ns, end_ns; by end."""
        with self._lock:
            return np.array(self._spans, dtype=np.int64).reshape(-1, 4)
