"""How tensors pass between GMIs of one process: the tensor itself, ordered by a mark.

Green contexts of one process share one memory, so an edge between two of them copies nothing: the
producer marks its stream where the tensor is whole, and the consumer's stream waits for the mark.
On CUDA *not yet run on hardware*.

Source: PyTorch documentation of torch.cuda.Event and of torch.cuda.green_contexts ("Synchronization
with other streams is not automatic; use CUDA events as with any other custom stream").
"""

from typing import Any, Protocol

from executor.launch.gpus import load_module


class Handover(Protocol):
    """Orders work that different threads have asked one processor for."""

    def record(self) -> Any:
        """Returns a mark behind all that the calling thread has asked for so far."""
        ...

    def wait(self, mark: Any) -> None:
        """Lets what the calling thread asks for from now on begin after the mark."""
        ...


class HostHandover:
    """On cores work has ended when the call for it returns, so no mark has to be waited for."""

    def record(self) -> None:
        """Returns no mark."""

    def wait(self, mark: None) -> None:
        """Waits for nothing."""


class CudaHandover:
    """CUDA events on the current stream of the calling thread; the host never waits."""

    def __init__(self) -> None:
        self._torch: Any = load_module("torch")

    def record(self) -> Any:
        """Returns an event that is recorded on the current stream."""
        event = self._torch.cuda.Event()
        event.record()
        return event

    def wait(self, mark: Any) -> None:
        """Makes the current stream wait for an event."""
        self._torch.cuda.current_stream().wait_event(mark)


def handover_of(torch_device: str) -> Handover:
    """Returns what orders work on a torch device ("cuda:0", "cpu")."""
    return CudaHandover() if torch_device.startswith("cuda") else HostHandover()
