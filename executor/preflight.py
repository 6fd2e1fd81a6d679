"""What a run needs before anything starts, beside what is there: a sentence for each.

Device memory, memory of the host, shared memory, threads and file descriptors stop a run that
cannot fit; more processes than cores only slow it down, so that is said and not refused.
"""

import os
import resource
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from doppler.core.cluster import Cluster
from doppler.core.errors import CapacityError
from doppler.core.problem import Problem
from executor.host import available_bytes, available_threads, read_host_cpu
from executor.launch.gpus import GpuInventory
from executor.launch.seats import Seat, Seating
from executor.process_needs import process_needs
from executor.shared_layout import SharedLayout
from executor.shared_memory import free_bytes

WORKER_BYTES = 160 << 20
"""Memory of a worker's own with torch loaded and no data: 150 MiB measured, torch 2.13 on CPU."""
FDS_PER_DEVICE = 4
"""Of the parent: control socket (both ends while the worker starts), process, printed lines."""
FDS_BESIDE = 16
"""Shared memory, selectors, files of results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One thing that a run needs.

    Attributes:
        name: What is counted.
        purpose: What needs it.
        place: Where it is found.
        unit: Of both numbers; empty for things that are counted.
        needed: How much.
        found: How much there is.
        is_hard: False if a run can do with less.
    """

    name: str
    purpose: str
    place: str
    unit: str
    needed: int
    found: int
    is_hard: bool = True

    @property
    def fits(self) -> bool:
        """True if there is enough."""
        return self.needed <= self.found

    @property
    def mark(self) -> str:
        """How it stands, in a word."""
        if self.fits:
            return "fits"
        return "LESS" if self.is_hard else "OVERSUBSCRIBED"

    @property
    def text(self) -> str:
        """The numbers in one sentence."""
        needed, found = f"{self.needed} {self.name}", str(self.found)
        if self.unit:
            needed = f"{self.needed} {self.unit} of {self.name}"
            found = f"{self.found} {self.unit}"
        return f"{self.purpose} needs {needed}, and {self.place} has {found} free"


def job_needs(problem: Problem, seating: Seating, shm_dir: str) -> list[Need]:
    """Returns what a job needs on the devices of a problem, seated on this host."""
    graph, cluster = problem.graph, problem.cluster
    shared = SharedLayout(graph=graph, cluster=cluster).size_bytes
    state = sum(group.state_bytes for group in graph.groups)
    purpose = f"the arena of graph {graph.name!r}"
    return needs_of(cluster, seating.seats, seating.inventory, shm_dir, shared, purpose, state)


def needs_of(
    cluster: Cluster,
    seats: Sequence[Seat],
    inventory: GpuInventory,
    shm_dir: str,
    shared_bytes: int,
    purpose: str,
    state_bytes: int = 0,
    root: Path = Path("/"),
    num_watched: int = 0,
) -> list[Need]:
    """Returns what some workers need.

    Args:
        cluster: Their devices.
        seats: Their processes.
        inventory: GPUs of this host.
        shm_dir: Mount for the shared memory.
        shared_bytes: Shared memory that they map.
        purpose: What that memory is, in words.
        state_bytes: State that they hold beside it.
        root: Folder that holds `proc` and `sys`.
        num_watched: Other processes that each of them watches.
    """
    workers = f"a run in {len(seats)} process{'es' if len(seats) > 1 else ''}"
    needs = [_device_memory(cluster, inventory, name) for name in _gpu_names(cluster)]
    if Path(shm_dir).is_dir():
        needs.append(
            Need(
                name="shared memory",
                purpose=purpose,
                place=repr(shm_dir),
                unit="bytes",
                needed=shared_bytes,
                found=free_bytes(shm_dir),
            )
        )
    processes = process_needs(cluster, seats, num_watched)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    max_threads = available_threads(root)
    if max_threads is not None:
        needs.append(
            Need(
                name="threads",
                purpose=workers,
                place="the control group (pids.max)",
                unit="",
                needed=sum(process.threads for process in processes),
                found=max_threads,
            )
        )
    return [
        *needs,
        Need(
            name="host memory",
            purpose=workers,
            place="this host",
            unit="bytes",
            needed=shared_bytes + state_bytes + WORKER_BYTES * len(seats),
            found=available_bytes(root),
        ),
        Need(
            name="cores",
            purpose=workers,
            place="this process",
            unit="",
            needed=sum(process.num_cores for process in processes),
            found=len(read_host_cpu(root).core_ids),
            is_hard=False,
        ),
        Need(
            name="file descriptors",
            purpose=f"a run on {cluster.num_devices} device(s)",
            place="this process (ulimit -n)",
            unit="",
            needed=FDS_PER_DEVICE * cluster.num_devices + FDS_BESIDE,
            found=limit - len(os.listdir("/proc/self/fd")),
        ),
        Need(
            name="file descriptors per process",
            purpose="the largest process of the run",
            place="a process (ulimit -n)",
            unit="",
            needed=max(process.descriptors for process in processes),
            found=limit,
        ),
    ]


def check_needs(needs: Iterable[Need]) -> None:
    """Checks that a run can start.

    Raises:
        CapacityError: With a sentence per hard need that does not fit.
    """
    missing = [need.text for need in needs if need.is_hard and not need.fits]
    if missing:
        raise CapacityError("; ".join(missing))


def _gpu_names(cluster: Cluster) -> list[str]:
    return list(dict.fromkeys(d.parent for d in cluster.devices if d.kind not in ("cpu", "mig")))


def _device_memory(cluster: Cluster, inventory: GpuInventory, name: str) -> Need:
    """All devices of one GPU together; a MIG instance is chosen by its memory when it is seated."""
    devices = [device for device in cluster.devices if device.parent == name]
    gpu = inventory.find(name, f"device {devices[0].name!r}")
    return Need(
        name="device memory",
        purpose=f"the cut of {gpu.name!r} into {len(devices)} device(s)",
        place=f"{gpu.name!r}",
        unit="bytes",
        needed=sum(device.memory_bytes for device in devices),
        found=gpu.free_bytes,
    )
