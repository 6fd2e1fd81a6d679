"""A worker's GPU: opened, looked at, made current for the thread that runs the ops.

Every worker process sees one GPU (or one MIG instance) as `cuda:0`. Green contexts of one process
are made together, by whichever thread comes first. Not yet run on hardware.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from doppler.core.errors import ExecutionError
from executor.launch.gpus import load_module
from executor.workers.green_context import GreenContexts, make_contexts
from executor.workers.mps import MpsControl
from executor.workers.share import GREEN_CONTEXT, MPS, GpuShare, Seen, check_seen

CUDA_DEVICE = "cuda:0"


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """Where the kernels of a device compute.

    Attributes:
        torch_device: torch's name of it; host memory is "cpu".
        stream: torch's stream for all its work, or None for the current one.
    """

    torch_device: str
    stream: Any = None

    def active(self) -> AbstractContextManager[Any]:
        """Makes the stream the current one of this thread."""
        if self.stream is None:
            return contextlib.nullcontext()
        torch = load_module("torch")
        assert torch is not None
        stream: AbstractContextManager[Any] = torch.cuda.stream(self.stream)
        return stream

    def synchronize(self) -> None:
        """Waits until all work of the stream has ended."""
        if self.stream is not None:
            self.stream.synchronize()


class _ProcessContexts:
    """The green contexts of this process, made once for all its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: GreenContexts | None = None

    def get(self, torch: Any, split: tuple[int, ...]) -> GreenContexts:
        with self._lock:
            if self._made is None:
                module = load_module("torch.cuda.green_contexts")
                if module is None or not hasattr(module.GreenContext, "Stream"):
                    raise ExecutionError(
                        f"green contexts need torch 2.12, whose contexts have streams, and this "
                        f"torch is {torch.__version__}"
                    )
                torch.cuda.init()
                self._made = make_contexts(module, split, 0)
            return self._made


_contexts = _ProcessContexts()


def open_accelerator(share: GpuShare) -> tuple[Accelerator, Seen]:
    """Opens the GPU of this process, looks at it and checks it against the share.

    Raises:
        ClusterError: If it is not what the device was given (see `check_seen`).
        ExecutionError: If torch shows no GPU, or green contexts or the MPS daemon are missing.
    """
    torch: Any = load_module("torch")
    if not torch.cuda.is_available():
        raise ExecutionError(
            f"device {share.device!r} is cut from {share.gpu!r}, and this torch "
            f"({torch.__version__}) shows no GPU to its worker"
        )
    torch.cuda.set_device(0)
    fraction = share.memory_fraction(torch.cuda.mem_get_info(0)[1])
    if fraction is not None:
        torch.cuda.set_per_process_memory_fraction(fraction, 0)
    stream, granted, is_disjoint = None, 0, True
    if share.kind == GREEN_CONTEXT:
        made = _contexts.get(torch, share.split)
        stream, granted = made.contexts[share.position].Stream(), made.granted[share.position]
        is_disjoint = made.is_disjoint
    else:
        stream = torch.cuda.Stream()
    seen = _look(torch, share, granted, is_disjoint)
    check_seen(share, seen)
    return Accelerator(torch_device=CUDA_DEVICE, stream=stream), seen


def _look(torch: Any, share: GpuShare, granted: int, is_disjoint: bool) -> Seen:
    free, total = torch.cuda.mem_get_info(0)
    return Seen(
        units=torch.cuda.get_device_properties(0).multi_processor_count,
        total_bytes=total,
        free_bytes=free,
        pid=os.getpid(),
        mps_clients=tuple(_clients(share.pipe_directory)) if share.kind == MPS else (),
        granted=granted,
        is_disjoint=is_disjoint,
    )


def _clients(pipe_directory: str) -> Iterator[int]:
    control = MpsControl(pipe_directory)
    for server in control.servers():
        yield from control.clients(server)
