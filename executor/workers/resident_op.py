"""Ops of a device that keeps tensors of its own: where their operands and results lie."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from doppler.core.graph import DataflowGraph
from doppler.core.plan import Plan
from executor.arena import Arena
from executor.job import Kernel, TensorKernel
from executor.launch.gpus import load_module
from executor.workers.accelerator import Accelerator
from executor.workers.bound_op import BoundOp
from executor.workers.resident import Output, ResidentTensors, Version, is_out_of_memory


@dataclass(kw_only=True)
class Residence:
    """Where the ops of one device compute, and which tensors must leave its process.

    Attributes:
        accelerator: Its processor.
        tensors: Buffers of the process.
        neighbours: Devices of the process, this one included.
        recorded: (op, output) whose values are kept: they go to host memory.
        crossing: (op, output) that a device of another process reads, or that are recorded.
    """

    accelerator: Accelerator
    tensors: ResidentTensors
    neighbours: frozenset[int]
    recorded: frozenset[Output] = frozenset()
    crossing: frozenset[Output] = frozenset()

    def prepare(self, graph: DataflowGraph, plan: Plan) -> None:
        """Gets ready for a segment under a plan: what lies in host memory is the truth.

        Buffers of earlier plans that no device of the process needs under this one are freed.
        """
        self.tensors.forget()
        here = [device in self.neighbours for device in plan.placement]
        read = {(edge.src, edge.output) for edge in graph.edges if here[edge.dst]}
        made = {
            (op, output)
            for op, spec in enumerate(graph.ops)
            if here[op]
            for output in range(len(spec.outputs))
        }
        self.tensors.keep_only(read | made)
        self.crossing = self.recorded | {
            (edge.src, edge.output)
            for edge in graph.edges
            if plan.placement[edge.dst] not in self.neighbours
        }

    def settle(self, ops: Sequence[int]) -> None:
        """Brings to host memory what ops have left on the device alone, and waits for it."""
        with self.accelerator.active():
            self.tensors.settle(ops)
        self.accelerator.synchronize()


class ResidentOp(BoundOp):
    """One op ready to run on a device that keeps tensors of its own.

    `buffers` returns `Version`s where a `BoundOp` returns arrays of operands, and `kernel` takes
    them; it returns when the results are whole, so that spans are those of the work.
    """

    __slots__ = ("_compute", "_is_on_device", "_op", "_places", "_residence", "_sources")

    def __init__(
        self,
        graph: DataflowGraph,
        op: int,
        compute: Kernel | TensorKernel,
        arena: Arena,
        residence: Residence,
        *,
        is_on_device: bool,
    ) -> None:
        """Binds an op; `is_on_device` says that `compute` takes tensors (a `TensorKernel`)."""
        super().__init__(graph, op, self._run, arena)
        self._op = op
        self._compute = compute
        self._residence = residence
        self._is_on_device = is_on_device
        edges = [graph.edges[edge] for edge in graph.in_edges[op]]
        self._sources = [
            (e.src, e.output, None if graph.ops[e.src].is_input else e.distance) for e in edges
        ]
        self._places = arena.layout.slots

    def buffers(self, iteration: int, versions: Sequence[int]) -> tuple[tuple[Any, ...], Any]:
        """Returns operands and results of an iteration; all numbers count over the job's life."""
        numbers = [0 if d is None else iteration - d for _, _, d in self._sources]
        for (position, _, _), version in zip(self.latest, versions, strict=bool(versions)):
            numbers[position] = version
        operands = tuple(
            self._version(op, output, number)
            for (op, output, _), number in zip(self._sources, numbers, strict=True)
        )
        return operands, self.by_slot[iteration % len(self.by_slot)][1]

    def _version(self, op: int, output: int, number: int) -> Version:
        host = self._arena.writable(op, output, number)
        return Version(op, output, number, number % self._places[op], host)

    def _run(
        self, iteration: int, operands: Sequence[Version], outputs: Sequence[np.ndarray]
    ) -> None:
        residence, tensors = self._residence, self._residence.tensors
        with residence.accelerator.active():
            if not self._is_on_device:
                self._run_on_host(iteration, operands, outputs)
                return
            place = iteration % self._places[self._op]
            results = [
                Version(self._op, output, iteration, place, host)
                for output, host in enumerate(outputs)
            ]
            arguments = [
                [tensors.read(version) for version in operands],
                [tensors.target(version) for version in results],
            ]
            try:
                self._compute(iteration, *arguments)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                raise tensors.no_room_beside(error) from error
            for version in results:
                crosses = (version.op, version.output) in residence.crossing
                tensors.written(version, crosses)
        residence.accelerator.synchronize()

    def _run_on_host(
        self, iteration: int, operands: Sequence[Version], outputs: Sequence[np.ndarray]
    ) -> None:
        for version in operands:
            self._residence.tensors.to_host(version)
        self._residence.accelerator.synchronize()
        arrays = []
        for version in operands:
            array = version.host.view()
            array.flags.writeable = False
            arrays.append(array)
        self._compute(iteration, arrays, outputs)


@dataclass(frozen=True, slots=True)
class HostBacked:
    """A tensor kernel on arrays of host memory: operands are copied to the device, results back.

    What a profile measures: it cannot know which tensors a plan keeps on the device.
    """

    compute: TensorKernel
    accelerator: Accelerator
    _torch: Any = field(default_factory=lambda: load_module("torch"))

    def __call__(
        self, iteration: int, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> None:
        """Computes one op; returns when the results are in host memory."""
        torch, device = self._torch, self.accelerator.torch_device
        with self.accelerator.active():
            # A copy first: torch takes writable memory only, and operands are not.
            operands = [torch.from_numpy(array.copy()).to(device) for array in inputs]
            results = [
                torch.empty(array.nbytes, dtype=torch.uint8, device=device) for array in outputs
            ]
            self.compute(iteration, operands, results)
            for array, result in zip(outputs, results, strict=True):
                torch.from_numpy(array).copy_(result)
        self.accelerator.synchronize()
