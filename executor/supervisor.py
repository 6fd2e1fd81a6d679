"""Waits for workers and notices when one dies, hangs, fails, or all wait for each other."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn, TypeVar

from doppler.core.errors import (
    CapacityError,
    DeadlockError,
    KernelError,
    WorkerDiedError,
    WorkerHungError,
)
from doppler.core.graph import DataflowGraph
from executor.board import Activity, BoardReader, DeviceStatus
from executor.control import ControlClosedError
from executor.deadlines import Deadlines
from executor.launch.local import WorkerProcess
from executor.messages import Blocked, Failed, NoRoom, Report
from executor.waiting import wait_for_answers

DEADLOCK_LOOKS = 3

Answer = TypeVar("Answer")


class Supervisor:
    """The parent's eye on all workers of one executor.

    Attributes:
        workers: One per device.
        failed: Devices whose worker died or hung.
    """

    def __init__(
        self,
        workers: Sequence[WorkerProcess],
        boards: Sequence[BoardReader],
        graph: DataflowGraph,
        deadlines: Deadlines,
        are_rings_empty: Callable[[], bool],
    ) -> None:
        self.workers = workers
        self.failed: set[int] = set()
        self._boards = boards
        self._graph = graph
        self._deadlines = deadlines
        self._are_rings_empty = are_rings_empty

    def send(self, messages: Mapping[int, object]) -> None:
        """Sends a message to each device.

        Raises:
            ExecutionError: If a worker is gone.
        """
        for device, message in messages.items():
            try:
                self.workers[device].control.send(message)
            except ControlClosedError:
                self._raise_gone(device)

    def collect(self, devices: Iterable[int], answer: type[Answer]) -> dict[int, Answer]:
        """Waits until each device has given its answer, outside of segments.

        Raises:
            ExecutionError: If a worker dies, fails or does not answer in time.
        """
        limit_ns = self._deadlines.policy.answer_ns
        until_ns = time.monotonic_ns() + limit_ns

        def look(pending: set[int]) -> None:
            if time.monotonic_ns() > until_ns:
                device = min(pending)
                self.failed.add(device)
                raise WorkerHungError(
                    f"{self.describe(device)} has not answered for {limit_ns / 1e9:g} s"
                )

        return self._wait(devices, answer, look)

    def collect_running(self, devices: Iterable[int], answer: type[Answer]) -> dict[int, Answer]:
        """Waits until each device has given its answer, while ops run under their deadlines.

        Raises:
            ExecutionError: If a worker dies, fails or hangs.
            CapacityError: If tensors do not fit into the memory of a device.
            DeadlockError: If nothing is in flight and work is left.
        """
        return self._wait(devices, answer, _Watch(self, self._boards, self._deadlines).look)

    def describe(self, device: int) -> str:
        """Returns device, what it runs and what it ran last, for messages."""
        worker, board = self.workers[device], self._boards[device]
        running = [self.describe_activity(a) for a in board.status().activities]
        text = f"the worker of device {worker.device.name!r} (process {worker.process.pid})"
        text += f" in {' and '.join(running)}" if running else " between ops"
        spans = [
            f"{self._graph.ops[span.op].name}@{span.iteration} "
            f"{(span.end_ns - span.start_ns) / 1e6:.3f} ms"
            for span in board.last_spans()
        ]
        return f"{text} (last spans: {', '.join(spans) or 'none'})"

    def describe_all(self) -> str:
        """Returns what every device does, for messages."""
        return "; ".join(self.describe(device) for device in range(len(self.workers)))

    def describe_activity(self, activity: Activity) -> str:
        """Returns an op and its iteration in words."""
        return f"op {self._graph.ops[activity.op].name!r} of iteration {activity.iteration}"

    def op_kind(self, op: int) -> str:
        """Returns the kind of an op."""
        return self._graph.ops[op].kind

    def has_message_in_flight(self) -> bool:
        """True if some ring holds a record that its reader has not taken."""
        return not self._are_rings_empty()

    def blocked(self, devices: Iterable[int]) -> list[str]:
        """Asks waiting workers what blocks them; one line per op."""
        devices = list(devices)
        self.send(dict.fromkeys(devices, Report()))
        answers = self.collect(devices, Blocked)
        return [
            f"{self.workers[device].device.name}: {line}"
            for device in devices
            for line in answers[device].lines
        ]

    def _wait(
        self,
        devices: Iterable[int],
        answer: type[Answer],
        look: Callable[[set[int]], None],
    ) -> dict[int, Answer]:
        answers: dict[int, Answer] = {}
        asked = set(devices)

        def is_answer(device: int, message: object) -> bool:
            if isinstance(message, Failed):
                self._raise_failed(device, message)
            if isinstance(message, NoRoom):
                name = self.workers[device].device.name
                raise CapacityError(f"{message.text} (device {name!r}, {message.what})")
            if not isinstance(message, answer) or device not in asked - answers.keys():
                raise AssertionError(f"device {device} sent {message!r} out of turn")
            answers[device] = message
            return True

        wait_for_answers(self.workers, asked, is_answer, self._raise_gone, look)
        return answers

    def _raise_failed(self, device: int, failed: Failed) -> NoReturn:
        name = self.workers[device].device.name
        summary = failed.text.strip().splitlines()[-1]
        stderr = self.workers[device].stderr_text()
        raise KernelError(
            f"code of the job raised on device {name!r} in {failed.what}: {summary}\n"
            f"{failed.text}" + (f"\nstderr of the worker:\n{stderr}" if stderr else "")
        )

    def _raise_gone(self, device: int) -> NoReturn:
        worker = self.workers[device]
        end = worker.exit_text()
        self.failed |= {d for d, w in enumerate(self.workers) if w.process is worker.process}
        stderr = worker.stderr_text()
        raise WorkerDiedError(
            f"{self.describe(device)} {end}" + (f"; stderr:\n{stderr}" if stderr else "")
        )


class _Watch:
    """Looks at the boards now and then; believes only what it has seen twice."""

    def __init__(
        self, supervisor: Supervisor, boards: Sequence[BoardReader], deadlines: Deadlines
    ) -> None:
        self._supervisor = supervisor
        self._boards = boards
        self._deadlines = deadlines
        self._last: dict[int, DeviceStatus] = {}
        self._changed_ns: dict[int, int] = {}
        self._still = 0

    def look(self, pending: set[int]) -> None:
        now = time.monotonic_ns()
        seen = {device: self._boards[device].status() for device in sorted(pending)}
        for device, status in seen.items():
            before = self._last.get(device)
            if status != before:
                self._changed_ns[device] = now
            else:
                self._check_deadline(device, status, now)
        self._check_deadlock(seen)
        self._last = seen

    def _check_deadline(self, device: int, status: DeviceStatus, now: int) -> None:
        supervisor = self._supervisor
        for activity in status.activities:
            limit_ns = self._deadlines.of(supervisor.op_kind(activity.op))
            if now - activity.start_ns > limit_ns:
                supervisor.failed.add(device)
                raise WorkerHungError(
                    f"{supervisor.describe(device)} hangs: "
                    f"{supervisor.describe_activity(activity)} has run for "
                    f"{(now - activity.start_ns) / 1e9:.1f} s, and its deadline is "
                    f"{limit_ns / 1e9:g} s"
                )
        quiet_ns = self._deadlines.policy.quiet_ns
        if not status.activities and now - self._changed_ns[device] > quiet_ns:
            supervisor.failed.add(device)
            raise WorkerHungError(
                f"{supervisor.describe(device)} hangs: it has been silent for {quiet_ns / 1e9:g} s"
            )

    def _check_deadlock(self, seen: Mapping[int, DeviceStatus]) -> None:
        """A deadlock: all turn in their wait loops, none gets on, and no message is under way."""
        is_still = all(
            status.waiting
            and not status.activities
            and device in self._last
            and status.beat != self._last[device].beat
            and status.progress == self._last[device].progress
            for device, status in seen.items()
        )
        if not is_still or self._supervisor.has_message_in_flight():
            self._still = 0
            return
        self._still += 1
        if self._still >= DEADLOCK_LOOKS:
            lines = self._supervisor.blocked(seen)
            raise DeadlockError(
                "nothing is in flight and work is left: " + ("; ".join(lines) or "no op waits")
            )
