"""The workers of one executor and the memory that they share: started together, ended together."""

import contextlib
import os
import time
from collections.abc import Callable

from doppler.core.problem import Problem
from executor.arena import Arena
from executor.board import BoardReader
from executor.channels import check_memory_order, is_ring_empty
from executor.deadlines import Deadlines
from executor.job_spec import JobSpec
from executor.launch.local import WorkerProcess, check_cores, start_workers
from executor.launch.seats import Seating
from executor.messages import Done, Start, Stop
from executor.options import ExecutorOptions
from executor.preflight import check_needs, job_needs
from executor.shared_layout import SharedLayout
from executor.shared_memory import allocate, map_all
from executor.supervisor import Supervisor


class WorkerTeam:
    """One worker per device, in a process of its back end, all with the job built.

    The shared memory goes when the team ends, even while an error's traceback refers to the team.

    Attributes:
        arena: The tensors.
        supervisor: Speaks with the workers.

    Raises:
        ClusterError: If a device is not of this host, or its GPU is not cut that way.
        CapacityError: If memory, shared memory or file descriptors do not suffice.
        ExecutionError: If a worker does not start.
    """

    def __init__(
        self, spec: JobSpec, problem: Problem, options: ExecutorOptions, deadlines: Deadlines
    ) -> None:
        check_memory_order()
        check_cores(problem.cluster)
        layout = SharedLayout(graph=problem.graph, cluster=problem.cluster)
        purpose = f"the arena of graph {problem.graph.name!r}"
        self._seating = Seating(problem.cluster, options.static_mps)
        self._workers: list[WorkerProcess] = []
        self._to_release: list[Callable[[], None]] = []
        try:
            check_needs(job_needs(problem, self._seating, options.shm_dir))
            shared_fd = allocate(options.shm_dir, layout.size_bytes, purpose)
        except BaseException:
            self._seating.release()
            raise
        try:
            memory = map_all(shared_fd)
            self.arena = Arena(layout.arena, memory, layout.arena_at)
            words = memoryview(memory).cast("q")
            if options.mark_unwritten:
                self.arena.mark_unwritten()
            by_device: dict[int, WorkerProcess] = {}
            for seat in self._seating.seats:
                workers = start_workers(
                    seat, problem.cluster, (shared_fd,), limit_memory=options.limit_memory
                )
                self._workers += workers
                by_device |= dict(zip(seat.devices, workers, strict=True))
            self._workers = [by_device[d] for d in range(problem.cluster.num_devices)]
            boards = [
                BoardReader(memory, base, device.num_streams)
                for base, device in zip(layout.boards, problem.cluster.devices, strict=True)
            ]
            self.supervisor = Supervisor(
                self._workers, boards, problem.graph, deadlines, _rings_watch(layout, words)
            )
            self._to_release += [board.close for board in boards]
            self._to_release += [words.release, self.arena.close, memory.close]
            self._start(spec, problem, options)
        except BaseException:
            self.end(0.0)
            raise
        finally:
            os.close(shared_fd)

    def end(self, grace_s: float) -> None:
        """Ends all workers: asks them if there is grace, then kills; nothing is left behind."""
        if grace_s > 0:
            for worker in self._workers:
                with contextlib.suppress(ConnectionError):
                    worker.control.send(Stop())
        until = time.monotonic() + grace_s
        for worker in self._workers:
            worker.wait(max(0.0, until - time.monotonic()))
        for worker in self._workers:
            worker.kill()
            worker.close()
        self._workers.clear()
        while self._to_release:
            # A view that an interrupted caller still holds keeps the mapping until it goes.
            with contextlib.suppress(BufferError):
                self._to_release.pop(0)()
        self._seating.release()

    def _start(self, spec: JobSpec, problem: Problem, options: ExecutorOptions) -> None:
        devices = range(problem.cluster.num_devices)
        seats = {device: seat for seat in self._seating.seats for device in seat.devices}
        self.supervisor.send(
            {
                device: Start(
                    spec=spec,
                    problem=problem,
                    device=device,
                    # Who polls without pause keeps the interpreter from others of its process.
                    spin_ns=options.spin_ns if len(seats[device].devices) == 1 else 0,
                    sleep_ns=options.sleep_ns,
                    write_initial=device == 0,
                    record=options.record,
                    share=seats[device].share_of(device),
                    neighbours=seats[device].devices,
                    own_tensors=options.own_tensors,
                )
                for device in devices
            }
        )
        self.supervisor.collect(devices, Done)


def _rings_watch(layout: SharedLayout, words: memoryview) -> Callable[[], bool]:
    """Returns a function that says whether every ring is empty."""
    devices = range(layout.cluster.num_devices)
    rings = [layout.ring(src, dst) for src in devices for dst in devices if src != dst]
    return lambda: all(is_ring_empty(words, base, layout.num_records) for base in rings)
