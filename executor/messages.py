"""What parent and worker say to each other over the control socket."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from doppler.core.plan import Plan
from doppler.core.problem import Problem
from executor.job_spec import JobSpec
from executor.workers.share import GpuShare

StateArrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """To a new worker: what it is.

    Attributes:
        spec: The job to build.
        problem: Graph and cluster.
        device: Its device.
        spin_ns, sleep_ns: How long it polls without pause, and how it naps after that.
        write_initial: True for the one worker that writes inputs and initial tokens.
        record: (op, output) of outputs whose value of every iteration is kept.
        share: What the device owns of a GPU; None for a core group.
        neighbours: Devices of the worker's process, this one included.
        own_tensors: True if a core group keeps tensors of its own, as devices of GPUs do.
    """

    spec: JobSpec
    problem: Problem
    device: int
    spin_ns: int
    sleep_ns: int
    write_initial: bool
    record: tuple[tuple[int, int], ...]
    share: GpuShare | None = None
    neighbours: tuple[int, ...] = ()
    own_tensors: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """To a worker: get ready for a segment; answered by `Done`.

    Attributes:
        plan: The plan of the segment.
        first_iteration: Iterations of the job before the segment.
        iterations: Iterations of the segment.
        states: Groups that come to this device: their state, or None to start from the beginning.
    """

    plan: Plan
    first_iteration: int
    iterations: int
    states: Mapping[str, StateArrays | None]


@dataclass(frozen=True, slots=True)
class Go:
    """To a worker: run what was prepared; answered by `SegmentDone`."""


@dataclass(frozen=True, slots=True)
class Export:
    """To a worker: send the state of these groups; answered by `Exported`."""

    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileTask:
    """Ops whose kernels one device runs over and over.

    Attributes:
        device: Device id.
        ops: Op ids, run one after another in each repeat.
        repeats: Measured repeats; 0 = run only while other devices are measured.
        warmup: Repeats before that, not measured.
    """

    device: int
    ops: tuple[int, ...]
    repeats: int
    warmup: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """To a worker: get ready to run a profile task; answered by `Done`, then waits for `Go`.

    Attributes:
        task: What to run.
        iteration: The job's current iteration, whose tensors are the inputs.
        states: State of the ops' groups, or None to start from the beginning.
    """

    task: ProfileTask
    iteration: int
    states: Mapping[str, StateArrays | None]


@dataclass(frozen=True, slots=True)
class StopProfile:
    """To a worker in a profile: all measured devices have ended."""


@dataclass(frozen=True, slots=True)
class Report:
    """To a worker that waits: say what blocks it; answered by `Blocked`."""


@dataclass(frozen=True, slots=True)
class Stop:
    """To a worker: end."""


@dataclass(frozen=True, slots=True)
class Done:
    """From a worker: the last request is fulfilled."""


@dataclass(frozen=True, slots=True)
class Exported:
    """From a worker: states by group."""

    states: dict[str, dict[str, np.ndarray]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentDone:
    """From a worker: all that it has seen in a segment; times on the monotonic clock.

    Attributes:
        spans: int64[ops, 6]: op, iteration, stream, ready_ns, start_ns, end_ns.
        versions: Per span the versions read by `latest` edges; empty if no op has such an edge.
        sends: int64[sends, 6]: op, output, iteration, destination, request_ns, start_ns.
        arrivals: int64[arrivals, 4]: op, output, iteration, arrival_ns.
        peak_bytes: Most bytes of tensors alive at once.
        records: (op, output, iteration of the job, value) of outputs that are kept.
    """

    spans: np.ndarray
    versions: tuple[tuple[int, ...], ...]
    sends: np.ndarray
    arrivals: np.ndarray
    peak_bytes: int
    records: tuple[tuple[int, int, int, np.ndarray], ...]


@dataclass(frozen=True, slots=True)
class Profiled:
    """From a worker: durations_ns int64[repeats, ops] of a profile task."""

    durations_ns: np.ndarray


@dataclass(frozen=True, slots=True)
class Blocked:
    """From a worker: what blocks its ops, one line each."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """From a worker: the job's code raised.

    Attributes:
        what: What the worker did ("op 'env[3]' in iteration 17").
        text: The traceback.
    """

    what: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRoom:
    """From a worker: tensors did not fit into the memory of its device.

    Attributes:
        what: What the worker did ("op 'env[3]' in iteration 17").
        text: The reason, with bytes wanted and free.
    """

    what: str
    text: str
