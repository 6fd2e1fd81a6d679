"""The kernels of the ops of one device, bound once, with their views of the arena."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from doppler.core.graph import DataflowGraph
from executor.arena import Arena
from executor.job import AcceleratedJob, GroupState, Job, Kernel
from executor.messages import StateArrays
from executor.workers.bound_op import BoundOp
from executor.workers.resident_op import HostBacked, Residence, ResidentOp


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
        self._residence: Residence | None = None
        self._graph = graph
        self._arena = arena
        self._threads = threads

    def keep_only(self, ops: Iterable[int]) -> None:
        """Forgets ops and groups that are not among `ops`."""
        kept = set(ops)
        self.ops = {op: bound for op, bound in self.ops.items() if op in kept}
        names = {self._graph.ops[op].group for op in kept}
        self.groups = {name: state for name, state in self.groups.items() if name in names}

    def set_job(self, job: Job, residence: Residence | None = None) -> None:
        """Gives the job that makes groups and kernels.

        Args:
            job: An `AcceleratedJob` if there is a residence.
            residence: Where the device keeps tensors of its own; None = in the arena alone.
        """
        self._job, self._residence = job, residence

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
        if self._residence is not None:
            assert isinstance(self._job, AcceleratedJob)
            compute = self._job.bind_tensors(spec.name, spec.kind, state, self._threads)
            if compute is not None:
                return HostBacked(compute, self._residence.accelerator)
        return self._job.bind(spec.name, spec.kind, state, self._threads)

    def bind(self, ops: Iterable[int], describe: Callable[[str], None]) -> None:
        """Binds those of `ops` that are not bound; `describe` hears what comes next."""
        for op in ops:
            if op in self.ops:
                continue
            spec = self._graph.ops[op]
            describe(f"binding op {spec.name!r}")
            state = None if spec.group is None else self.groups[spec.group]
            self.ops[op] = self._bound(op, self.bind_kernel(op, state))

    def _bound(self, op: int, kernel: Kernel) -> BoundOp:
        residence = self._residence
        if residence is None or self._graph.ops[op].is_input:
            return BoundOp(self._graph, op, kernel, self._arena)
        is_on_device = isinstance(kernel, HostBacked)
        compute = kernel.compute if isinstance(kernel, HostBacked) else kernel
        return ResidentOp(
            self._graph, op, compute, self._arena, residence, is_on_device=is_on_device
        )


def _stay(iteration: int, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
    """The kernel of an input: its bytes were written before the start and never change."""
