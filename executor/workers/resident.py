"""Tensors that stay on a device: what the ops of one process pass on without the host.

Every version of an output has a place, `version % window` as in the arena, and each place that a
process touches has one buffer on its device. A version is written there by its producer, or brought
from host memory when it is first read; all devices of the process (green contexts) share the
buffers. A version goes to host memory at once if a device of another process reads it, when an op
that computes on the host reads it, or at the end of a segment, so that between segments host memory
holds everything.

Lifetime: a buffer is allocated once and kept while the process lives, and a place is written again
only after the credits of all its readers, whose ops have waited for their streams. So no memory
returns to torch's allocator while a stream may still use it, and `record_stream` is not needed.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from doppler.core.errors import CapacityError
from executor.launch.gpus import load_module
from executor.workers.handover import Handover, handover_of


class Version(NamedTuple):
    """One version of an output, as an op is given it.

    Attributes:
        op, output: Whose.
        number: Iteration of the job that made it; negative for initial tokens.
        place: Which of the places of that output it has.
        host: Its bytes in host memory, uint8[bytes], writable.
    """

    op: int
    output: int
    number: int
    place: int
    host: np.ndarray


@dataclass(slots=True)
class _Buffer:
    """A place on the device.

    Attributes:
        tensor: uint8[bytes].
        number: Version that lies there, None if none does.
        mark: Behind the work that wrote it.
        host: The version's bytes in host memory if they are still to be written there.
    """

    tensor: Any
    number: int | None = None
    mark: Any = None
    host: np.ndarray | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class ResidentTensors:
    """The buffers of one process on one torch device; threads may use it together.

    Args:
        torch_device: Where they lie.
        handover: Orders the work of different threads.
        limit_bytes: What the devices of the process own; 0 = no limit.
        owner: The devices in words, for the message.

    Attributes:
        allocated_bytes: Bytes of all buffers.
        num_imports: Versions that came from host memory.
        num_exports: Versions that went there.
    """

    def __init__(
        self,
        torch_device: str,
        handover: Handover,
        limit_bytes: int = 0,
        owner: str = "this process",
    ) -> None:
        self._torch: Any = load_module("torch")
        self._device = torch_device
        self._handover = handover
        self._limit_bytes = limit_bytes
        self._owner = owner
        self._buffers: dict[tuple[int, int, int], _Buffer] = {}
        self._lock = threading.Lock()
        self.allocated_bytes = self.num_imports = self.num_exports = 0

    def read(self, version: Version) -> Any:
        """Returns a version on the device, uint8[bytes]; if it is not there, from host memory.

        What the calling thread asks for from now on begins when the version is whole.

        Raises:
            CapacityError: If the buffer does not fit.
        """
        buffer = self._buffer(version)
        with buffer.lock:
            if buffer.number != version.number:
                buffer.tensor.copy_(self._torch.from_numpy(version.host))
                buffer.number, buffer.host = version.number, None
                buffer.mark = self._handover.record()
                with self._lock:
                    self.num_imports += 1
            mark = buffer.mark
        self._handover.wait(mark)
        return buffer.tensor

    def target(self, version: Version) -> Any:
        """Returns where a version is to be written, uint8[bytes].

        Raises:
            CapacityError: If the buffer does not fit.
        """
        buffer = self._buffer(version)
        buffer.number = None  # until `written`
        return buffer.tensor

    def written(self, version: Version, crosses: bool) -> None:
        """Says that the calling thread has asked for all that makes a version.

        Args:
            version: Which.
            crosses: True if it must go to host memory now; the caller waits for its stream.
        """
        buffer = self._buffer(version)
        with buffer.lock:
            buffer.mark = self._handover.record()
            buffer.number, buffer.host = version.number, version.host
            if crosses:
                self._export(buffer)

    def to_host(self, version: Version) -> None:
        """Brings a version to host memory if it lies on the device alone; the caller waits."""
        buffer = self._buffers.get((version.op, version.output, version.place))
        if buffer is None:
            return
        with buffer.lock:
            if buffer.number == version.number and buffer.host is not None:
                self._export(buffer)

    def settle(self, ops: Iterable[int]) -> None:
        """Brings all that ops have left on the device alone to host memory; the caller waits."""
        own = set(ops)
        for (op, _, _), buffer in list(self._buffers.items()):
            if op not in own:
                continue
            with buffer.lock:
                if buffer.number is not None and buffer.host is not None:
                    self._export(buffer)

    def forget(self) -> None:
        """Trusts host memory from now on; buffers are kept. Nothing runs, all has been settled."""
        for buffer in list(self._buffers.values()):
            buffer.number = buffer.host = None

    def _export(self, buffer: _Buffer) -> None:
        self._handover.wait(buffer.mark)
        assert buffer.host is not None
        self._torch.from_numpy(buffer.host).copy_(buffer.tensor)
        buffer.host = None
        with self._lock:
            self.num_exports += 1

    def _buffer(self, version: Version) -> _Buffer:
        key = (version.op, version.output, version.place)
        buffer = self._buffers.get(key)
        if buffer is None:
            with self._lock:
                buffer = self._buffers.get(key)
                if buffer is None:
                    buffer = self._buffers[key] = self._allocate(version.host.nbytes)
        return buffer

    def _allocate(self, num_bytes: int) -> _Buffer:
        total = self.allocated_bytes + num_bytes
        if self._limit_bytes and total > self._limit_bytes:
            raise CapacityError(
                f"tensors on a device fit into the memory that it owns, and those of {self._owner} "
                f"take {total} bytes with the next one, of {self._limit_bytes} bytes"
            )
        self.allocated_bytes = total
        return _Buffer(self._torch.empty(num_bytes, dtype=self._torch.uint8, device=self._device))


class _ProcessTensors:
    """The buffers of this process, made once for all its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: ResidentTensors | None = None

    def get(self, torch_device: str, limit_bytes: int, owner: str) -> ResidentTensors:
        with self._lock:
            if self._made is None:
                handover = handover_of(torch_device)
                self._made = ResidentTensors(torch_device, handover, limit_bytes, owner)
            return self._made


_tensors = _ProcessTensors()


def process_tensors(torch_device: str, limit_bytes: int, owner: str) -> ResidentTensors:
    """Returns what all devices of this process share; arguments as `ResidentTensors`."""
    return _tensors.get(torch_device, limit_bytes, owner)
