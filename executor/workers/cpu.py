"""The worker of a device: obeys the parent between segments, drives its dispatcher in them.

The same for every back end; a device of a GPU has its share checked before anything runs. Started
as `python -m executor.workers.cpu CONTROL_FDS SHARED_FD` by `executor.launch.local`; CONTROL_FDS is
one descriptor, or a comma list where several devices (green contexts) share the process.
"""

import contextlib
import gc
import os
import select
import socket
import sys
import threading
import traceback
from collections.abc import Callable

from doppler.core.errors import ConfigError
from doppler.core.plan import Plan
from doppler.core.program import Program, compile_program
from executor.arena import Arena
from executor.board import BoardWriter
from executor.channels import RingReader, RingWriter
from executor.control import ControlClosedError, ControlSocket
from executor.initial import write_initial
from executor.job import AcceleratedJob
from executor.launch.local import check_bound, num_threads
from executor.messages import (
    Blocked,
    Done,
    Export,
    Exported,
    Failed,
    Go,
    NoRoom,
    Prepare,
    Profile,
    Profiled,
    Report,
    Start,
    Stop,
    StopProfile,
)
from executor.shared_layout import SharedLayout
from executor.shared_memory import map_all
from executor.workers.accelerator import Accelerator, open_accelerator
from executor.workers.kernels import KernelTable
from executor.workers.polling import Poll, shorten_naps
from executor.workers.profiling import ProfileRun
from executor.workers.resident import process_tensors
from executor.workers.resident_op import Residence
from executor.workers.runners import InlineRunner, JobCodeError, NoRoomError, Runner, ThreadRunner
from executor.workers.segment import Segment, SegmentTables


class Worker:
    """One device: its kernels, its ends of the rings, its part of the board.

    Attributes:
        what: What it does now, in words, for messages of failure.
    """

    def __init__(self, start: Start, control: ControlSocket, shared_fd: int) -> None:
        self.what = "building the job"
        self._start = start
        self._control = control
        self._device = start.device
        self._graph = start.problem.graph
        self._memory = map_all(shared_fd)
        os.close(shared_fd)
        self._layout = SharedLayout(graph=self._graph, cluster=start.problem.cluster)
        self._spec = start.problem.cluster.devices[self._device]
        self._board = BoardWriter(
            self._memory, self._layout.boards[self._device], self._spec.num_streams
        )
        self._arena = Arena(self._layout.arena, self._memory, self._layout.arena_at)
        others = [d for d in range(start.problem.cluster.num_devices) if d != self._device]
        records = self._layout.num_records
        self._readers = [
            RingReader(self._memory, self._layout.ring(d, self._device), records) for d in others
        ]
        self._writers = {
            d: RingWriter(self._memory, self._layout.ring(self._device, d), records) for d in others
        }
        # A thread that polls without pause would keep the GIL from the threads that run kernels.
        is_inline = self._spec.num_streams == 1
        self._poll = Poll(start.spin_ns if is_inline else 0, start.sleep_ns, self._look)
        self._runner: Runner = (
            InlineRunner(self._board)
            if is_inline
            else ThreadRunner(self._board, self._spec.num_streams)
        )
        self._record: dict[int, list[int]] = {}
        for op, output in start.record:
            self._record.setdefault(op, []).append(output)
        self._plan: Plan | None = None
        self._program: Program | None = None
        self._segment: Segment | None = None
        self._residence: Residence | None = None
        self._table = KernelTable(self._graph, self._arena, num_threads(self._spec))

    def open_device(self) -> Accelerator | None:
        """Checks cores or share; returns where the kernels keep tensors, None for the arena.

        Raises:
            ClusterError: If the process is bound otherwise or sees another share than its own.
        """
        check_bound(self._spec)
        if self._start.share is None:
            return Accelerator(torch_device="cpu") if self._start.own_tensors else None
        self.what = f"looking at its share of {self._start.share.gpu!r}"
        return open_accelerator(self._start.share)[0]

    def build_job(self, accelerator: Accelerator | None) -> None:
        """Builds the job; the first worker writes inputs and initial tokens for all.

        Raises:
            ConfigError: If the job has no kernels for the device's GPU.
        """
        self.what = "building the job"
        job = self._start.spec.build()
        if accelerator is not None:
            if not isinstance(job, AcceleratedJob):
                raise ConfigError(
                    "a job on a GPU implements use_accelerator and bind_tensors, and job "
                    f"{self._start.spec.path!r} on device {self._spec.name!r} does not have both"
                )
            job.use_accelerator(accelerator)
            self._residence = self._make_residence(accelerator)
        if self._start.write_initial:
            self.what = "writing inputs and initial tokens"
            write_initial(job, self._graph, self._arena)
        self._table.set_job(job, self._residence)

    def _make_residence(self, accelerator: Accelerator) -> Residence:
        devices = self._start.problem.cluster.devices
        neighbours = frozenset({*self._start.neighbours, self._device})
        names = ", ".join(repr(devices[device].name) for device in sorted(neighbours))
        limit = sum(devices[device].memory_bytes for device in neighbours)
        return Residence(
            accelerator=accelerator,
            tensors=process_tensors(accelerator.torch_device, limit, f"device(s) {names}"),
            neighbours=neighbours,
            recorded=frozenset(self._start.record),
        )

    def describe_op(self, op: int, iteration: int) -> str:
        """Returns an op and an iteration in words."""
        return f"op {self._graph.ops[op].name!r} in iteration {iteration}"

    def serve(self) -> None:
        """Obeys messages until `Stop`.

        Raises:
            OpError: If an op fails.
        """
        prepared: Segment | ProfileRun | None = None
        while True:
            message = self._control.receive()
            match message:
                case Prepare():
                    prepared = self._prepare(message)
                    self._control.send(Done())
                case Profile():
                    self.what = "preparing a profile"
                    prepared = ProfileRun(
                        message, self._graph, self._arena, self._table, self._board
                    )
                    self._control.send(Done())
                case Go() if isinstance(prepared, Segment):
                    self._run_segment(prepared)
                case Go() if isinstance(prepared, ProfileRun):
                    self._run_profile(prepared)
                case Export():
                    self._export(message.groups)
                case StopProfile():
                    pass  # it crossed with the end of this device's profile
                case Stop():
                    self._runner.close()
                    return
                case _:
                    raise AssertionError(f"no such message here: {message!r}")

    def _prepare(self, message: Prepare) -> Segment:
        self.what = "compiling the plan"
        is_new_plan = self._plan != message.plan
        if self._program is None or is_new_plan:
            self._program = compile_program(self._start.problem, message.plan)
            self._plan = message.plan
        ops = self._program.devices[self._device].ops
        if self._residence is not None:
            self._residence.prepare(self._graph, message.plan)
        self._table.keep_only(ops)
        for name, arrays in message.states.items():
            self.what = f"creating group {name!r}"
            self._table.place_group(name, arrays)
        self._table.bind(ops, self._describe)
        tables = SegmentTables(
            program=self._program,
            device=self._device,
            first_iteration=message.first_iteration,
            iterations=message.iterations,
            output_bytes=tuple(op.outputs for op in self._graph.ops),
            ops=self._table.ops,
            record=self._record,
        )
        if is_new_plan:
            gc.unfreeze()
            gc.collect()
            gc.freeze()  # what lives now is not walked again by every collection of a segment
        return Segment(
            tables,
            readers=self._readers,
            writers=self._writers,
            board=self._board,
            poll=self._poll,
            runner=self._runner,
        )

    def _run_segment(self, segment: Segment) -> None:
        self.what = "running a segment"
        self._segment = segment
        done = segment.run()
        if self._residence is not None:
            self._residence.settle(list(self._table.ops))
        self._control.send(done)
        self._segment = None

    def _run_profile(self, run: ProfileRun) -> None:
        self.what = "running a profile"
        self._control.send(Profiled(run.measure()))
        run.go_on(self._has_message)
        self._control.send(Done())

    def _export(self, groups: tuple[str, ...]) -> None:
        states = {}
        for name in groups:
            self.what = f"exporting the state of group {name!r}"
            states[name] = self._table.groups[name].export_state()
        self._control.send(Exported(states))

    def _has_message(self) -> bool:
        return bool(select.select([self._control], [], [], 0)[0])

    def _look(self) -> None:
        """Answers the parent while a segment waits."""
        if not self._has_message():
            return
        match self._control.receive():
            case Report():
                lines = [] if self._segment is None else self._segment.dispatcher.blocked()
                self._control.send(Blocked(tuple(lines)))
            case Stop():
                os._exit(0)

    def _describe(self, what: str) -> None:
        self.what = what


