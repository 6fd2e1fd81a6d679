"""Starts the worker processes of this host: one per seat, each with its back end's environment."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from doppler.core.cluster import Cluster, Device
from doppler.core.errors import CapacityError, ClusterError
from executor.control import ControlSocket
from executor.launch import bind
from executor.launch.seats import Seat

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
CONTROL_TIMEOUT_S = 60.0
OP_WORKER, GMI_WORKER = "executor.workers.cpu", "executor.gmi.worker"
"""What a worker process runs: ops of a graph, or a GMI as the user wrote it."""
LAST_STDERR_BYTES = 4000
LIMIT_VARIABLE = "DOPPLER_MEMORY_LIMIT"
"""Tells a worker the bytes that its private memory is limited to."""
LEAST_LIMIT_BYTES = 512 << 20
"""A worker's own private memory is 230 MiB with torch and 350 MiB in a PPO job (torch 2.13)."""


@dataclass(kw_only=True)
class WorkerProcess:
    """A running worker.

    Attributes:
        device: Its device.
        process: The process; green contexts of one GPU share it.
        control: The parent's end of its control socket.
        pidfd: Readable when the process has ended.
        stderr: What it printed, an unlinked file.
    """

    device: Device
    process: subprocess.Popen[bytes]
    control: ControlSocket
    pidfd: int
    stderr: IO[bytes]

    def has_ended(self) -> bool:
        """True if the process is no more."""
        return self.process.poll() is not None

    def exit_text(self) -> str:
        """Returns how the process ended, in words; waits a moment for the end."""
        try:
            code = self.process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return "closed its control socket and did not end"
        if code < 0:
            name = signal.Signals(-code).name
            hint = " (as by the kernel when memory runs out)" if name == "SIGKILL" else ""
            return f"was ended by {name}{hint}"
        return f"ended with exit code {code}"

    def stderr_text(self) -> str:
        """Returns the last lines that the worker printed."""
        size = os.fstat(self.stderr.fileno()).st_size
        start = max(0, size - LAST_STDERR_BYTES)
        data = os.pread(self.stderr.fileno(), LAST_STDERR_BYTES, start)
        return data.decode(errors="replace").strip()

    def wait(self, timeout_s: float) -> None:
        """Waits until the process has ended, for some time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)

    def kill(self) -> None:
        """Ends the process at once and waits for it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Releases the parent's descriptors; the process has ended."""
        self.control.close()
        os.close(self.pidfd)
        self.stderr.close()


def check_cores(cluster: Cluster) -> None:
    """Checks that this host can bind every core group, and that nothing is copied between devices.

    Raises:
        ClusterError: Names the device and the rule.
    """
    allowed = os.sched_getaffinity(0)
    for device in cluster.devices:
        where = f"device {device.name!r} of cluster {cluster.name!r}"
        missing = sorted(set(device.cores) - allowed)
        if missing:
            raise ClusterError(
                f"a worker is bound to cores that this process may use ({_ranges(allowed)}), and "
                f"{where} owns core {missing[0]}"
            )
    for link in cluster.link_table.values():
        if link.bytes_per_s is not None:
            raise ClusterError(
                f"devices of one host exchange tensors in its shared memory and copy nothing, and "
                f"link {link.src!r} -> {link.dst!r} of cluster {cluster.name!r} has a bandwidth"
            )


def check_affinity(device: Device) -> None:
    """Checks, in a worker, that it is bound to the cores of its device and to no other.

    Raises:
        ClusterError: Names the device, its cores and those that the process has.
    """
    bound = os.sched_getaffinity(0)
    if device.cores and bound != set(device.cores):
        raise ClusterError(
            f"the worker of device {device.name!r} is bound to cores {_ranges(set(device.cores))}, "
            f"and it has {_ranges(bound)}"
        )


def check_bound(device: Device) -> None:
    """Checks, in a worker, that it has the cores of its device and the memory limit that it should.

    Raises:
        ClusterError: Names the device, what it owns and what the process has.
    """
    check_affinity(device)
    limit = int(os.environ.get(LIMIT_VARIABLE, resource.RLIM_INFINITY))
    has = resource.getrlimit(resource.RLIMIT_DATA)[0]
    if limit not in (resource.RLIM_INFINITY, has):
        raise ClusterError(
            f"the private memory of the worker of device {device.name!r} is limited to {limit} "
            f"bytes, and its limit is {'none' if has == resource.RLIM_INFINITY else has}"
        )


