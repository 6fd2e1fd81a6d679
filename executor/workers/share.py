"""What a worker owns of a GPU, what it sees of it, and whether the two agree.

A back end can fail without an error: a client whose pipe directory is wrong runs without MPS, on
all multiprocessors. So every worker looks at its GPU before it runs anything, and refuses if it
sees something else than it was given. Not yet run on hardware.

Source: NVIDIA MPS documentation (limits as a client sees them); NVIDIA MIG User Guide.
"""

from dataclasses import dataclass

from doppler.core.errors import ClusterError
from executor.workers.mps import check_seen_sms

MIG_MEMORY_SLACK = 1 / 16
"""CUDA keeps a part of an instance for itself, so a worker sees less than the driver states."""
WHOLE, MPS, MIG, GREEN_CONTEXT = "cuda", "mps", "mig", "green_context"
GPU_KINDS = (WHOLE, GREEN_CONTEXT, MPS, MIG)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuShare:
    """What a worker owns of a GPU.

    Attributes:
        device: Name of the device.
        kind: Kind of the device, one of `GPU_KINDS`.
        gpu: Name of the GPU.
        visible: What CUDA_VISIBLE_DEVICES holds: UUID of the GPU or of the MIG instance.
        units: Multiprocessors that it owns.
        total_units: Multiprocessors of the GPU.
        memory_bytes: Device memory that it may use.
        process_bytes: Device memory that all devices of its process may use together.
        pipe_directory: Where the MPS daemon listens; empty for the other back ends.
        split: Multiprocessors of all green contexts of the GPU; empty for the other back ends.
        position: Which of them is its own.
    """

    device: str
    kind: str
    gpu: str
    visible: str
    units: int
    total_units: int
    memory_bytes: int
    process_bytes: int = 0
    pipe_directory: str = ""
    split: tuple[int, ...] = ()
    position: int = 0

    def memory_fraction(self, total_bytes: int) -> float | None:
        """Returns the part of the GPU's memory that torch may allocate in this process.

        None where the GPU itself holds a process to its memory (MPS, MIG).
        """
        if self.kind not in (WHOLE, GREEN_CONTEXT):
            return None
        return min(1.0, max(self.process_bytes, self.memory_bytes) / total_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What CUDA shows a worker.

    Attributes:
        units: Multiprocessors.
        total_bytes: Memory in total.
        free_bytes: Memory that it could allocate.
        pid: Process id of the worker.
        mps_clients: Process ids that the MPS servers list; empty without MPS.
        granted: Multiprocessors of its green context, 0 if torch does not tell.
        is_disjoint: False if green contexts may share multiprocessors.
    """

    units: int
    total_bytes: int
    free_bytes: int
    pid: int
    mps_clients: tuple[int, ...] = ()
    granted: int = 0
    is_disjoint: bool = True

    @property
    def text(self) -> str:
        """The numbers in words."""
        parts = [f"{self.units} SMs", f"{self.free_bytes} of {self.total_bytes} bytes free"]
        if self.mps_clients:
            parts.append(f"listed as client {self.pid} by MPS")
        if self.granted:
            parts.append(f"a green context of {self.granted} SMs")
        if not self.is_disjoint:
            parts.append("green contexts may share SMs, because this torch has no joint split")
        return ", ".join(parts)


def check_seen(share: GpuShare, seen: Seen) -> None:
    """Checks, in a worker, that it sees what it was given.

    Raises:
        ClusterError: Names the device, what it owns and what its worker sees.
    """
    if share.kind == MPS:
        _check_mps(share, seen)
        return
    where = f"device {share.device!r} of {share.gpu!r}"
    expected = share.units if share.kind == MIG else share.total_units
    if seen.units != expected:
        raise ClusterError(
            f"{where} shows {expected} SMs ({share.kind}), and its worker sees {seen.units}"
        )
    if share.kind == MIG and seen.total_bytes < share.memory_bytes * (1 - MIG_MEMORY_SLACK):
        raise ClusterError(
            f"{where} owns {share.memory_bytes} bytes, and its worker sees {seen.total_bytes}"
        )
    if share.kind == GREEN_CONTEXT and seen.granted not in (0, share.units):
        raise ClusterError(
            f"{where} owns {share.units} SMs, and its green context has {seen.granted}"
        )


def _check_mps(share: GpuShare, seen: Seen) -> None:
    check_seen_sms(share.device, seen.units, share.units, share.total_units)
    if seen.pid not in seen.mps_clients:
        raise ClusterError(
            f"device {share.device!r} is an MPS client, and the daemon at "
            f"{share.pipe_directory!r} lists {list(seen.mps_clients) or 'no clients'} without its "
            f"worker ({seen.pid}): it runs without MPS"
        )
    if seen.free_bytes > share.memory_bytes:
        raise ClusterError(
            f"device {share.device!r} may use {share.memory_bytes} bytes, and its worker could "
            f"allocate {seen.free_bytes}: MPS has not taken the memory limit"
        )
