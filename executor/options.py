"""How an executor is set up, and what a change of plan costs it."""

from dataclasses import dataclass, field

from doppler.core.errors import ConfigError
from executor.deadlines import DeadlinePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorOptions:
    """How an executor runs.

    Attributes:
        shm_dir: Mount for the shared memory.
        spin_ns: How long an idle worker polls without pause: latency against a busy core.
        sleep_ns: Length of a worker's nap after that.
        mark_unwritten: Fill the arena with 0xFF first, so that a read before the first write
            gives NaN; costs one pass over the memory.
        deadlines: When a worker counts as hung.
        record: (op, output) of outputs whose value of every iteration is kept, for
            `CoreExecutor.take_records`.
        static_mps: MPS clients get static partitions of multiprocessors, made for the run in a
            daemon that was started with -S, and not shares by percentage.
        own_tensors: Core groups, too, keep tensors of their own and compute on those, exactly as
            devices of GPUs do. It is how that path is tested without a GPU; on cores the copies
            cost time and gain nothing.
        limit_memory: The process of a core group may take no more private memory than its device
            owns; an allocation beyond fails in the op that makes it. Shared memory does not count:
            plans are refused that do not fit there.

    Raises:
        ConfigError: If a time is negative.
    """

    shm_dir: str = "/dev/shm"
    spin_ns: int = 200_000
    sleep_ns: int = 50_000
    mark_unwritten: bool = False
    deadlines: DeadlinePolicy = field(default_factory=DeadlinePolicy)
    record: tuple[tuple[int, int], ...] = ()
    static_mps: bool = False
    own_tensors: bool = False
    limit_memory: bool = False

    def __post_init__(self) -> None:
        for label, value in (("spin_ns", self.spin_ns), ("sleep_ns", self.sleep_ns)):
            if value < 0:
                raise ConfigError(f"{label} of an executor is at least 0, and it is {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchCost:
    """What it took to get ready for a segment under another plan (or the first one).

    Attributes:
        moved_groups: Groups whose state went from one device to another.
        moved_bytes: Bytes of their state.
        time_ns: From the request to the last worker's acknowledgement.
    """

    moved_groups: tuple[str, ...]
    moved_bytes: int
    time_ns: int
