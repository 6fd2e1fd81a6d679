"""The jobs of `executor_overhead.py`: ops that do nothing, and ops of about 1 ms."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from executor.job import GroupState, Kernel

BUSY_STEPS = 380
STEP_ELEMENTS = 4096


class OverheadJob:
    """Kernels by op kind: `empty` and `busy`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def create_group(self, name: str, threads: int) -> GroupState:
        """Has no groups."""
        raise AssertionError(f"this job has no group {name!r}")

    def bind(self, op_name: str, kind: str, state: GroupState | None, threads: int) -> Kernel:
        """Returns the kernel of an op."""
        return empty if kind == "empty" else make_busy()

    def initial(self, op_name: str, output: int, version: int) -> np.ndarray | None:
        """Starts from zeros."""
        return None


def empty(iteration: int, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
    """Does nothing."""


def make_busy() -> Kernel:
    """Returns a kernel that computes for about 1 ms on one core, in its cache, without allocating.

    The values converge to 2, so every step takes the same time.
    """
    values = np.zeros(STEP_ELEMENTS)

    def busy(iteration: int, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        for _ in range(BUSY_STEPS):
            np.multiply(values, 0.5, out=values)
            np.add(values, 1.0, out=values)

    return busy
