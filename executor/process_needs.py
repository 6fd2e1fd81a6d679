"""What each process of a run needs: cores, threads, file descriptors; and who has too few cores."""

from collections.abc import Sequence
from dataclasses import dataclass

from doppler.core.cluster import Cluster
from executor.launch.local import num_threads
from executor.launch.seats import Seat
from executor.workers.share import GREEN_CONTEXT

FDS_OF_WORKER = 8
"""Input and output, shared memory, store: 4 seen in a worker of core groups, beside its sockets;
the rest is for files that are open for a moment."""
FDS_OF_CUDA = 64
"""An allowance for what CUDA opens, not yet run on hardware."""
THREADS_BESIDE = 1
"""The main thread: 2 threads seen in a worker of one core and one stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessNeeds:
    """What one process needs.

    Attributes:
        devices: Names of the devices that it serves.
        cores: Cores that it is bound to; empty = any.
        threads: Of ops, and its own.
        descriptors: File descriptors.
        memory_bytes: Share of memory that its devices own.
        what_memory: Whose memory that is.
    """

    devices: tuple[str, ...]
    cores: tuple[int, ...]
    threads: int
    descriptors: int
    memory_bytes: int
    what_memory: str

    @property
    def num_cores(self) -> int:
        """Cores that it keeps busy; a process that feeds a GPU keeps one."""
        return max(1, len(self.cores))

    @property
    def text(self) -> str:
        """The numbers in words."""
        names = ", ".join(map(repr, self.devices))
        where = f"bound to {','.join(map(str, self.cores))}" if self.cores else "not bound"
        return (
            f"process of {names}: {self.num_cores} core(s) ({where}), {self.threads} threads, "
            f"{self.descriptors} file descriptors, {self.memory_bytes / 2**30:.1f} GiB of "
            f"{self.what_memory}"
        )


def process_needs(
    cluster: Cluster, seats: Sequence[Seat], num_watched: int = 0
) -> tuple[ProcessNeeds, ...]:
    """Returns what each process needs.

    Args:
        cluster: The devices.
        seats: Their processes.
        num_watched: Other processes that each of them watches, a descriptor each.
    """
    found = []
    for seat in seats:
        devices = [cluster.devices[position] for position in seat.devices]
        cores = tuple(dict.fromkeys(core for device in devices for core in device.cores))
        descriptors = FDS_OF_WORKER + len(devices) + num_watched
        found.append(
            ProcessNeeds(
                devices=tuple(device.name for device in devices),
                cores=cores,
                threads=THREADS_BESIDE + sum(num_threads(d) * d.num_streams for d in devices),
                descriptors=descriptors + (FDS_OF_CUDA if seat.shares else 0),
                memory_bytes=sum(device.memory_bytes for device in devices),
                what_memory=f"{devices[0].parent}'s memory",
            )
        )
    return tuple(found)


def core_demand(cluster: Cluster) -> tuple[int, int]:
    """Returns how many processes serve a cluster, and the cores that they keep busy together.

    A core group keeps its cores busy, also those that another one shares; a process that feeds a
    GPU keeps one. Green contexts of one GPU share a process.
    """
    processes: dict[str, int] = {}
    for device in cluster.devices:
        name = device.parent if device.kind == GREEN_CONTEXT else device.name
        processes[f"{device.kind} {name}"] = max(1, len(device.cores))
    return len(processes), sum(processes.values())


def oversubscription(cluster: Cluster, num_cores: int) -> str:
    """Returns in words by how much a cluster asks for more cores than there are; empty if not.

    Args:
        cluster: The devices.
        num_cores: Cores that this process may use.
    """
    num_processes, needed = core_demand(cluster)
    if needed <= num_cores:
        return ""
    return (
        f"oversubscribed: {num_processes} processes need {needed} cores, and there are {num_cores}"
    )
