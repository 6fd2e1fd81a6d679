"""The PPO job as a dataflow graph: environments, agents, trainers, collectives, weight broadcast.

One iteration is: every environment shard collects `horizon` steps with the policy of the iteration
before; advantages per shard; statistics over all shards; epochs x minibatches of gradient parts,
their all-reduce in segments, and the optimizer step per segment; the weights then go back to the
environments along loop-carried edges. Op names are coordinates: `grad[epoch,minibatch,trainer]`.

Three modes, which differ in edges and window only (`JobMode`).
"""

from collections.abc import Callable
from dataclasses import dataclass

from doppler.core.errors import GraphError
from doppler.core.graph import INPUT_KIND, DataflowGraph, Edge, EdgeMode, Group, Op
from doppler.core.job_mode import JobMode

# (producer name, output, distance, mode)
_Input = tuple[str, int, int, EdgeMode]


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
        mode: How the weights reach the environments.
        staleness: Asynchronous mode: versions that a rollout's weights may be behind those of the
            iteration before; at least 1 there, 0 in the other modes.
        exact_advantages: Advantages read the weights of the iteration before in every mode, as
            importance weights need, not the newest that are there.
    """

    num_shards: int = 6
    horizon: int = 16
    chunk: int = 8
    fused: bool = True
    num_trainers: int = 4
    num_segments: int = 2
    epochs: int = 4
    minibatches: int = 2
    mode: JobMode = JobMode.synchronous
    staleness: int = 0
    exact_advantages: bool = False

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
        if (self.staleness < 1) == (self.mode is JobMode.asynchronous) or self.staleness < 0:
            raise GraphError(
                f"staleness is at least 1 in asynchronous mode and 0 in the others, and it is "
                f"{self.staleness} in {self.mode.value} mode"
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
    """Returns the graph of a PPO job.

    Args:
        name: Name of the graph.
        shape: How the job is cut, and its mode.
        size_of: Size of the op of a kind at its coordinates; the fixed policy of a serving job is
            as large as a `broadcast`.
        window: Iterations in flight; more where the staleness needs more.

    Raises:
        GraphError: If the sizes are impossible.

    Source: schedule of PPO (Schulman et al. 2017, algorithm 1); modes and sizes as in GMI-DRL
    section 2; staleness as a bound on versions, as in asynchronous PPO pipelines.
    """
    rows = _Rows(size_of)
    is_serving = shape.mode is JobMode.serving
    if is_serving:
        rows.add_input(_SERVED_POLICY, size_of("broadcast", ()).outputs)
    if shape.fused:
        _add_fused(rows, shape)
    else:
        _add_unrolled(rows, shape)
    if not is_serving:
        _add_advantages(rows, shape)
        _add_statistics(rows, shape)
        _add_training(rows, shape)
    return rows.graph(name, max(window, shape.staleness + 2))


_SERVED_POLICY = "policy"


def _token(name: str, output: int, distance: int = 0) -> _Input:
    return (name, output, distance, EdgeMode.token)


def _weights(shape: DRLJobShape) -> _Input:
    """The edge on which the policy comes: the one thing that the modes differ in."""
    if shape.mode is JobMode.serving:
        return _token(_SERVED_POLICY, 0)
    if shape.mode is JobMode.asynchronous:
        return ("broadcast", 0, 1 + shape.staleness, EdgeMode.latest)
    return _token("broadcast", 0, 1)


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

    def add_input(self, name: str, outputs: tuple[int, ...]) -> None:
        self._ops.append(Op(kind=INPUT_KIND, name=name, outputs=outputs))
        self._inputs.append([])

    def graph(self, name: str, window: int) -> DataflowGraph:
        ids = {op.name: index for index, op in enumerate(self._ops)}
        edges = tuple(
            Edge(ids[src], output, dst, distance, mode)
            for dst, inputs in enumerate(self._inputs)
            for src, output, distance, mode in inputs
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
            before = (
                _token(f"rollout[{k},{c - 1}]", 1) if c else _token(f"rollout[{k},{last}]", 1, 1)
            )
            inputs = [_weights(shape), before]
            rows.add("rollout", (k, c), f"rollout[{c}]", inputs, f"env[{k}]")


def _add_unrolled(rows: _Rows, shape: DRLJobShape) -> None:
    last = shape.horizon - 1
    for k in range(shape.num_shards):
        for t in range(shape.horizon):
            before = (
                _token(f"env_step[{k},{t - 1}]", 0) if t else _token(f"env_step[{k},{last}]", 0, 1)
            )
            rows.add("infer", (k, t), f"infer[{t}]", [_weights(shape), before])
            rows.add(
                "env_step",
                (k, t),
                f"env_step[{t}]",
                [_token(f"infer[{k},{t}]", 1)],
                f"env[{k}]",
            )


def _add_advantages(rows: _Rows, shape: DRLJobShape) -> None:
    weights = _token("broadcast", 0, 1) if shape.exact_advantages else _weights(shape)
    for k in range(shape.num_shards):
        inputs = [weights]
        if shape.fused:
            inputs += [_token(f"rollout[{k},{c}]", 0) for c in range(shape.num_chunks)]
            inputs += [_token(f"rollout[{k},{shape.num_chunks - 1}]", 1)]
        else:
            inputs += [_token(f"infer[{k},{t}]", 0) for t in range(shape.horizon)]
            inputs += [_token(f"env_step[{k},{t}]", 1) for t in range(shape.horizon)]
            inputs += [_token(f"env_step[{k},{shape.horizon - 1}]", 0)]
        rows.add("advantage", (k,), "advantage", inputs)


def _add_statistics(rows: _Rows, shape: DRLJobShape) -> None:
    inputs = [_token(f"advantage[{k}]", 1) for k in range(shape.num_shards)]
    rows.add("collect", (), "collect", [*inputs, _token("collect", 1, 1)])


def _add_training(rows: _Rows, shape: DRLJobShape) -> None:
    segments = range(shape.num_segments)
    updates = [(e, b) for e in range(shape.epochs) for b in range(shape.minibatches)]
    last = updates[-1]
    for index, (e, b) in enumerate(updates):
        previous, distance = (updates[index - 1], 0) if index else (last, 1)
        weights = [_token(f"adam[{previous[0]},{previous[1]},{j}]", 0, distance) for j in segments]
        data = [_token(f"advantage[{k}]", 0) for k in range(shape.num_shards)]
        for m in range(shape.num_trainers):
            inputs = [*weights, *data, _token("collect", 0)]
            rows.add("grad", (e, b, m), f"grad[{e},{b}]", inputs)
        for j in segments:
            parts = [_token(f"grad[{e},{b},{m}]", j) for m in range(shape.num_trainers)]
            rows.add("reduce", (e, b, j), f"reduce[{e},{b}]", parts)
        norms = [_token(f"reduce[{e},{b},{j}]", 1) for j in segments]
        for j in segments:
            inputs = [_token(f"reduce[{e},{b},{j}]", 0), *norms]
            rows.add("adam", (e, b, j), f"adam[{e},{b}]", inputs, f"optimizer[{j}]")
    policy = [_token(f"adam[{last[0]},{last[1]},{j}]", 0) for j in segments]
    rows.add("broadcast", (), "broadcast", [*policy, _token("collect", 1)])
