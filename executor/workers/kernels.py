"""The kernels of the ops of one device, bound once, with their views of the arena."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from doppler.core.graph import DataflowGraph, EdgeMode, InputResidency
from executor.arena import Arena
from executor.job import GroupState, Job, Kernel
from executor.messages import StateArrays

Buffers = tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]


class BoundOp:
    """One op ready to run.

    Attributes:
        kernel: Its code.
        by_slot: Inputs and outputs for every `iteration % window`.
        latest: (position among the inputs, producer, output) of in-edges that read the newest
            version, in edge order; their entries in `by_slot` are replaced in every run.
    """

    __slots__ = ("_arena", "by_slot", "kernel", "latest")

    def __init__(self, graph: DataflowGraph, op: int, kernel: Kernel, arena: Arena) -> None:
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


class KernelTable:
    """Groups and bound ops of one device; both stay while they stay on the device.

    Attributes:
        groups: State of the groups that live here.
        ops: Bound ops.
    """

    def __init__(self, graph: DataflowGraph, arena: Arena, threads: int) -> None:
        self.groups: dict[str, GroupState] = {}
        self.ops: dict[int, BoundOp] = {}
        self._job: Job | None = None
        self._graph = graph
        self._arena = arena
        self._threads = threads

    def keep_only(self, ops: Iterable[int]) -> None:
        """Forgets ops and groups that are not among `ops`."""
        kept = set(ops)
        self.ops = {op: bound for op, bound in self.ops.items() if op in kept}
        names = {self._graph.ops[op].group for op in kept}
        self.groups = {name: state for name, state in self.groups.items() if name in names}

    def set_job(self, job: Job) -> None:
        """Gives the job that makes groups and kernels."""
        self._job = job

    def create_group(self, name: str, arrays: StateArrays | None) -> GroupState:
        """Returns a new state of a group: as at the start of the job, or with these arrays."""
        assert self._job is not None
        state = self._job.create_group(name, self._threads)
        if arrays is not None:
            state.import_state(arrays)
        return state

    def place_group(self, name: str, arrays: StateArrays | None) -> None:
        """Puts a group here; its ops are bound anew."""
        self.groups[name] = self.create_group(name, arrays)
        for op in self._graph.group_members[name]:
            self.ops.pop(op, None)

    def bind_kernel(self, op: int, state: GroupState | None) -> Kernel:
        """Returns a new kernel of an op."""
        spec = self._graph.ops[op]
        if spec.is_input:
            return _stay
        assert self._job is not None
        return self._job.bind(spec.name, spec.kind, state, self._threads)

    def bind(self, ops: Iterable[int], describe: Callable[[str], None]) -> None:
        """Binds those of `ops` that are not bound; `describe` hears what comes next."""
        for op in ops:
            if op in self.ops:
                continue
            spec = self._graph.ops[op]
            describe(f"binding op {spec.name!r}")
            state = None if spec.group is None else self.groups[spec.group]
            kernel = self.bind_kernel(op, state)
            self.ops[op] = BoundOp(self._graph, op, kernel, self._arena)


def _stay(iteration: int, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
    """The kernel of an input: its bytes were written before the start and never change."""
