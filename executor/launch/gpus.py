"""The GPUs of this host as the driver's management library shows them.

Not yet run on hardware; every call that is made here has a documented answer in the tests.

Source: NVML API reference (device queries, multi-instance GPU management).
"""

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from doppler.core.errors import ClusterError
from executor.workers.mig import MigInstance, profile_of

CORES_PER_SM = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
"""CUDA cores per multiprocessor by compute capability where it is not 128.

Source: CUDA C++ Programming Guide, section on compute capabilities (FP32 lanes per SM).
"""
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU of this host.

    Attributes:
        name: The processor's name in the probed hardware ("gpu0").
        uuid: "GPU-...".
        model: What the vendor calls it.
        capability: Compute capability.
        num_units: Multiprocessors.
        memory_bytes: Memory in total.
        free_bytes: Memory that nobody uses now.
        mig_text: "on", or why there are no MIG instances.
        instances: MIG instances that exist; none unless MIG is on.
    """

    name: str
    uuid: str
    model: str
    capability: tuple[int, int]
    num_units: int
    memory_bytes: int
    free_bytes: int
    mig_text: str
    instances: tuple[MigInstance, ...] = ()

    @property
    def has_mig(self) -> bool:
        """True if the GPU is in MIG mode: then it runs work on instances only."""
        return self.mig_text == "on"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInventory:
    """The GPUs of a host, or why there are none.

    Attributes:
        gpus: In the driver's order.
        reason: Why there are none; empty if there are some.
    """

    gpus: tuple[Gpu, ...] = ()
    reason: str = ""

    def find(self, name: str, where: str) -> Gpu:
        """Returns a GPU by name.

        Raises:
            ClusterError: If this host has no such GPU; says which there are or why none.
        """
        for gpu in self.gpus:
            if gpu.name == name:
                return gpu
        have = ", ".join(gpu.name for gpu in self.gpus) or f"none ({self.reason})"
        raise ClusterError(
            f"a GPU device is cut from a GPU of this host, and {where} is cut from {name!r}; "
            f"GPUs here: {have}"
        )


def host_gpus() -> GpuInventory:
    """Returns the GPUs of this host."""
    return read_gpus(load_module("pynvml"))


def read_gpus(nvml: ModuleType | Any | None) -> GpuInventory:
    """Returns the GPUs that the driver shows; changes nothing.

    Args:
        nvml: The module `pynvml`, or None if it is not installed.
    """
    if nvml is None:
        return GpuInventory(reason="the package nvidia-ml-py (module pynvml) is not installed")
    try:
        with _opened(nvml):
            count = nvml.nvmlDeviceGetCount()
            if count == 0:
                return GpuInventory(reason="the NVIDIA driver shows no GPU")
            return GpuInventory(gpus=tuple(_gpu(nvml, index) for index in range(count)))
    except nvml.NVMLError_LibraryNotFound:
        return GpuInventory(reason="no NVIDIA driver")
    except nvml.NVMLError as error:
        return GpuInventory(reason=f"the NVIDIA driver does not answer: {error}")


def load_module(name: str) -> ModuleType | None:
    """Imports only when asked, so that workers and the simulator never load GPU packages."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


@contextlib.contextmanager
def _opened(nvml: Any) -> Iterator[None]:
    nvml.nvmlInit()
    try:
        yield
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    try:
        mode, _ = nvml.nvmlDeviceGetMigMode(handle)
        mig_text = "on" if mode else "supported and switched off"
    except nvml.NVMLError as error:
        mig_text = str(error)
    return Gpu(
        name=f"gpu{index}",
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        model=_text(nvml.nvmlDeviceGetName(handle)),
        capability=(major, minor),
        num_units=nvml.nvmlDeviceGetNumGpuCores(handle) // CORES_PER_SM.get((major, minor), 128),
        memory_bytes=memory.total,
        free_bytes=memory.free,
        mig_text=mig_text,
        instances=tuple(_instances(nvml, handle)) if mig_text == "on" else (),
    )


def _instances(nvml: Any, handle: Any) -> Iterator[MigInstance]:
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError_NotFound:
            continue  # a place without an instance
        attributes = nvml.nvmlDeviceGetAttributes(instance)
        yield MigInstance(
            uuid=_text(nvml.nvmlDeviceGetUUID(instance)),
            profile=profile_of(_text(nvml.nvmlDeviceGetName(instance))),
            units=attributes.multiprocessorCount,
            memory_bytes=attributes.memorySizeMB * MIB,
        )


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
