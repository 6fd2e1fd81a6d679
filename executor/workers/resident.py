"""Tensors that stay on a device: what the ops of one process pass on without the host.

Every version of an output has a place, `version % window` as in the arena, and each place that a
process touches has one buffer on its device. A version is written there by its producer, or brought
from host memory when it is first read; all devices of the process (green contexts) share the
buffers. A version goes to host memory at once if a device of another process reads it, when an op
that computes on the host reads it, or at the end of a segment, so that between segments host memory
holds everything.

Lifetime: a buffer is allocated once and kept while the process runs plans in which its ops make or
read that output. A place is written again only after the credits of all its readers, whose ops have
waited for their streams, and buffers are freed between segments. So no memory returns to torch's
allocator while a stream may still use it, and `record_stream` is not needed.
"""

import os
import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from doppler.core.errors import CapacityError
from executor.launch.gpus import load_module
from executor.workers.handover import Handover, handover_of

Output = tuple[int, int]
"""Op and output."""


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

    def keep_only(self, outputs: Collection[Output]) -> None:
        """Frees the buffers of all other outputs. Nothing runs, all has been settled."""
        with self._lock:
            gone = [key for key in self._buffers if key[:2] not in outputs]
            for key in gone:
                self.allocated_bytes -= self._buffers.pop(key).tensor.nbytes

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
        if self._limit_bytes and self.allocated_bytes + num_bytes > self._limit_bytes:
            raise self._no_room(num_bytes, self._limit_bytes - self.allocated_bytes)
        try:
            tensor = self._torch.empty(num_bytes, dtype=self._torch.uint8, device=self._device)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise self._no_room(num_bytes, self._free_bytes()) from error
        self.allocated_bytes += num_bytes
        return _Buffer(tensor)

    def no_room_beside(self, error: Exception) -> CapacityError:
        """Returns what to raise where a kernel found too little memory beside the tensors."""
        reason = str(error).splitlines()[0]
        return CapacityError(
            f"a kernel fits beside the tensors into the memory of its device, and {self._owner} "
            f"with {self.allocated_bytes} bytes of tensors has too little: {reason}"
        )

    def _no_room(self, num_bytes: int, free_bytes: int) -> CapacityError:
        return CapacityError(
            f"tensors fit into the memory of the device that they are on, and {self._owner} with "
            f"{self.allocated_bytes} bytes of tensors wants {num_bytes} more, of which "
            f"{free_bytes} are free"
        )

    def _free_bytes(self) -> int:
        if self._torch.device(self._device).type == "cuda":
            return int(self._torch.cuda.mem_get_info(self._device)[0])
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def is_out_of_memory(error: Exception) -> bool:
    """True if torch raised it because memory did not suffice; on cores its type does not tell."""
    torch: Any = load_module("torch")
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


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
