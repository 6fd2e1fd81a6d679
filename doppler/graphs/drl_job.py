"""The PPO job as a dataflow graph: environments, agents, trainers, collectives, weight broadcast.

One iteration is: every environment shard collects `horizon` steps with the policy of the iteration
before; advantages per shard; statistics over all shards; epochs x minibatches of gradient parts,
their all-reduce in segments, and the optimizer step per segment; the weights then go back to the
environments along loop-carried edges. Op names are coordinates: `grad[epoch,minibatch,trainer]`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from doppler.core.errors import GraphError
from doppler.core.graph import DataflowGraph, Edge, Group, Op

# (producer name, output, distance)
_Input = tuple[str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DRLJobShape:
    """How the job is cut into ops.

    Attributes:
        num_shards: Environment shards K.
        horizon: Control steps per iteration H.
        chunk: Control steps per fused rollout op; divides the horizon.
        fused: True: environment and agent are one `rollout` op per chunk. False: one `infer` and
            one `env_step` op per control step.
        num_trainers: Parts M that each minibatch's gradient is computed in.
        num_segments: Segments S of the gradient all-reduce and of the optimizer.
        epochs, minibatches: PPO's.
    """

    num_shards: int = 6
    horizon: int = 16
    chunk: int = 8
    fused: bool = True
    num_trainers: int = 4
    num_segments: int = 2
    epochs: int = 4
    minibatches: int = 2

    def __post_init__(self) -> None:
        for name in (
            "num_shards",
            "horizon",
            "chunk",
            "num_trainers",
            "num_segments",
            "epochs",
            "minibatches",
        ):
            if getattr(self, name) < 1:
                raise GraphError(f"{name} is at least 1, and it is {getattr(self, name)}")
        if self.horizon % self.chunk:
            raise GraphError(
                f"the chunk divides the horizon ({self.horizon}), and it is {self.chunk}"
            )

    @property
    def num_chunks(self) -> int:
        """Fused rollout ops per shard and iteration."""
        return self.horizon // self.chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSize:
    """Bytes and work of every op of one kind.

    Attributes:
        outputs: Bytes of each output.
        flop: Floating-point operations of one op.
        bytes_moved: Bytes that one op reads and writes.
        state_bytes: Bytes of group state that the kind keeps (once per group).
    """

    outputs: tuple[int, ...]
    flop: int = 0
    bytes_moved: int = 0
    state_bytes: int = 0


SizeOf = Callable[[str, tuple[int, ...]], OpSize]
"""Returns the size of the op of a kind at its coordinates."""


def build_drl_job(name: str, shape: DRLJobShape, size_of: SizeOf, window: int = 3) -> DataflowGraph:
    """Returns the graph of a synchronous PPO job.

    Args:
        name: Name of the graph.
        shape: How the job is cut.
        size_of: Size of the op of a kind at its coordinates.
        window: Iterations in flight.

    Raises:
        GraphError: If the sizes are impossible.

    Source: schedule of PPO (Schulman et al. 2017, algorithm 1); sizes as in GMI-DRL section 2.
    """
    rows = _Rows(size_of)
    if shape.fused:
        _add_fused(rows, shape)
    else:
        _add_unrolled(rows, shape)
    _add_statistics(rows, shape)
    _add_training(rows, shape)
    return rows.graph(name, window)


class _Rows:
    """Ops by name with their inputs by name; ids are given when all names are known."""

    def __init__(self, size_of: SizeOf) -> None:
        self._size_of = size_of
        self._ops: list[Op] = []
        self._inputs: list[list[_Input]] = []
        self._groups: dict[str, int] = {}

    def add(
        self,
        kind: str,
        at: tuple[int, ...],
        meta_op: str,
        inputs: list[_Input],
        group: str | None = None,
    ) -> None:
        size = self._size_of(kind, at)
        name = f"{kind}[{','.join(map(str, at))}]" if at else kind
        self._ops.append(
            Op(
                kind=kind,
                name=name,
                outputs=size.outputs,
                flop=size.flop,
                bytes_moved=size.bytes_moved,
                group=group,
                meta_op=meta_op,
            )
        )
        self._inputs.append(inputs)
        if group is not None:
            self._groups[group] = max(self._groups.get(group, 0), size.state_bytes)

    def graph(self, name: str, window: int) -> DataflowGraph:
        ids = {op.name: index for index, op in enumerate(self._ops)}
        edges = tuple(
            Edge(ids[src], output, dst, distance)
            for dst, inputs in enumerate(self._inputs)
            for src, output, distance in inputs
        )
        return DataflowGraph(
            name=name,
            ops=tuple(self._ops),
            edges=edges,
            groups=tuple(Group(group, size) for group, size in self._groups.items()),
            window=window,
        )


def _add_fused(rows: _Rows, shape: DRLJobShape) -> None:
    last = shape.num_chunks - 1
    for k in range(shape.num_shards):
        for c in range(shape.num_chunks):
            before = (f"rollout[{k},{c - 1}]", 1, 0) if c else (f"rollout[{k},{last}]", 1, 1)
            inputs = [("broadcast", 0, 1), before]
            rows.add("rollout", (k, c), f"rollout[{c}]", inputs, f"env[{k}]")
    for k in range(shape.num_shards):
        inputs = [("broadcast", 0, 1)]
        inputs += [(f"rollout[{k},{c}]", 0, 0) for c in range(shape.num_chunks)]
        inputs += [(f"rollout[{k},{last}]", 1, 0)]
        rows.add("advantage", (k,), "advantage", inputs)


def _add_unrolled(rows: _Rows, shape: DRLJobShape) -> None:
    last = shape.horizon - 1
    for k in range(shape.num_shards):
        for t in range(shape.horizon):
            before = (f"env_step[{k},{t - 1}]", 0, 0) if t else (f"env_step[{k},{last}]", 0, 1)
            rows.add("infer", (k, t), f"infer[{t}]", [("broadcast", 0, 1), before])
            rows.add(
                "env_step",
                (k, t),
                f"env_step[{t}]",
                [(f"infer[{k},{t}]", 1, 0)],
                f"env[{k}]",
            )
    for k in range(shape.num_shards):
        inputs = [("broadcast", 0, 1)]
        inputs += [(f"infer[{k},{t}]", 0, 0) for t in range(shape.horizon)]
        inputs += [(f"env_step[{k},{t}]", 1, 0) for t in range(shape.horizon)]
        inputs += [(f"env_step[{k},{last}]", 0, 0)]
        rows.add("advantage", (k,), "advantage", inputs)


def _add_statistics(rows: _Rows, shape: DRLJobShape) -> None:
    inputs = [(f"advantage[{k}]", 1, 0) for k in range(shape.num_shards)]
    rows.add("collect", (), "collect", [*inputs, ("collect", 1, 1)])


def _add_training(rows: _Rows, shape: DRLJobShape) -> None:
    segments = range(shape.num_segments)
    updates = [(e, b) for e in range(shape.epochs) for b in range(shape.minibatches)]
    last = updates[-1]
    for index, (e, b) in enumerate(updates):
        previous, distance = (updates[index - 1], 0) if index else (last, 1)
        weights = [(f"adam[{previous[0]},{previous[1]},{j}]", 0, distance) for j in segments]
        data = [(f"advantage[{k}]", 0, 0) for k in range(shape.num_shards)]
        for m in range(shape.num_trainers):
            inputs = [*weights, *data, ("collect", 0, 0)]
            rows.add("grad", (e, b, m), f"grad[{e},{b}]", inputs)
        for j in segments:
            parts = [(f"grad[{e},{b},{m}]", j, 0) for m in range(shape.num_trainers)]
            rows.add("reduce", (e, b, j), f"reduce[{e},{b}]", parts)
        norms = [(f"reduce[{e},{b},{j}]", 1, 0) for j in segments]
        for j in segments:
            inputs = [(f"reduce[{e},{b},{j}]", 0, 0), *norms]
            rows.add("adam", (e, b, j), f"adam[{e},{b}]", inputs, f"optimizer[{j}]")
    policy = [(f"adam[{last[0]},{last[1]},{j}]", 0, 0) for j in segments]
    rows.add("broadcast", (), "broadcast", [*policy, ("collect", 1, 0)])
