"""One op of a device, bound to its views of the arena."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from doppler.core.graph import DataflowGraph, EdgeMode, InputResidency
from executor.arena import Arena

Buffers = tuple[tuple[Any, ...], tuple[np.ndarray, ...]]
Call = Callable[[int, Sequence[Any], Sequence[np.ndarray]], None]
"""A kernel as a runner calls it: iteration, inputs, outputs."""


class BoundOp:
    """One op ready to run.

    Attributes:
        kernel: Its code.
        by_slot: Inputs and outputs for every `iteration % window`.
        latest: (position among the inputs, producer, output) of in-edges that read the newest
            version, in edge order; their entries in `by_slot` are replaced in every run.
    """

    __slots__ = ("_arena", "by_slot", "kernel", "latest")

    def __init__(self, graph: DataflowGraph, op: int, kernel: Call, arena: Arena) -> None:
        edges = [graph.edges[edge] for edge in graph.in_edges[op]]
        everywhere = graph.inputs is InputResidency.everywhere
        self._arena = arena
        self.kernel = kernel
        self.by_slot: list[Buffers] = [
            (
                tuple(arena.readable(e.src, e.output, slot - e.distance) for e in edges),
                tuple(
                    arena.writable(op, output, slot) for output in range(len(graph.ops[op].outputs))
                ),
            )
            for slot in range(graph.window)
        ]
        self.latest = tuple(
            (position, edge.src, edge.output)
            for position, edge in enumerate(edges)
            if edge.mode is EdgeMode.latest and not (everywhere and graph.ops[edge.src].is_input)
        )

    def buffers(self, iteration: int, versions: Sequence[int]) -> Buffers:
        """Returns inputs and outputs of an iteration; all numbers count over the job's life."""
        inputs, outputs = self.by_slot[iteration % len(self.by_slot)]
        if not versions:
            return inputs, outputs
        row = list(inputs)
        for (position, producer, output), version in zip(self.latest, versions, strict=True):
            row[position] = self._arena.readable(producer, output, version)
        return tuple(row), outputs
