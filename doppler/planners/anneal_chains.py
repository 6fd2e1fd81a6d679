"""Chains of the annealing planner: compiled where the scorer has a kernel, else step by step.

Compiled chains know the critical path of their plans where the runs write a log. Elsewhere both
ways draw the same numbers and make the same moves, so they end with the same plans.

Arrays: `C` chains, `U` units, `V` ops.
"""

import numpy as np

from doppler.planners.anneal_core import MoveTables
from doppler.planners.anneal_critical import room
from doppler.planners.anneal_moves import propose, slacks
from doppler.planners.anneal_walk import temperature, walk
from doppler.planners.evaluator import Evaluator
from doppler.planners.mask import Ints
from simulator.engine.lanes import Kernel

CALLS_AT_ONCE = 2_000  # so that a deadline, a progress line or an interrupt need not wait long


class Walk:
    """Chains that walk side by side.

    Attributes:
        values_C, devices_CU, keys_CV: Where they stand.

    Args:
        tables: Moves.
        evaluator: Scores.
        rng: Seeds each chain's own generator.
        starts: (value, device per unit, priority per op) of each chain.
    """

    def __init__(
        self,
        tables: MoveTables,
        evaluator: Evaluator,
        rng: np.random.Generator,
        starts: list[tuple[int, Ints, Ints]],
    ) -> None:
        self._tables = tables
        self._evaluator = evaluator
        self.values_C = np.asarray([row[0] for row in starts], dtype=np.int64)
        self.devices_CU = np.stack([row[1] for row in starts]).astype(np.int64)
        self.keys_CV = np.stack([spread_keys(row[2]) for row in starts]).astype(np.int64)
        num_ops = self.keys_CV.shape[1]
        self._moves_N3 = np.zeros((room(num_ops), 3), dtype=np.int64)
        self._states_C = rng.integers(1, 2**63 - 1, size=len(starts), dtype=np.uint64)

    def run(self, steps: int, hot: float, cold: float) -> None:
        """Walks `steps` steps per chain while the temperature falls geometrically, both in ns."""
        kernel = self._evaluator.kernel()
        if kernel is None:
            self._run_stepwise(steps, hot, cold)
            return
        stride = max(1, CALLS_AT_ONCE // len(self.values_C))
        for first in range(0, steps, stride):
            self._run_compiled(kernel, first, min(first + stride, steps), steps, hot, cold)

    def _run_compiled(
        self, kernel: Kernel, first: int, last: int, steps: int, hot: float, cold: float
    ) -> None:
        evaluator = self._evaluator
        placement_V, keys_V = np.zeros_like(self.keys_CV[0]), np.zeros_like(self.keys_CV[0])
        calls, value = walk(
            *kernel,
            self._tables,
            self._states_C,
            self.values_C,
            self.devices_CU,
            self.keys_CV,
            self._moves_N3,
            hot,
            cold,
            first,
            last,
            steps,
            max(0, evaluator.remaining),
            evaluator.best_ns,
            placement_V,
            keys_V,
        )
        if value < 0:  # the scorer says what is wrong with the plan
            evaluator.score(placement_V[None], keys_V[None])
        evaluator.walked(calls, value, placement_V, keys_V)

    def _run_stepwise(self, steps: int, hot: float, cold: float) -> None:
        new_devices_CU, new_keys_CV = self.devices_CU.copy(), self.keys_CV.copy()
        placements_CV, slacks_C = np.zeros_like(self.keys_CV), np.zeros_like(self.values_C)
        for step in range(steps):
            slacks(self._states_C, temperature(hot, cold, step / max(1, steps - 1)), slacks_C)
            bounds_C = self.values_C + slacks_C
            propose(
                self._tables,
                self._states_C,
                self.devices_CU,
                self.keys_CV,
                new_devices_CU,
                new_keys_CV,
                placements_CV,
            )
            found_C = self._evaluator.score(placements_CV, new_keys_CV, bounds_C)
            accepted = np.flatnonzero(found_C <= bounds_C[: len(found_C)])
            self.devices_CU[accepted] = new_devices_CU[accepted]
            self.keys_CV[accepted] = new_keys_CV[accepted]
            self.values_C[accepted] = found_C[accepted]


def spread_keys(keys_V: Ints) -> Ints:
    """Keys with the same order and room between any two, so that shifts can be small.

    Of equal keys the first op has the largest, as it is the first to run.
    """
    order = np.argsort(np.lexsort((-np.arange(keys_V.size), keys_V)))
    return np.asarray(order * 1024, dtype=np.int64)
