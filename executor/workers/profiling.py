"""Runs the kernels of some ops over and over, for calibration."""

import time
import traceback
from collections.abc import Callable, Sequence

import numpy as np

from doppler.core.graph import DataflowGraph
from executor.arena import Arena
from executor.board import BoardWriter
from executor.job import Kernel
from executor.messages import Profile
from executor.workers.kernels import KernelTable
from executor.workers.runners import JobCodeError


class ProfileRun:
    """A profile task on one device, with kernels, state and outputs that are nobody else's.

    Kernels read the newest tensors in the arena and write private buffers, and groups are private
    copies, so the job does not notice. Iterations go on from the job's current one.
    """

    def __init__(
        self,
        request: Profile,
        graph: DataflowGraph,
        arena: Arena,
        table: KernelTable,
        board: BoardWriter,
    ) -> None:
        self._task = request.task
        self._iteration = request.iteration
        self._board = board
        groups = {name: table.create_group(name, a) for name, a in request.states.items()}
        self._calls: list[tuple[int, Kernel, Sequence[np.ndarray], Sequence[np.ndarray]]] = []
        for op in self._task.ops:
            spec = graph.ops[op]
            state = None if spec.group is None else groups[spec.group]
            edges = [graph.edges[edge] for edge in graph.in_edges[op]]
            inputs = tuple(
                arena.readable(edge.src, edge.output, request.iteration - 1) for edge in edges
            )
            outputs = tuple(np.zeros(size, dtype=np.uint8) for size in spec.outputs)
            self._calls.append((op, table.bind_kernel(op, state), inputs, outputs))

    def measure(self) -> np.ndarray:
        """Returns durations in ns, int64[repeats, ops], after the warm-up.

        Raises:
            JobCodeError: If a kernel raises.
        """
        for _ in range(self._task.warmup):
            self._repeat()
        rows = [self._repeat() for _ in range(self._task.repeats)]
        return np.array(rows, dtype=np.int64).reshape(-1, len(self._calls))

    def go_on(self, is_stopped: Callable[[], bool]) -> None:
        """Runs the ops unmeasured until stopped, so that no other device sees this one idle."""
        while not is_stopped():
            self._repeat()

    def _repeat(self) -> list[int]:
        durations: list[int] = []
        for op, kernel, inputs, outputs in self._calls:
            start_ns = time.monotonic_ns()
            self._board.begin(0, op, self._iteration, start_ns)
            try:
                kernel(self._iteration, inputs, outputs)
            except Exception as error:
                raise JobCodeError(op, self._iteration, traceback.format_exc()) from error
            end_ns = time.monotonic_ns()
            durations.append(end_ns - start_ns)
            self._board.end(0, op, self._iteration, start_ns, end_ns)
        self._iteration += 1
        return durations
