"""What a job gives to the executor: kernels, group state, initial tokens."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from executor.workers.accelerator import Accelerator


class Kernel(Protocol):
    """Computes one op; the same inputs give the same outputs on every device.

    `inputs` are read-only, `outputs` writable uint8 views of shared memory: one input per in-edge
    of the op in the graph's edge order (graph inputs included), one output per output of the op.
    `iteration` counts from 0 over the whole life of the job.
    """

    def __call__(
        self, iteration: int, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> None:
        """Writes every output in full."""
        ...


class TensorKernel(Protocol):
    """Computes one op where its device computes; otherwise as `Kernel`.

    `inputs` and `outputs` are torch tensors, uint8[bytes] on the accelerator's device, inputs not
    to be written. Work is asked for on the current stream and need not have ended on return.
    """

    def __call__(self, iteration: int, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Asks for all that writes every output in full."""
        ...


class GroupState(Protocol):
    """State of one colocation group that lives on one device and can move."""

    def export_state(self) -> dict[str, np.ndarray]:
        """Returns everything that the group needs to go on elsewhere, arrays only."""
        ...

    def import_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Takes over; going on is bitwise the same as if nothing had moved."""
        ...


class Job(Protocol):
    """Built anew in every worker process from a JSON configuration."""

    def create_group(self, name: str, threads: int) -> GroupState:
        """Returns the group's state at the start of the job."""
        ...

    def bind(self, op_name: str, kind: str, state: GroupState | None, threads: int) -> Kernel:
        """Returns the kernel of one op; `threads` is what its device may use."""
        ...

    def initial(self, op_name: str, output: int, version: int) -> np.ndarray | None:
        """Returns the bytes of an initial token (version -1, -2, ...) or graph input (version 0).

        None means zeros.
        """
        ...


@runtime_checkable
class AcceleratedJob(Job, Protocol):
    """A job whose kernels can compute on a GPU; others run on core groups only.

    The runtime brings tensors to the GPU and back where an edge crosses; kernels copy nothing.
    """

    def use_accelerator(self, accelerator: Accelerator) -> None:
        """Says where groups and kernels that are made from now on compute."""
        ...

    def bind_tensors(
        self, op_name: str, kind: str, state: GroupState | None, threads: int
    ) -> TensorKernel | None:
        """Returns the kernel of one op on the accelerator; None if it runs on the host: `bind`."""
        ...
