"""Adam on one segment of a flat parameter vector, with clipping by the norm of all segments.

Source: Kingma & Ba 2015, "Adam: a method for stochastic optimization", algorithm 1.
"""

import threading
from collections.abc import Mapping, Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from doppler.core.errors import ExecutionError

Float = NDArray[np.float32]
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-5  # epsilon as in the PPO baselines: steadier than 1e-8
NORM_FLOOR = 1e-6


def clip_scale(squared_norms: Sequence[float], max_norm: float) -> float:
    """Returns the factor that keeps the norm of all segments together within `max_norm`.

    min(1, max_norm / (norm + 1e-6)); squares are added from first to last.
    """
    norm = sqrt(sum(squared_norms))
    return min(1.0, max_norm / (norm + NORM_FLOOR))


class AdamSegment:
    """Parameters of one segment with their moments; every float stays on one device.

    Attributes:
        parameters: [L] current values.
        lock: Held by whoever takes a step: trainers that are independent share a segment.
    """

    def __init__(self, parameters: Float) -> None:
        self.parameters = parameters.copy()
        self.lock = threading.Lock()
        self._m = np.zeros_like(parameters)
        self._v = np.zeros_like(parameters)
        self._steps = 0
        self._scratch = np.empty_like(parameters)
        self._update = np.empty_like(parameters)

    @property
    def num_steps(self) -> int:
        """Steps taken."""
        return self._steps

    def step(self, gradient: Float, scale: float, learning_rate: float) -> Float:
        """Takes one step with `gradient` x `scale` and returns the parameters (not a copy)."""
        self._steps += 1
        scratch, update = self._scratch, self._update
        np.multiply(gradient, np.float32(scale), out=update)
        # m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
        np.multiply(update, np.float32(1 - BETA1), out=scratch)
        self._m *= np.float32(BETA1)
        self._m += scratch
        np.multiply(update, update, out=scratch)
        scratch *= np.float32(1 - BETA2)
        self._v *= np.float32(BETA2)
        self._v += scratch
        # p -= lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)
        np.sqrt(self._v, out=scratch)
        scratch *= np.float32(1.0 / sqrt(1.0 - BETA2**self._steps))
        scratch += np.float32(EPSILON)
        np.divide(self._m, scratch, out=update)
        update *= np.float32(learning_rate / (1.0 - BETA1**self._steps))
        self.parameters -= update
        return self.parameters

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """Returns copies of parameters, moments and step count."""
        return {
            "parameters": self.parameters.copy(),
            "m": self._m.copy(),
            "v": self._v.copy(),
            "steps": np.array([self._steps], np.int64),
        }

    def import_state(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Continues from an exported state.

        Raises:
            ExecutionError: A name or shape is not that of this segment.
        """
        check_state(self.export_state(), state)
        self.parameters[:] = state["parameters"]
        self._m[:] = state["m"]
        self._v[:] = state["v"]
        self._steps = int(state["steps"][0])

    def set_threads(self, num_threads: int) -> None:
        """Has no effect: a segment is updated by one thread."""


def check_state(
    mine: Mapping[str, NDArray[np.generic]], theirs: Mapping[str, NDArray[np.generic]]
) -> None:
    """Checks that an exported state fits in the place of another.

    Raises:
        ExecutionError: Names an array that is missing or has another shape or type.
    """
    for name, array in mine.items():
        other = theirs.get(name)
        if other is None or other.shape != array.shape or other.dtype != array.dtype:
            found = "nothing" if other is None else f"{other.dtype}{list(other.shape)}"
            raise ExecutionError(
                f"optimizer state {name!r} must be {array.dtype}{list(array.shape)}, "
                f"but the imported state has {found}"
            )
