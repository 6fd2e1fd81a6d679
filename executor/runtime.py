"""The executor: runs a job for real, one pinned process per core group of this host."""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from types import TracebackType

import numpy as np

from doppler.core.errors import ExecutionError, PlanError
from doppler.core.plan import Plan, check_plan
from doppler.core.problem import Problem
from doppler.core.trace import Trace
from executor.arena import Arena
from executor.board import BoardReader
from executor.channels import check_memory_order, is_ring_empty
from executor.checkpoint import Checkpoint
from executor.deadlines import Deadlines
from executor.initial import token_versions
from executor.job_spec import JobSpec
from executor.launch.local import WorkerProcess, check_cores, start_worker
from executor.messages import (
    Done,
    Export,
    Exported,
    Go,
    Prepare,
    Profile,
    Profiled,
    ProfileTask,
    SegmentDone,
    Start,
    StateArrays,
    Stop,
    StopProfile,
)
from executor.options import ExecutorOptions, SwitchCost
from executor.shared_layout import SharedLayout
from executor.shared_memory import allocate, map_all
from executor.supervisor import Supervisor
from executor.trace_assembly import assemble_trace

END_S = 2.0


class CoreExecutor:
    """A running job on the core groups of one host; a `Runtime` that goes on where it stopped.

    The cluster is fixed while an executor lives. After an error the workers are gone: build another
    executor on the devices that are left (`survivors`) and `restore` the last checkpoint.

    Args:
        spec: The job.
        problem: Graph and cluster; a `run` may give another problem with the same ones.
        options: Polling, memory and deadlines.

    Attributes:
        iteration: Iterations done over the job's life.
        switches: What every change of plan has cost, the first placement included.

    Raises:
        ClusterError: If a device is no core group of this host.
        CapacityError: If the shared memory does not fit.
        ExecutionError: If a worker does not start.
    """

    def __init__(
        self, spec: JobSpec, problem: Problem, options: ExecutorOptions | None = None
    ) -> None:
        self.iteration = 0
        self.switches: list[SwitchCost] = []
        self._spec = spec
        self._problem = problem
        self._options = options or ExecutorOptions()
        self._homes: dict[str, int] = {}
        self._restored: dict[str, StateArrays] = {}
        self._plan: Plan | None = None
        self._workers: list[WorkerProcess] = []
        self._survivors: tuple[int, ...] = tuple(range(problem.cluster.num_devices))
        check_memory_order()
        check_cores(problem.cluster)
        self._layout = SharedLayout(graph=problem.graph, cluster=problem.cluster)
        shared_fd = allocate(
            self._options.shm_dir,
            self._layout.size_bytes,
            f"the arena of graph {problem.graph.name!r}",
        )
        try:
            self._memory = map_all(shared_fd)
            self._arena = Arena(self._layout.arena, self._memory, self._layout.arena_at)
            if self._options.mark_unwritten:
                self._arena.mark_unwritten()
            self._deadlines = Deadlines(self._options.deadlines)
            self._start_workers(shared_fd)
        finally:
            os.close(shared_fd)

    def __enter__(self) -> "CoreExecutor":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, problem: Problem, plan: Plan, iterations: int) -> Trace:
        """Runs the next `iterations` iterations of the job; the trace counts both from 0.

        Raises:
            PlanError: If the plan or the problem does not fit this executor.
            ExecutionError: If a worker dies or hangs or the job's code raises; the executor is then
                closed.
            DeadlockError: If nothing is in flight and work is left; likewise.
            KeyboardInterrupt: On Ctrl-C, with what was running; likewise.
        """
        self._check_open()
        self._check_problem(problem)
        check_plan(problem, plan)
        if iterations < 1:
            raise PlanError(f"a run has at least 1 iteration, and {iterations} are asked for")
        with self._closed_on_error():
            self._prepare(plan, iterations)
            start_ns = time.monotonic_ns()
            devices = range(problem.cluster.num_devices)
            self._supervisor.send(dict.fromkeys(devices, Go()))
            segments = self._supervisor.collect_running(devices, SegmentDone)
        self.iteration += iterations
        trace = assemble_trace(problem, plan, iterations, start_ns, segments)
        self._learn_durations(trace)
        return trace

    def read_output(self, op: int, output: int) -> np.ndarray:
        """Returns a copy of the newest version of an output, uint8[bytes].

        Raises:
            PlanError: If there is no such op or output.
        """
        self._check_open()
        ops = self._problem.graph.ops
        if not 0 <= op < len(ops) or not 0 <= output < len(ops[op].outputs):
            raise PlanError(f"graph {self._problem.graph.name!r} has no output {output} of op {op}")
        return self._arena.readable(op, output, self.iteration - 1).copy()

    def export_groups(self) -> dict[str, dict[str, np.ndarray]]:
        """Returns the state of every group that exists: all of them after the first run."""
        self._check_open()
        states = {name: dict(arrays) for name, arrays in self._restored.items()}
        with self._closed_on_error():
            states.update(self._export(sorted(self._homes)))
        return states

    def checkpoint(self) -> Checkpoint:
        """Returns all that the job needs to go on from here, on any cluster."""
        graph = self._problem.graph
        return Checkpoint(
            graph_digest=graph.digest,
            iteration=self.iteration,
            groups=self.export_groups(),
            tokens={
                (graph.ops[op].name, output, version): self._arena.readable(
                    op, output, self.iteration + version
                ).copy()
                for (op, output), count in token_versions(graph).items()
                for version in range(-count, 0)
            },
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Goes back (or on) to a checkpoint; the next run continues from there.

        Raises:
            FormatError: If the checkpoint does not belong to this graph or is not whole.
        """
        self._check_open()
        graph = self._problem.graph
        checkpoint.check(graph)
        for (name, output, version), value in checkpoint.tokens.items():
            target = self._arena.writable(
                graph.op_ids[name], output, checkpoint.iteration + version
            )
            target[:] = np.ascontiguousarray(value).view(np.uint8).reshape(-1)
        self.iteration = checkpoint.iteration
        self._homes, self._plan = {}, None
        self._restored = dict(checkpoint.groups)

    def profile(self, tasks: Sequence[ProfileTask]) -> dict[tuple[int, int], np.ndarray]:
        """Runs kernels over and over on all given devices at once, for calibration.

        A device with 0 repeats only keeps busy while the others are measured, and so does one that
        has ended early. Devices without a task stay idle. The job is not touched: kernels read the
        newest tensors (before the first run: inputs and initial tokens, else zeros) and work on
        copies of their groups.

        Returns:
            (device, op) -> durations in ns, int64[repeats], kernel entry to return.

        Raises:
            PlanError: If a task names an unknown device or op, or one device twice.
            ExecutionError: As `run`.
        """
        self._check_open()
        self._check_tasks(tasks)
        by_device = {task.device: task for task in tasks}
        with self._closed_on_error():
            self._supervisor.send(
                {device: self._profile_request(task) for device, task in by_device.items()}
            )
            self._supervisor.collect(by_device, Done)
            self._supervisor.send(dict.fromkeys(by_device, Go()))
            answers = self._supervisor.collect_running(by_device, Profiled)
            self._supervisor.send(dict.fromkeys(by_device, StopProfile()))
            self._supervisor.collect(by_device, Done)
        return {
            (device, op): answers[device].durations_ns[:, column]
            for device, task in by_device.items()
            for column, op in enumerate(task.ops)
            if task.repeats
        }

    def survivors(self) -> tuple[int, ...]:
        """Returns the devices whose worker neither died nor hung: what is left to re-plan on."""
        return self._survivors

    def close(self) -> None:
        """Ends all workers; nothing is left behind."""
        for worker in self._workers:
            with contextlib.suppress(ConnectionError):
                worker.control.send(Stop())
        self._end_workers(END_S)

    # -- starting and ending ---------------------------------------------------------------------

    def _start_workers(self, shared_fd: int) -> None:
        cluster, graph = self._problem.cluster, self._problem.graph
        try:
            for device in cluster.devices:
                self._workers.append(start_worker(device, shared_fd))
            self._supervisor = Supervisor(
                self._workers,
                [
                    BoardReader(self._memory, base, device.num_streams)
                    for base, device in zip(self._layout.boards, cluster.devices, strict=True)
                ],
                graph,
                self._deadlines,
                self._are_rings_empty,
            )
            self._supervisor.send(
                {
                    device: Start(
                        spec=self._spec,
                        problem=self._problem,
                        device=device,
                        spin_ns=self._options.spin_ns,
                        sleep_ns=self._options.sleep_ns,
                        write_initial=device == 0,
                    )
                    for device in range(cluster.num_devices)
                }
            )
            self._supervisor.collect(range(cluster.num_devices), Done)
        except BaseException:
            self._end_workers(0.0)
            raise

    def _end_workers(self, grace_s: float) -> None:
        until = time.monotonic() + grace_s
        workers, self._workers = self._workers, []
        for worker in workers:
            with contextlib.suppress(Exception):
                worker.process.wait(max(0.0, until - time.monotonic()))
        for worker in workers:
            worker.kill()
            worker.close()

    @contextlib.contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """Stops all workers when anything goes wrong; says what ran when Ctrl-C came."""
        try:
            yield
        except BaseException as error:
            failed = self._supervisor.failed
            self._survivors = tuple(d for d in self._survivors if d not in failed)
            text = ""
            if isinstance(error, KeyboardInterrupt):
                devices = range(len(self._workers))
                text = "; ".join(self._supervisor.describe(device) for device in devices)
            self._end_workers(0.0)
            if isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt(f"interrupted with {text}") from None
            raise

    def _are_rings_empty(self) -> bool:
        words = memoryview(self._memory).cast("q")
        devices = range(self._problem.cluster.num_devices)
        return all(
            is_ring_empty(words, self._layout.ring(src, dst), self._layout.num_records)
            for src in devices
            for dst in devices
            if src != dst
        )

    # -- between segments ------------------------------------------------------------------------

    def _prepare(self, plan: Plan, iterations: int) -> None:
        """Brings groups to where the plan wants them and has every worker get ready."""
        start_ns = time.monotonic_ns()
        homes = self._homes_of(plan)
        moved = sorted(name for name, home in self._homes.items() if homes[name] != home)
        exported = self._export(moved)
        states: list[dict[str, StateArrays | None]] = [{} for _ in self._workers]
        for name, home in homes.items():
            if name in exported:
                states[home][name] = exported[name]
            elif name not in self._homes:
                states[home][name] = self._restored.get(name)
        self._supervisor.send(
            {
                device: Prepare(
                    plan=plan,
                    first_iteration=self.iteration,
                    iterations=iterations,
                    states=states[device],
                )
                for device in range(len(self._workers))
            }
        )
        self._supervisor.collect(range(len(self._workers)), Done)
        if plan != self._plan:
            self.switches.append(
                SwitchCost(
                    moved_groups=tuple(moved),
                    moved_bytes=sum(a.nbytes for s in exported.values() for a in s.values()),
                    time_ns=time.monotonic_ns() - start_ns,
                )
            )
        self._homes, self._restored, self._plan = homes, {}, plan

    def _homes_of(self, plan: Plan) -> dict[str, int]:
        members = self._problem.graph.group_members
        return {name: plan.placement[ops[0]] for name, ops in members.items() if ops}

    def _export(self, groups: Sequence[str]) -> dict[str, dict[str, np.ndarray]]:
        by_device: dict[int, list[str]] = {}
        for name in groups:
            by_device.setdefault(self._homes[name], []).append(name)
        self._supervisor.send({d: Export(tuple(names)) for d, names in by_device.items()})
        answers = self._supervisor.collect(by_device, Exported)
        return {name: state for answer in answers.values() for name, state in answer.states.items()}

    def _profile_request(self, task: ProfileTask) -> Profile:
        graph = self._problem.graph
        groups = sorted({graph.ops[op].group for op in task.ops} - {None}, key=str)
        states: dict[str, StateArrays | None] = {
            name: self._restored.get(name) for name in groups if name is not None
        }
        states.update(self._export([name for name in states if name in self._homes]))
        return Profile(task=task, iteration=self.iteration, states=states)

    def _learn_durations(self, trace: Trace) -> None:
        ops = self._problem.graph.ops
        durations: dict[str, list[int]] = {}
        for span in trace.op_spans:
            durations.setdefault(ops[span.op].kind, []).append(span.end_ns - span.start_ns)
        self._deadlines.learn(durations)

    # -- checks ----------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if not self._workers:
            raise ExecutionError("this executor is closed; build another one")

    def _check_problem(self, problem: Problem) -> None:
        for label, own, given in (
            ("graph", self._problem.graph, problem.graph),
            ("cluster", self._problem.cluster, problem.cluster),
        ):
            if own.digest != given.digest:
                raise PlanError(
                    f"this executor runs {label} {own.name!r} ({own.digest}), and the problem has "
                    f"{given.name!r} ({given.digest})"
                )

    def _check_tasks(self, tasks: Sequence[ProfileTask]) -> None:
        graph, cluster = self._problem.graph, self._problem.cluster
        devices = [task.device for task in tasks]
        if len(set(devices)) < len(devices):
            raise PlanError(f"a device has one profile task, and the tasks name devices {devices}")
        for task in tasks:
            if not 0 <= task.device < cluster.num_devices:
                raise PlanError(
                    f"a profile task names device {task.device}, and cluster {cluster.name!r} has "
                    f"{cluster.num_devices} devices"
                )
            for op in task.ops:
                if not 0 <= op < graph.num_ops:
                    raise PlanError(
                        f"a profile task names op {op}, and ops are 0 to {graph.num_ops - 1}"
                    )