def main() -> None:
    """Runs one worker until its parent says stop or is gone."""
    serve_process(sys.argv[1], sys.argv[2], _serve)


def serve_process(controls: str, shared: str, serve: Callable[[ControlSocket, int], None]) -> None:
    """Serves every control socket of this process, each on a thread of its own but the first.

    Args:
        controls: Descriptors of the sockets, a comma list.
        shared: Descriptor of the shared memory; every call of `serve` gets one to close.
        serve: What is done for one device, until its parent says stop or is gone.
    """
    control_fds, shared_fd = [int(fd) for fd in controls.split(",")], int(shared)
    for fd in (*control_fds, shared_fd):
        os.set_inheritable(fd, False)

    def run(control_fd: int, memory_fd: int) -> None:
        control = ControlSocket(socket.socket(fileno=control_fd))
        threading.Thread(target=die_with_parent, args=(control_fd,), daemon=True).start()
        shorten_naps()
        with contextlib.suppress(ControlClosedError):
            serve(control, memory_fd)

    threads = [
        threading.Thread(target=run, args=(control_fd, os.dup(shared_fd)))
        for control_fd in control_fds[1:]
    ]
    for thread in threads:
        thread.start()
    run(control_fds[0], shared_fd)
    for thread in threads:
        thread.join()


def _serve(control: ControlSocket, shared_fd: int) -> None:
    worker = Worker(control.receive(), control, shared_fd)
    try:
        accelerator = worker.open_device()
        with contextlib.nullcontext() if accelerator is None else accelerator.active():
            worker.build_job(accelerator)
            control.send(Done())
            worker.serve()
    except NoRoomError as error:
        control.send(NoRoom(what=worker.describe_op(error.op, error.iteration), text=error.text))
    except JobCodeError as error:
        control.send(Failed(what=worker.describe_op(error.op, error.iteration), text=error.text))
    except ControlClosedError:
        raise
    except Exception:
        control.send(Failed(what=worker.what, text=traceback.format_exc()))


def die_with_parent(control_fd: int) -> None:
    """Ends the process when the parent's end of the control socket closes.

    The kernel's death signal cannot stand alone: it follows the parent's thread, not its process.
    """
    poller = select.poll()
    poller.register(control_fd, select.POLLRDHUP)
    poller.poll()
    os._exit(1)


if __name__ == "__main__":
    main()
