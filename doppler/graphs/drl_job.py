"""The PPO job as a dataflow graph: environments, agents, trainers, collectives, weight broadcast.

One iteration is: every environment shard collects `horizon` steps with the policy of the iteration
before; advantages per shard; statistics over all shards; epochs x minibatches of gradient parts,
their all-reduce in segments (any composition of `doppler.graphs.collectives`, spelled out as ops),
and the optimizer step per segment; the weights then go back to the environments along loop-carried
edges. Op names are coordinates: `grad[epoch,minibatch,trainer]`.

Three modes, which differ in edges and window only (`JobMode`).
"""

from dataclasses import dataclass, fields, replace

from doppler.core.errors import GraphError
from doppler.core.graph import DataflowGraph, EdgeMode
from doppler.core.job_mode import JobMode
from doppler.graphs.collective_ops import FORWARD_KIND, REDUCE_KIND
from doppler.graphs.gradient_reduction import (
    DIRECT,
    GradientReduction,
    Move,
    Part,
    Total,
    reduction,
)
from doppler.graphs.independent_trainers import IndependentTraining, add_independent_training
from doppler.graphs.job_rows import Input, JobRows, SizeOf, text_of, token


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
        all_reduce: Composition by which the parts of a gradient are added. `direct`: one op per
            segment adds all parts. Others are made of several ops, which have a trainer as their
            last coordinate: where the composition wants them.
        trainer_groups: Groups of trainers (those of one GPU or host) that compositions tell apart;
            trainer m is in group m mod `trainer_groups`, as mapping templates deal shards to GPUs.
        epochs, minibatches: PPO's.
        mode: How the weights reach the environments.
        staleness: Asynchronous mode: versions that a rollout's weights may be behind those of the
            iteration before; at least 1 there, 0 in the other modes.
        independent_trainers: Asynchronous mode: every trainer applies its gradients to the shared
            weights without waiting for the others (`doppler.graphs.independent_trainers`); it
            trains on the shards k with k mod `num_trainers` = m.
        exact_advantages: Advantages read the weights of the iteration before in every mode, as
            importance weights need, not the newest that are there.
    """

    num_shards: int = 6
    horizon: int = 16
    chunk: int = 8
    fused: bool = True
    num_trainers: int = 4
    num_segments: int = 2
    all_reduce: str = DIRECT
    trainer_groups: int = 1
    epochs: int = 4
    minibatches: int = 2
    mode: JobMode = JobMode.synchronous
    staleness: int = 0
    independent_trainers: bool = False
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
        _ = self.reduction
        if (self.staleness < 1) == (self.mode is JobMode.asynchronous) or self.staleness < 0:
            raise GraphError(
                f"staleness is at least 1 in asynchronous mode and 0 in the others, and it is "
                f"{self.staleness} in {self.mode.value} mode"
            )

        if self.independent_trainers:
            self._check_independent()

    def _check_independent(self) -> None:
        if self.mode is not JobMode.asynchronous or self.all_reduce != DIRECT:
            raise GraphError(
                f"independent trainers are those of asynchronous jobs and add no gradients up, and "
                f"mode is {self.mode.value} and all_reduce is {self.all_reduce!r}"
            )
        if self.num_shards % self.num_trainers:
            raise GraphError(
                f"num_shards is a multiple of num_trainers ({self.num_trainers}) where trainers "
                f"are independent, and it is {self.num_shards}"
            )

    @property
    def num_chunks(self) -> int:
        """Fused rollout ops per shard and iteration."""
        return self.horizon // self.chunk

    @property
    def reduction(self) -> GradientReduction:
        """How the gradients of one step are added.

        Raises:
            GraphError: If the composition is unknown or does not fit the groups.
        """
        return reduction(self.all_reduce, self.num_trainers, self.trainer_groups, self.num_segments)


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
    rows = JobRows(size_of)
    is_serving = shape.mode is JobMode.serving
    if is_serving:
        rows.add_input(_SERVED_POLICY, size_of("broadcast", ()).outputs)
    if shape.fused:
        _add_fused(rows, shape)
    else:
        _add_unrolled(rows, shape)
    if not is_serving:
        _add_advantages(rows, shape)
    if shape.independent_trainers:
        names = [item.name for item in fields(IndependentTraining)]
        add_independent_training(
            rows, IndependentTraining(**{name: getattr(shape, name) for name in names})
        )
    elif not is_serving:
        _add_statistics(rows, shape)
        _add_training(rows, shape)
    needed = shape.staleness + 2
    if shape.independent_trainers:  # each may be 1 + staleness ahead of any other
        needed = 2 * (1 + shape.staleness)
    return rows.graph(name, max(window, needed))


_SERVED_POLICY = "policy"


def _weights(shape: DRLJobShape, shard: int) -> Input:
    """The edge on which the policy of a shard comes: the one thing that the modes differ in."""
    if shape.mode is JobMode.serving:
        return token(_SERVED_POLICY, 0)
    if shape.mode is JobMode.asynchronous:
        return (_policy(shape, shard), 0, 1 + shape.staleness, EdgeMode.latest)
    return token(_policy(shape, shard), 0, 1)


def _policy(shape: DRLJobShape, shard: int) -> str:
    """The op that makes the policy of a shard."""
    if shape.independent_trainers:
        return f"broadcast[{shard % shape.num_trainers}]"
    return "broadcast"


def _add_fused(rows: JobRows, shape: DRLJobShape) -> None:
    last = shape.num_chunks - 1
    for k in range(shape.num_shards):
        for c in range(shape.num_chunks):
            before = token(f"rollout[{k},{c - 1}]", 1) if c else token(f"rollout[{k},{last}]", 1, 1)
            inputs = [_weights(shape, k), before]
            rows.add("rollout", (k, c), f"rollout[{c}]", inputs, f"env[{k}]")


def _add_unrolled(rows: JobRows, shape: DRLJobShape) -> None:
    last = shape.horizon - 1
    for k in range(shape.num_shards):
        for t in range(shape.horizon):
            before = (
                token(f"env_step[{k},{t - 1}]", 0) if t else token(f"env_step[{k},{last}]", 0, 1)
            )
            rows.add("infer", (k, t), f"infer[{t}]", [_weights(shape, k), before])
            rows.add(
                "env_step",
                (k, t),
                f"env_step[{t}]",
                [token(f"infer[{k},{t}]", 1)],
                f"env[{k}]",
            )


def _add_advantages(rows: JobRows, shape: DRLJobShape) -> None:
    for k in range(shape.num_shards):
        exact = token(_policy(shape, k), 0, 1)
        inputs = [exact if shape.exact_advantages else _weights(shape, k)]
        if shape.fused:
            inputs += [token(f"rollout[{k},{c}]", 0) for c in range(shape.num_chunks)]
            inputs += [token(f"rollout[{k},{shape.num_chunks - 1}]", 1)]
        else:
            inputs += [token(f"infer[{k},{t}]", 0) for t in range(shape.horizon)]
            inputs += [token(f"env_step[{k},{t}]", 1) for t in range(shape.horizon)]
            inputs += [token(f"env_step[{k},{shape.horizon - 1}]", 0)]
        rows.add("advantage", (k,), "advantage", inputs)


def _add_statistics(rows: JobRows, shape: DRLJobShape) -> None:
    inputs = [token(f"advantage[{k}]", 1) for k in range(shape.num_shards)]
    rows.add("collect", (), "collect", [*inputs, token("collect", 1, 1)])


def _add_training(rows: JobRows, shape: DRLJobShape) -> None:
    updates = [(e, b) for e in range(shape.epochs) for b in range(shape.minibatches)]
    found = shape.reduction
    for index, update in enumerate(updates):
        before, distance = (updates[index - 1], 0) if index else (updates[-1], 1)
        names = _UpdateNames(before, shape.all_reduce)
        data = [token(f"advantage[{k}]", 0) for k in range(shape.num_shards)]
        for m in range(shape.num_trainers):
            weights = [token(names.weights(read), 0, distance) for read in found.weights[m]]
            inputs = [*weights, *data, token("collect", 0)]
            rows.add("grad", (*update, m), f"grad[{text_of(update)}]", inputs)
        _add_update(rows, shape, found, update)
    names = _UpdateNames(updates[-1], shape.all_reduce)
    policy = [token(names.weights(total), 0) for total in found.totals if not total.replica]
    rows.add("broadcast", (), "broadcast", [*policy, token("collect", 1)])


def _add_update(
    rows: JobRows, shape: DRLJobShape, found: GradientReduction, update: tuple[int, int]
) -> None:
    """Adds what lies between the gradients of one step and the weights of the next."""
    names = _UpdateNames(update, shape.all_reduce)
    at = text_of(update)
    for move in found.sums:
        inputs = [token(*names.gradient(part, move.segment)) for part in move.inputs]
        _add_move(rows, names, move, inputs)
    for total in found.totals:
        parts = [token(*names.gradient(part, total.segment)) for part in total.inputs]
        where, size = names.at(total), rows.size_of("reduce", names.at(total))
        added, most = len(parts) + 1, shape.num_trainers + 1  # the norm reads the sum once more
        size = replace(
            size, flop=size.flop * added // most, bytes_moved=size.bytes_moved * added // most
        )
        kinds = ("cpu",) if total.in_host else ()
        rows.add("reduce", where, f"reduce[{at}]", parts, size=size, device_kinds=kinds)
    for total in found.totals:
        norms = [
            token(names.total(other), 1) for other in found.totals if other.replica == total.replica
        ]
        inputs = [token(names.total(total), 0), *norms]
        where = names.at(total)
        rows.add("adam", where, f"adam[{at}]", inputs, f"optimizer[{text_of(where[2:])}]")
    for move in found.copies:
        _add_move(rows, names, move, [token(names.weights(part), 0) for part in move.inputs])


def _add_move(rows: JobRows, names: "_UpdateNames", move: Move, inputs: list[Input]) -> None:
    """Adds the op of a partial sum or a copy; what `size_of` says of a sum is that of two parts."""
    kind, where = names.kind(move), names.at(move)
    size = rows.size_of(kind, where)
    if kind == REDUCE_KIND:
        count = len(inputs)
        size = replace(
            size, flop=size.flop * (count - 1), bytes_moved=size.bytes_moved * (count + 1) // 3
        )
    rows.add(kind, where, f"{kind}[{text_of(where[:2])}]", inputs, size=size)


class _UpdateNames:
    """Names of the ops of one gradient step."""

    def __init__(self, update: tuple[int, int], all_reduce: str) -> None:
        self._update = update
        self._is_direct = all_reduce == DIRECT

    def at(self, made: Move | Total) -> tuple[int, ...]:
        """Coordinates of the op that adds or copies."""
        if isinstance(made, Move):
            return (*self._update, made.segment, made.step, made.home)
        if self._is_direct:
            return (*self._update, made.segment)
        return (*self._update, made.segment, made.home)

    def kind(self, made: Move) -> str:
        return FORWARD_KIND if made.is_copy else REDUCE_KIND

    def move(self, made: Move) -> str:
        return f"{self.kind(made)}[{text_of(self.at(made))}]"

    def total(self, made: Total) -> str:
        return f"reduce[{text_of(self.at(made))}]"

    def gradient(self, made: Part | Move | Total, segment: int) -> tuple[str, int]:
        """Op and output where a gradient segment, or a part of the sum, is read."""
        if isinstance(made, Part):
            return f"grad[{text_of((*self._update, made.trainer))}]", segment
        assert isinstance(made, Move), "a sum that is whole is not added to"
        return self.move(made), 0

    def weights(self, made: Part | Move | Total) -> str:
        """Op where a new segment of the weights is read."""
        assert not isinstance(made, Part), "weights are made by an optimizer"
        if isinstance(made, Move):
            return self.move(made)
        return f"adam[{text_of(self.at(made))}]"