def memory_limit(devices: Sequence[Device]) -> int:
    """Returns the bytes of private memory that the process of a core group may take: its share.

    Raises:
        CapacityError: If a worker itself does not fit, or this process may set no such limit.
    """
    limit = sum(device.memory_bytes for device in devices)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard != resource.RLIM_INFINITY and limit > hard:
        raise CapacityError(
            f"memory that a core group is limited to is at most what this process may take ({hard} "
            f"bytes: ulimit -d), and device {devices[0].name!r} owns {limit}"
        )
    if limit < LEAST_LIMIT_BYTES:
        raise CapacityError(
            f"memory that a core group is limited to holds its worker ({LEAST_LIMIT_BYTES} bytes), "
            f"and device {devices[0].name!r} owns {limit}"
        )
    return limit


def num_threads(device: Device) -> int:
    """Returns the threads that one op of a core group may use: its cores over its streams."""
    return max(1, len(device.cores) // device.num_streams)


def start_workers(
    seat: Seat,
    cluster: Cluster,
    shared_fds: Sequence[int],
    module: str = OP_WORKER,
    limit_memory: bool = False,
) -> list[WorkerProcess]:
    """Starts the process of a seat; each device's worker waits for its first message.

    Args:
        seat: Devices and environment.
        cluster: Where the devices are.
        shared_fds: Descriptors that the process inherits; the first is its shared memory.
        module: What it runs.
        limit_memory: A core group may take no more private memory than its devices own.

    Returns:
        One worker per device of the seat.

    Raises:
        CapacityError: As `memory_limit`.
    """
    devices = [cluster.devices[position] for position in seat.devices]
    limit = memory_limit(devices) if limit_memory and not seat.shares else None
    pairs = [socket.socketpair() for _ in devices]
    ends = [worker_end.fileno() for _, worker_end in pairs]
    stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
    # The kernel's death signal fires when the *thread* that started the process ends, so it is
    # asked for only by the main thread; elsewhere the worker's watch of its socket must do.
    is_main = threading.current_thread() is threading.main_thread()
    worker = [sys.executable, "-P", "-m", module, ",".join(map(str, ends)), str(shared_fds[0])]
    command = bound_command(devices[0].cores, worker, os.getpid() if is_main else 0, limit)
    base = worker_environment(os.environ, num_threads(devices[0]), sys.path, limit)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            env=seat.environment(base),
            pass_fds=(*ends, *shared_fds),
        )
    except BaseException:
        for parent_end, _ in pairs:
            parent_end.close()
        stderr.close()
        raise
    finally:
        for _, worker_end in pairs:
            worker_end.close()
    workers: list[WorkerProcess] = []
    for device, (parent_end, _) in zip(devices, pairs, strict=True):
        parent_end.settimeout(CONTROL_TIMEOUT_S)
        workers.append(
            WorkerProcess(
                device=device,
                process=process,
                control=ControlSocket(parent_end),
                pidfd=os.pidfd_open(process.pid),
                stderr=stderr if not workers else os.fdopen(os.dup(stderr.fileno()), "rb"),
            )
        )
    return workers


def bound_command(
    cores: Sequence[int], command: Sequence[str], parent: int = 0, memory_bytes: int | None = None
) -> list[str]:
    """Returns a command that is bound to cores (none: to all) before it starts.

    Args:
        cores: Core ids.
        command: Program and arguments.
        parent: Process to die with, 0 = none.
        memory_bytes: Private memory that it may take; None = no limit.
    """
    path = str(Path(bind.__file__).resolve())
    memory = "all" if memory_bytes is None else str(memory_bytes)
    binding = [sys.executable, "-I", "-S", path, ",".join(map(str, cores)) or "all", memory]
    return [*binding, str(parent), *command]


def worker_environment(
    environment: Mapping[str, str],
    threads: int,
    search_path: Sequence[str],
    memory_bytes: int | None = None,
) -> dict[str, str]:
    """Returns what every worker's environment has: thread counts, module path, memory limit."""
    kept = {name: value for name, value in environment.items() if name != LIMIT_VARIABLE}
    limit = {} if memory_bytes is None else {LIMIT_VARIABLE: str(memory_bytes)}
    paths = dict.fromkeys(os.path.abspath(entry) for entry in search_path)
    return {
        **kept,
        **limit,
        **dict.fromkeys(THREAD_VARIABLES, str(threads)),
        "PYTHONPATH": os.pathsep.join(path for path in paths if os.path.exists(path)),
        "PYTHONFAULTHANDLER": "1",
    }


def _ranges(cores: set[int]) -> str:
    return ",".join(map(str, sorted(cores)))
