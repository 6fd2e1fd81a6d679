"""Runs the ops of a PPO job one after the other in one process, without the executor.

The op list is written from the definition of the job alone, so it also says what the graph is.
"""

from dataclasses import dataclass

import numpy as np

from doppler.core.graph import DataflowGraph
from executor.drl.config import PPOJobConfig
from executor.drl.job import PPOJob

_ALIGN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    op: str
    output: int
    distance: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpec:
    name: str
    kind: str
    group: str
    inputs: tuple[Input, ...]


def job_ops(config: PPOJobConfig) -> list[OpSpec]:
    """Returns the ops of one iteration in a topological order."""
    ops: list[OpSpec] = []

    def add(name: str, inputs: list[Input], group: str = "") -> None:
        kind = name.split("[", maxsplit=1)[0]
        ops.append(OpSpec(name=name, kind=kind, group=group, inputs=tuple(inputs)))

    def at(op: str, output: int = 0, distance: int = 0) -> Input:
        return Input(op=op, output=output, distance=distance)

    vector = at("broadcast", 0, 1)
    last = config.num_chunks - 1
    horizon = config.horizon
    for k in range(config.num_shards):
        if config.fused:
            for c in range(config.num_chunks):
                before = at(f"rollout[{k},{c - 1}]", 1) if c else at(f"rollout[{k},{last}]", 1, 1)
                add(f"rollout[{k},{c}]", [vector, before], f"env[{k}]")
            records = [at(f"rollout[{k},{c}]") for c in range(config.num_chunks)]
            final = at(f"rollout[{k},{last}]", 1)
        else:
            for t in range(horizon):
                before = (
                    at(f"env_step[{k},{t - 1}]") if t else at(f"env_step[{k},{horizon - 1}]", 0, 1)
                )
                add(f"infer[{k},{t}]", [vector, before])
                add(f"env_step[{k},{t}]", [at(f"infer[{k},{t}]", 1)], f"env[{k}]")
            records = [at(f"infer[{k},{t}]") for t in range(horizon)]
            records += [at(f"env_step[{k},{t}]", 1) for t in range(horizon)]
            final = at(f"env_step[{k},{horizon - 1}]")
        add(f"advantage[{k}]", [vector, *records, final])
    shards, segments = range(config.num_shards), range(config.num_segments)
    add("collect", [*[at(f"advantage[{k}]", 1) for k in shards], at("collect", 1, 1)])
    final_step = f"{config.epochs - 1},{config.minibatches - 1}"
    previous = [at(f"adam[{final_step},{j}]", 0, 1) for j in segments]
    rows = [at(f"advantage[{k}]") for k in shards]
    for e in range(config.epochs):
        for b in range(config.minibatches):
            for m in range(config.num_trainers):
                add(f"grad[{e},{b},{m}]", [*previous, *rows, at("collect")])
            for j in segments:
                parts = [at(f"grad[{e},{b},{m}]", j) for m in range(config.num_trainers)]
                add(f"reduce[{e},{b},{j}]", parts)
            norms = [at(f"reduce[{e},{b},{j}]", 1) for j in segments]
            for j in segments:
                add(f"adam[{e},{b},{j}]", [at(f"reduce[{e},{b},{j}]"), *norms], f"optimizer[{j}]")
            previous = [at(f"adam[{e},{b},{j}]") for j in segments]
    add("broadcast", [*previous, at("collect", 1)])
    return ops


def graph_ops(graph: DataflowGraph) -> list[OpSpec]:
    """Returns the ops of a graph in a topological order."""
    return [
        OpSpec(
            name=graph.ops[op].name,
            kind=graph.ops[op].kind,
            group=graph.ops[op].group or "",
            inputs=tuple(
                Input(op=graph.ops[edge.src].name, output=edge.output, distance=edge.distance)
                for edge in (graph.edges[e] for e in graph.in_edges[op])
            ),
        )
        for op in graph.topological_order
    ]


def aligned(size: int) -> np.ndarray:
    """Returns `size` bytes of 0xFF (NaN as floats), aligned, so that unwritten reads stand out."""
    spare = np.full(size + _ALIGN, 255, np.uint8)
    first = -spare.ctypes.data % _ALIGN
    return spare[first : first + size]


class Interpreter:
    """One job, run op by op; every tensor of the last iteration stays readable."""

    def __init__(self, config: PPOJobConfig, graph: DataflowGraph | None = None) -> None:
        self.config = config
        self.job = PPOJob(config)
        self.ops = job_ops(config) if graph is None else graph_ops(graph)
        names = {op.group for op in self.ops if op.group}
        self.groups = {name: self.job.create_group(name, 1) for name in sorted(names)}
        self.kernels = {
            op.name: self.job.bind(op.name, op.kind, self.groups.get(op.group), 1)
            for op in self.ops
        }
        self.iteration = 0
        self.now: dict[tuple[str, int], np.ndarray] = {}
        self.before: dict[tuple[str, int], np.ndarray] = {}

    def _read(self, source: Input) -> np.ndarray:
        key = (source.op, source.output)
        if source.distance == 0:
            return self.now[key]
        if key not in self.before:
            value = self.job.initial(source.op, source.output, -1)
            size = self.job.output_bytes(source.op)[source.output]
            self.before[key] = aligned(size)
            self.before[key][:] = 0 if value is None else value
        return self.before[key]

    def run_op(self, op: OpSpec) -> None:
        inputs = [self._read(source).view() for source in op.inputs]
        for array in inputs:
            array.flags.writeable = False
        outputs = [aligned(size) for size in self.job.output_bytes(op.name)]
        self.now |= {(op.name, index): output for index, output in enumerate(outputs)}
        self.kernels[op.name](self.iteration, inputs, outputs)

    def step(self) -> None:
        """Runs one iteration."""
        self.now = {}
        for op in self.ops:
            self.run_op(op)
        self.before = self.now
        self.iteration += 1

    def run(self, iterations: int) -> "Interpreter":
        for _ in range(iterations):
            self.step()
        return self

    def tensor(self, op: str, output: int = 0) -> np.ndarray:
        """Returns a tensor of the last iteration as bytes."""
        return self.before[op, output]

    def vector(self) -> np.ndarray:
        """Returns the policy parameters after the last iteration."""
        return self.tensor("broadcast")[: 4 * self.job.sizes.num_parameters].view(np.float32)

    def metrics(self):
        losses = [
            self.tensor(op.name, self.config.num_segments) for op in self.ops if op.kind == "grad"
        ]
        return self.job.metrics(self.iteration - 1, self.tensor("collect"), losses)
