"""Waits for the answers of several processes: messages, ends, and a look around now and then."""

import select
import selectors
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from executor.control import ControlClosedError
from executor.launch.local import WorkerProcess

LOOK_S = 0.05


def wait_for_answers(
    workers: Sequence[WorkerProcess],
    asked: Iterable[int],
    is_answer: Callable[[int, object], bool],
    on_end: Callable[[int], NoReturn],
    look: Callable[[set[int]], None],
) -> None:
    """Returns when each of `asked` has answered.

    Args:
        workers: All processes that are listened to.
        asked: Positions in `workers` that an answer is awaited from.
        is_answer: Takes a worker and its message; says whether that is the answer.
        on_end: Raises for a worker that has ended.
        look: Takes who has not answered yet; called every `LOOK_S` or a little later.
    """
    pending = set(asked)
    with selectors.DefaultSelector() as selector:
        for index, worker in enumerate(workers):
            selector.register(worker.control, selectors.EVENT_READ, index)
            selector.register(worker.pidfd, selectors.EVENT_READ, index)
        look_at = time.monotonic() + LOOK_S
        while pending:
            wait_s = max(0.0, look_at - time.monotonic())
            for index in sorted({key.data for key, _ in selector.select(wait_s)}):
                try:
                    message = _receive(workers[index])
                except ControlClosedError:
                    on_end(index)
                if message is not None and is_answer(index, message):
                    pending.discard(index)
            if pending and time.monotonic() >= look_at:
                look(pending)
                look_at = time.monotonic() + LOOK_S


def _receive(worker: WorkerProcess) -> Any:
    """Returns the message that has come, None if there is only a part of it so far."""
    # A process that it forked may hold the socket open, so the end of the process counts.
    if worker.has_ended() and not select.select([worker.control], [], [], 0)[0]:
        raise ControlClosedError
    return worker.control.receive_part()
