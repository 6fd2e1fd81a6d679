"""A management library with answers as its documentation gives them, for hosts without a GPU."""

from types import SimpleNamespace

GIB = 1 << 30


class FakeNvml:
    """A driver with some H200.

    Args:
        count: GPUs.
        error: What opening the library raises, or None.
        mig: 1 = MIG is on, 0 = off, None = the GPU has none.
        instances: Place on the GPU -> (profile, multiprocessors, MiB).
    """

    class NVMLError(Exception):
        pass

    class NVMLError_LibraryNotFound(NVMLError):  # noqa: N801, N818
        pass

    class NVMLError_NotFound(NVMLError):  # noqa: N801, N818
        pass

    def __init__(self, count=0, error=None, mig=None, instances=()):
        self.count, self.error, self.mig, self.instances = count, error, mig, dict(instances)
        self.is_open = False

    def nvmlInit(self):
        if self.error is not None:
            raise self.error
        self.is_open = True

    def nvmlShutdown(self):
        self.is_open = False

    def nvmlDeviceGetCount(self):
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, handle):
        if isinstance(handle, tuple):
            return f"MIG-{handle[0]}-{handle[1]}"
        return f"GPU-5c89852c-d268-c3f3-1b07-00000000000{handle}"

    def nvmlDeviceGetName(self, handle):
        if isinstance(handle, tuple):
            return f"NVIDIA H200 MIG {self.instances[handle[1]][0]}"
        return b"NVIDIA H200"

    def nvmlDeviceGetNumGpuCores(self, handle):
        return 132 * 128

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return (9, 0)

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=141 * GIB, free=140 * GIB)

    def nvmlDeviceGetMigMode(self, handle):
        if self.mig is None:
            raise self.NVMLError("Not Supported")
        return (self.mig, 0)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        if index not in self.instances:
            raise self.NVMLError_NotFound("Not Found")
        return (handle, index)

    def nvmlDeviceGetAttributes(self, handle):
        _, units, mib = self.instances[handle[1]]
        return SimpleNamespace(multiprocessorCount=units, memorySizeMB=mib)
