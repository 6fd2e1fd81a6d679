"""Where kernels run: in the worker's own loop, or on a thread per stream."""

import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from doppler.core.dispatcher import RunOp
from doppler.core.errors import CapacityError
from executor.board import BoardWriter
from executor.workers.bound_op import Call


class OpError(Exception):
    """Raised in a worker when an op has failed; carries the reason as text."""

    def __init__(self, op: int, iteration: int, text: str) -> None:
        super().__init__(text)
        self.op = op
        self.iteration = iteration
        self.text = text


class JobCodeError(OpError):
    """Raised in a worker when code of the job raised; carries the traceback as text."""


class NoRoomError(OpError):
    """Raised in a worker when the tensors of an op do not fit; carries bytes and device as text."""


# Command, iteration over the job's life, kernel, inputs, outputs: a plain tuple, because one is
# made for every op.
KernelCall = tuple[RunOp, int, Call, Sequence[Any], Sequence[np.ndarray]]
Completion = tuple[RunOp, int, int]  # command, start, end


class Runner(Protocol):
    """Runs kernel calls; at most one per stream at a time."""

    def start(self, call: KernelCall) -> None:
        """Starts a call on the stream of its command."""
        ...

    def take(self) -> Sequence[Completion]:
        """Returns the calls that have ended since the last time.

        Raises:
            OpError: If an op has failed.
        """
        ...

    def close(self) -> None:
        """Ends what the runner has started."""
        ...


class InlineRunner:
    """Runs a kernel at once in the caller's thread; for devices with one stream."""

    def __init__(self, board: BoardWriter) -> None:
        self._board = board
        self._completed: list[Completion] = []

    def start(self, call: KernelCall) -> None:
        """Runs the kernel and returns when it has ended."""
        self._completed.append(_execute(call, self._board))

    def take(self) -> Sequence[Completion]:
        """Returns the calls that have ended since the last time."""
        completed = self._completed
        if completed:
            self._completed = []
        return completed

    def close(self) -> None:
        """Does nothing."""


class ThreadRunner:
    """Runs every stream on a thread of its own; kernels overlap where they release the GIL."""

    def __init__(self, board: BoardWriter, num_streams: int) -> None:
        self._board = board
        self._completed: deque[Completion | OpError] = deque()
        self._calls: list[queue.SimpleQueue[KernelCall | None]] = [
            queue.SimpleQueue() for _ in range(num_streams)
        ]
        self._threads = [
            threading.Thread(target=self._serve, args=(calls,), daemon=True)
            for calls in self._calls
        ]
        for thread in self._threads:
            thread.start()

    def start(self, call: KernelCall) -> None:
        """Hands the call to the thread of its stream."""
        self._calls[call[0].stream].put(call)

    def take(self) -> Sequence[Completion]:
        """Returns the calls that have ended since the last time."""
        completions: list[Completion] = []
        while self._completed:
            item = self._completed.popleft()
            if isinstance(item, OpError):
                raise item
            completions.append(item)
        return completions

    def close(self) -> None:
        """Ends the threads."""
        for calls in self._calls:
            calls.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self, calls: "queue.SimpleQueue[KernelCall | None]") -> None:
        while (call := calls.get()) is not None:
            try:
                self._completed.append(_execute(call, self._board))
            except OpError as error:
                self._completed.append(error)


def _execute(call: KernelCall, board: BoardWriter) -> Completion:
    command, iteration, kernel, inputs, outputs = call
    start_ns = time.monotonic_ns()
    board.begin(command.stream, command.op, iteration, start_ns)
    try:
        kernel(iteration, inputs, outputs)
    except CapacityError as error:
        raise NoRoomError(command.op, iteration, str(error)) from error
    except Exception as error:
        raise JobCodeError(command.op, iteration, traceback.format_exc()) from error
    return command, start_ns, time.monotonic_ns()
