"""The loop of a worker: poll, post, dispatch, run; until everything has drained."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from doppler.core.dispatcher import (
    Command,
    CreditArrived,
    Dispatcher,
    FreeTensor,
    OpDone,
    ReturnCredit,
    RunOp,
    SendTensor,
    TensorArrived,
    TensorSent,
)
from doppler.core.program import Program
from executor.board import BoardWriter
from executor.channels import CREDIT, TENSOR, RingReader, RingWriter
from executor.messages import SegmentDone
from executor.workers.bound_op import BoundOp
from executor.workers.polling import Poll
from executor.workers.runners import Runner


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTables:
    """What a segment runs; fixed while it runs.

    Attributes:
        program: Tables of graph and plan.
        device: Device id.
        first_iteration: Iterations of the job before the segment. Iterations count from 0 in
            dispatcher, rings and trace; kernels and arena count over the job's life.
        iterations: Iterations to run.
        output_bytes: Bytes of each output per op.
        ops: The device's bound ops.
        record: Op -> outputs whose value of every iteration is kept.
    """

    program: Program
    device: int
    first_iteration: int
    iterations: int
    output_bytes: Sequence[Sequence[int]]
    ops: Mapping[int, BoundOp]
    record: Mapping[int, Sequence[int]]


class SegmentLog:
    """What a segment has seen, as flat lists of integers, which the garbage collector skips."""

    def __init__(self) -> None:
        self.spans: list[int] = []
        self.sends: list[int] = []
        self.arrivals: list[int] = []
        self.versions: list[tuple[int, ...]] = []
        self.records: list[tuple[int, int, int, np.ndarray]] = []

    def result(self, peak_bytes: int) -> SegmentDone:
        """Returns the log as a message."""
        has_versions = any(self.versions)
        return SegmentDone(
            spans=np.array(self.spans, dtype=np.int64).reshape(-1, 6),
            versions=tuple(self.versions) if has_versions else (),
            sends=np.array(self.sends, dtype=np.int64).reshape(-1, 6),
            arrivals=np.array(self.arrivals, dtype=np.int64).reshape(-1, 4),
            peak_bytes=peak_bytes,
            records=tuple(self.records),
        )


class Segment:
    """One run of some iterations on one device.

    Attributes:
        dispatcher: The device's dispatcher, fed by this loop alone.
    """

    def __init__(
        self,
        tables: SegmentTables,
        *,
        readers: Sequence[RingReader],
        writers: Mapping[int, RingWriter],
        board: BoardWriter,
        poll: Poll,
        runner: Runner,
    ) -> None:
        self.dispatcher = Dispatcher(tables.program, tables.device, tables.iterations)
        self._first = tables.first_iteration
        self._ops = tables.ops
        self._bytes = tables.output_bytes
        self._kept = tables.record
        self._all_bytes = [sum(row) for row in tables.output_bytes]
        self._readers = readers
        self._writers = writers
        self._board = board
        self._poll = poll
        self._runner = runner
        self._log = SegmentLog()
        self._sent: list[TensorSent] = []
        self._ready_ns: dict[tuple[int, int], int] = {}
        self._end_ns: dict[int, int] = {}
        self._rounds = 0
        self._received = 0
        self._is_waiting = False
        table = tables.program.devices[tables.device]
        self._expected = tables.iterations * (len(table.consumers) + len(table.credit_targets))
        self._alive_bytes = sum(
            count * self._bytes[op][output]
            for (op, output), count in table.initial_versions.items()
        )
        self._peak_bytes = self._alive_bytes

    def run(self) -> SegmentDone:
        """Runs until all ops have ended and every message of the segment has arrived.

        Raises:
            OpError: If an op fails.
        """
        while not self._is_drained():
            if self._round():
                if self._is_waiting:
                    self._is_waiting = False
                    self._board.go_on()
                    self._poll.reset()
            else:
                self._wait()
        self._board.go_on()
        return self._log.result(self._peak_bytes)

    def _round(self) -> bool:
        """Posts what has happened and obeys the dispatcher; False if nothing has happened."""
        has_events = self._take_messages()
        dispatcher = self.dispatcher
        completions = self._runner.take()
        if completions:
            has_events = True
            for command, start_ns, end_ns in completions:
                self._record(command, start_ns, end_ns)
                dispatcher.post(OpDone(command.op, command.iteration))
        if self._sent:
            has_events = True
            for event in self._sent:
                dispatcher.post(event)
            self._sent = []
        if self._rounds and not has_events:
            return False
        self._rounds += 1
        now = time.monotonic_ns()
        for key in dispatcher.take_ready():
            self._ready_ns[key] = now
        commands = dispatcher.dispatch()
        if commands:
            self._obey(commands, now)
        return True

    def _take_messages(self) -> bool:
        has_events = False
        for reader in self._readers:
            if not reader.has_next:
                continue
            has_events = True
            records = reader.take()
            now = time.monotonic_ns()
            self._received += len(records)
            for kind, op, output, iteration in records:
                if kind == TENSOR:
                    self._log.arrivals += (op, output, iteration, now)
                    self._alive_bytes += self._bytes[op][output]
                    self.dispatcher.post(TensorArrived(op, output, iteration))
                else:
                    self.dispatcher.post(CreditArrived(op, iteration))
            self._peak_bytes = max(self._peak_bytes, self._alive_bytes)
        return has_events

    def _obey(self, commands: Sequence[Command], now: int) -> None:
        for command in commands:
            # By type and not by `match`: this is the hottest loop of a worker. The dispatcher
            # gives sends, credits and frees first, so nobody waits behind a kernel.
            if type(command) is RunOp:
                self._start(command)
            elif type(command) is ReturnCredit:
                self._writers[command.destination].send(CREDIT, command.op, 0, command.iteration)
            elif type(command) is SendTensor:
                self._send(command, now)
            elif type(command) is FreeTensor:
                self._alive_bytes -= self._bytes[command.op][command.output]

    def _start(self, command: RunOp) -> None:
        op = command.op
        self._alive_bytes += self._all_bytes[op]
        self._peak_bytes = max(self._peak_bytes, self._alive_bytes)
        bound = self._ops[op]
        iteration = self._first + command.iteration
        versions = command.versions
        if versions:
            versions = tuple(self._first + version for version in versions)
        inputs, outputs = bound.buffers(iteration, versions)
        self._runner.start((command, iteration, bound.kernel, inputs, outputs))

    def _send(self, command: SendTensor, now: int) -> None:
        op, output, iteration = command.op, command.output, command.iteration
        destination = command.destination
        self._log.sends += (op, output, iteration, destination, self._end_ns[op], now)
        self._writers[destination].send(TENSOR, op, output, iteration)
        self._sent.append(TensorSent(op, output, iteration, destination))

    def _record(self, command: RunOp, start_ns: int, end_ns: int) -> None:
        op, iteration = command.op, command.iteration
        self._board.end(command.stream, op, self._first + iteration, start_ns, end_ns)
        self._end_ns[op] = end_ns
        ready_ns = self._ready_ns.pop((op, iteration))
        self._log.spans += (op, iteration, command.stream, ready_ns, start_ns, end_ns)
        self._log.versions.append(command.versions)
        if op in self._kept:
            _, outputs = self._ops[op].buffers(self._first + iteration, ())
            self._log.records += [
                (op, output, self._first + iteration, outputs[output].copy())
                for output in self._kept[op]
            ]

    def _is_drained(self) -> bool:
        return (
            self.dispatcher.is_done
            and self._received == self._expected
            and not self._sent
            and not any(writer.waiting for writer in self._writers.values())
        )

    def _wait(self) -> None:
        is_backed_up = False
        for writer in self._writers.values():
            if writer.waiting:
                writer.flush()
                is_backed_up = True
        if not is_backed_up:  # a record that waits for room is in flight: no deadlock
            self._is_waiting = True
            self._board.wait(self._rounds + self._received)
        self._poll.pause()
