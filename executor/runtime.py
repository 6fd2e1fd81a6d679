"""The executor: runs a job for real, one pinned process per core group of this host."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType

import numpy as np

from doppler.core.errors import ExecutionError, PlanError
from doppler.core.plan import Plan, check_plan
from doppler.core.problem import Problem
from doppler.core.trace import Trace
from executor.checkpoint import Checkpoint
from executor.deadlines import Deadlines
from executor.initial import token_versions
from executor.job_spec import JobSpec
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
    StateArrays,
    StopProfile,
)
from executor.options import ExecutorOptions, SwitchCost
from executor.supervisor import Supervisor
from executor.team import WorkerTeam
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
        PlanError: If `options.record` names an output that the graph lacks.
        CapacityError: If the shared memory does not fit.
        ExecutionError: If a worker does not start.
    """

    def __init__(
        self, spec: JobSpec, problem: Problem, options: ExecutorOptions | None = None
    ) -> None:
        self.iteration = 0
        self.switches: list[SwitchCost] = []
        self._records: dict[tuple[int, int], list[tuple[int, np.ndarray]]] = {}
        self._problem = problem
        self._options = options or ExecutorOptions()
        self._homes: dict[str, int] = {}
        self._restored: dict[str, StateArrays] = {}
        self._plan: Plan | None = None
        self._survivors: tuple[int, ...] = tuple(range(problem.cluster.num_devices))
        self._num_devices = problem.cluster.num_devices
        for op, output in self._options.record:
            self._check_output(op, output)
        self._deadlines = Deadlines(self._options.deadlines)
        self._team: WorkerTeam | None = WorkerTeam(spec, problem, self._options, self._deadlines)

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
            CapacityError: If tensors do not fit into the memory of a device; likewise.
            DeadlockError: If nothing is in flight and work is left; likewise.
            KeyboardInterrupt: On Ctrl-C, with what was running; likewise.
        """
        self._open_team()
        self._check_problem(problem)
        check_plan(problem, plan)
        if iterations < 1:
            raise PlanError(f"a run has at least 1 iteration, and {iterations} are asked for")
        devices = range(self._num_devices)
        with self._closed_on_error() as supervisor:
            self._prepare(supervisor, plan, iterations)
            start_ns = time.monotonic_ns()
            supervisor.send(dict.fromkeys(devices, Go()))
            segments = supervisor.collect_running(devices, SegmentDone)
        self.iteration += iterations
        trace = assemble_trace(problem, plan, iterations, start_ns, segments)
        self._learn_durations((s.op, [s.end_ns - s.start_ns]) for s in trace.op_spans)
        for segment in segments.values():
            for op, output, iteration, value in segment.records:
                self._records.setdefault((op, output), []).append((iteration, value))
        return trace

    def take_records(self) -> dict[tuple[int, int], list[tuple[int, np.ndarray]]]:
        """Returns what `options.record` has kept since the last call.

        Returns:
            (op, output) -> (iteration of the job, value as uint8[bytes]), by iteration.
        """
        records, self._records = self._records, {}
        return {key: records.get(key, []) for key in self._options.record}

    def read_output(self, op: int, output: int) -> np.ndarray:
        """Returns a copy of the newest version of an output, uint8[bytes].

        Raises:
            PlanError: If there is no such op or output.
        """
        self._check_output(op, output)
        return self._open_team().arena.readable(op, output, self.iteration - 1).copy()

    def export_groups(self) -> dict[str, dict[str, np.ndarray]]:
        """Returns the state of every group that exists: all of them after the first run."""
        self._open_team()
        states = {name: dict(arrays) for name, arrays in self._restored.items()}
        with self._closed_on_error() as supervisor:
            states.update(self._export(supervisor, sorted(self._homes)))
        return states

    def checkpoint(self) -> Checkpoint:
        """Returns all that the job needs to go on from here, on any cluster."""
        graph = self._problem.graph
        return Checkpoint(
            graph_digest=graph.digest,
            iteration=self.iteration,
            groups=self.export_groups(),
            tokens={
                (graph.ops[op].name, output, version): self._open_team()
                .arena.readable(op, output, self.iteration + version)
                .copy()
                for (op, output), count in token_versions(graph).items()
                for version in range(-count, 0)
            },
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Goes back (or on) to a checkpoint; the next run continues from there.

        Raises:
            FormatError: If the checkpoint does not belong to this graph or is not whole.
        """
        self._open_team()
        graph = self._problem.graph
        checkpoint.check(graph)
        for (name, output, version), value in checkpoint.tokens.items():
            target = self._open_team().arena.writable(
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
        self._open_team()
        self._check_tasks(tasks)
        by_device = {task.device: task for task in tasks}
        with self._closed_on_error() as supervisor:
            requests = {
                device: self._profile_request(supervisor, task)
                for device, task in by_device.items()
            }
            supervisor.send(requests)
            supervisor.collect(by_device, Done)
            supervisor.send(dict.fromkeys(by_device, Go()))
            answers = supervisor.collect_running(by_device, Profiled)
            supervisor.send(dict.fromkeys(by_device, StopProfile()))
            supervisor.collect(by_device, Done)
        durations = {
            (device, op): answers[device].durations_ns[:, column]
            for device, task in by_device.items()
            for column, op in enumerate(task.ops)
            if task.repeats
        }
        self._learn_durations((op, values.tolist()) for (_, op), values in durations.items())
        return durations

    def survivors(self) -> tuple[int, ...]:
        """Returns the devices whose worker neither died nor hung: what is left to re-plan on."""
        return self._survivors

    def close(self) -> None:
        """Ends all workers; nothing is left behind."""
        team, self._team = self._team, None
        if team is not None:
            team.end(END_S)

    @contextlib.contextmanager
    def _closed_on_error(self) -> Iterator[Supervisor]:
        """Stops all workers when anything goes wrong; says what ran when Ctrl-C came."""
        team = self._open_team()
        try:
            yield team.supervisor
        except BaseException as error:
            failed = team.supervisor.failed
            self._survivors = tuple(d for d in self._survivors if d not in failed)
            is_interrupt = isinstance(error, KeyboardInterrupt)
            text = team.supervisor.describe_all() if is_interrupt else ""
            self._team = None
            team.end(0.0)
            if is_interrupt:
                raise KeyboardInterrupt(f"interrupted with {text}") from None
            raise

    # -- between segments ------------------------------------------------------------------------

    def _prepare(self, supervisor: Supervisor, plan: Plan, iterations: int) -> None:
        """Brings groups to where the plan wants them and has every worker get ready."""
        start_ns = time.monotonic_ns()
        homes = self._homes_of(plan)
        moved = sorted(name for name, home in self._homes.items() if homes[name] != home)
        exported = self._export(supervisor, moved)
        states: list[dict[str, StateArrays | None]] = [{} for _ in range(self._num_devices)]
        for name, home in homes.items():
            if name in exported:
                states[home][name] = exported[name]
            elif name not in self._homes:
                states[home][name] = self._restored.get(name)
        supervisor.send(
            {
                device: Prepare(
                    plan=plan,
                    first_iteration=self.iteration,
                    iterations=iterations,
                    states=states[device],
                )
                for device in range(self._num_devices)
            }
        )
        supervisor.collect(range(self._num_devices), Done)
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

    def _export(
        self, supervisor: Supervisor, groups: Sequence[str]
    ) -> dict[str, dict[str, np.ndarray]]:
        by_device: dict[int, list[str]] = {}
        for name in groups:
            by_device.setdefault(self._homes[name], []).append(name)
        supervisor.send({d: Export(tuple(names)) for d, names in by_device.items()})
        answers = supervisor.collect(by_device, Exported)
        return {name: state for answer in answers.values() for name, state in answer.states.items()}

    def _profile_request(self, supervisor: Supervisor, task: ProfileTask) -> Profile:
        graph = self._problem.graph
        groups = sorted({graph.ops[op].group for op in task.ops} - {None}, key=str)
        states: dict[str, StateArrays | None] = {
            name: self._restored.get(name) for name in groups if name is not None
        }
        states.update(self._export(supervisor, [name for name in states if name in self._homes]))
        return Profile(task=task, iteration=self.iteration, states=states)

    def _learn_durations(self, by_op: Iterable[tuple[int, list[int]]]) -> None:
        durations: dict[str, list[int]] = {}
        for op, values in by_op:
            durations.setdefault(self._problem.graph.ops[op].kind, []).extend(values)
        self._deadlines.learn(durations)

    # -- checks ----------------------------------------------------------------------------------

    def _open_team(self) -> WorkerTeam:
        if self._team is None:
            raise ExecutionError("this executor is closed; build another one")
        return self._team

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

    def _check_output(self, op: int, output: int) -> None:
        ops = self._problem.graph.ops
        if not 0 <= op < len(ops) or not 0 <= output < len(ops[op].outputs):
            raise PlanError(f"graph {self._problem.graph.name!r} has no output {output} of op {op}")

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
