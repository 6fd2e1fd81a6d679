"""Bytes and flop of every op of a PPO job, so that graph and kernels cannot disagree."""

from collections.abc import Mapping
from dataclasses import dataclass

from executor.drl.config import PPOJobConfig
from executor.drl.normalizer import moments_size
from executor.drl.policy import ParameterLayout, multiply_adds, segment_bounds
from executor.drl.ppo import NUM_LOSSES
from executor.drl.records import BatchStats, result_layout, row_columns, stats_layout, step_layout
from executor.drl.vector_env import EnvironmentSpec

_FLOAT, _DOUBLE = 4, 8
_KINDS = (
    "rollout",
    "infer",
    "env_step",
    "advantage",
    "collect",
    "grad",
    "reduce_chunk",
    "forward_chunk",
    "reduce",
    "adam",
    "broadcast",
)
COUNT_BYTES = 8
"""Behind a segment of shared weights: how many updates it has seen, an int64."""
_ADAM_FLOP_PER_PARAMETER = 16  # scale, two moments, two corrections, root, division, update
_GAE_FLOP_PER_ROW = 8
_LOSS_FLOP_PER_VALUE = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSize:
    """What one op of a kind weighs.

    Attributes:
        outputs: Bytes per output.
        flop: Estimated floating-point operations.
        bytes_moved: Bytes read and written.
    """

    outputs: tuple[int, ...]
    flop: int
    bytes_moved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSizes:
    """What the ops and groups of one PPO job weigh.

    Segments differ by at most one cache line, so kinds with an output per segment appear once per
    segment where their size depends on it.

    Attributes:
        rollout: `rollout[k,c]`: experience, next observations.
        infer: `infer[k,t]`: step record, actions.
        env_step: `env_step[k,t]`: next observations, results.
        advantage: `advantage[k]`: training rows, shard statistics.
        collect: `collect`: batch statistics, normaliser.
        grad: `grad[e,b,m]`: a gradient per segment, losses.
        reduce_chunk: `reduce_chunk[e,b,j,i,m]` by j: the sum of two parts of a segment.
        forward_chunk: `forward_chunk[e,b,j,i,m]` by j: a copy of a segment.
        reduce: `reduce[e,b,j]` by j: summed segment, squared norm.
        adam: `adam[e,b,j]` by j: new segment.
        broadcast: `broadcast`: policy vector.
        env_state_bytes: State of a group `env[k]`.
        optimizer_state_bytes: State of a group `optimizer[j]`, by j.
        num_parameters: Floats of the padded parameter vector.
        segment_coordinate: Which coordinate of such an op is its segment.
    """

    rollout: OpSize
    infer: OpSize
    env_step: OpSize
    advantage: OpSize
    collect: OpSize
    grad: OpSize
    reduce_chunk: tuple[OpSize, ...]
    forward_chunk: tuple[OpSize, ...]
    reduce: tuple[OpSize, ...]
    adam: tuple[OpSize, ...]
    broadcast: OpSize
    env_state_bytes: int
    optimizer_state_bytes: tuple[int, ...]
    num_parameters: int
    segment_coordinate: int

    def of(self, kind: str, coordinates: tuple[int, ...]) -> OpSize:
        """Returns the size of the op of `kind` at `coordinates`.

        Raises:
            KeyError: No op of a PPO job has this kind.
        """
        by_kind: Mapping[str, OpSize | tuple[OpSize, ...]] = {
            name: getattr(self, name) for name in _KINDS
        }
        size = by_kind[kind]
        return size if isinstance(size, OpSize) else size[coordinates[self.segment_coordinate]]


def op_sizes(config: PPOJobConfig, spec: EnvironmentSpec, layout: ParameterLayout) -> JobSizes:
    """Returns what every op weighs.

    A network pass costs two flop per multiply-add and row, a backward pass twice a forward pass.
    """
    n, obs, act = config.envs_per_shard, spec.obs_dim, spec.act_dim
    parameters = layout.size
    forward = 2 * multiply_adds(layout)
    obs_bytes, action_bytes = n * obs * _FLOAT, n * act * _FLOAT
    vector = parameters * _FLOAT + moments_size(obs) * _DOUBLE
    step = step_layout(1, n, obs, act).size
    result = result_layout(1, n).size
    chunk = config.chunk
    experience = result_layout(chunk, n, step_layout(chunk, n, obs, act).size).size
    shard_rows = n * config.horizon
    rows = shard_rows * row_columns(obs, act).width * _FLOAT
    seen_rows = shard_rows if config.exact_advantages else 0  # through the network once more
    shard_stats = stats_layout(obs).size
    batch_stats = len(BatchStats._fields) * _DOUBLE
    normalizer = moments_size(obs) * _DOUBLE
    part_rows = -(-config.minibatch_rows // config.num_trainers)
    added = 1 if config.independent_trainers else config.num_trainers
    counts = COUNT_BYTES if config.independent_trainers else 0
    segments = [
        (end - first) * _FLOAT for first, end in segment_bounds(parameters, config.num_segments)
    ]
    losses = NUM_LOSSES * _FLOAT
    env_flop = round(spec.step_flop * n)
    recorded = config.num_chunks * experience if config.fused else config.horizon * (step + result)
    part_bytes = part_rows * row_columns(obs, act).width * _FLOAT
    return JobSizes(
        rollout=OpSize(
            outputs=(experience, obs_bytes),
            flop=chunk * (forward * n + env_flop),
            bytes_moved=chunk * vector + experience + 2 * obs_bytes,
        ),
        infer=OpSize(
            outputs=(step, action_bytes),
            flop=forward * n,
            bytes_moved=vector + obs_bytes + step + action_bytes,
        ),
        env_step=OpSize(
            outputs=(obs_bytes, result),
            flop=env_flop,
            bytes_moved=action_bytes + obs_bytes + result + 2 * n * spec.state_bytes,
        ),
        advantage=OpSize(
            outputs=(rows, shard_stats),
            flop=forward * (n + seen_rows) + shard_rows * (_GAE_FLOP_PER_ROW + 8 * obs),
            bytes_moved=vector + recorded + obs_bytes + 2 * rows + shard_stats,
        ),
        collect=OpSize(
            outputs=(batch_stats, normalizer),
            flop=8 * config.num_shards * moments_size(obs),
            bytes_moved=config.num_shards * shard_stats + batch_stats + 2 * normalizer,
        ),
        grad=OpSize(
            outputs=(*segments, losses),
            flop=part_rows * (3 * forward + _LOSS_FLOP_PER_VALUE * (act + 2)),
            bytes_moved=3 * sum(segments) + 2 * part_bytes + batch_stats + losses,
        ),
        reduce_chunk=tuple(
            OpSize(outputs=(size,), flop=size // _FLOAT, bytes_moved=3 * size) for size in segments
        ),
        forward_chunk=tuple(
            OpSize(outputs=(size,), flop=0, bytes_moved=2 * size) for size in segments
        ),
        reduce=tuple(
            OpSize(
                outputs=(size, _DOUBLE),
                flop=size // _FLOAT * (added + 1),
                bytes_moved=size * (added + 1),
            )
            for size in segments
        ),
        adam=tuple(
            OpSize(
                outputs=(size + counts,),
                flop=size // _FLOAT * _ADAM_FLOP_PER_PARAMETER,
                bytes_moved=size * 8,
            )
            for size in segments
        ),
        broadcast=OpSize(outputs=(vector,), flop=0, bytes_moved=2 * vector),
        env_state_bytes=n * (spec.state_bytes + 2 * _DOUBLE),
        optimizer_state_bytes=tuple(3 * size + _DOUBLE for size in segments),
        num_parameters=parameters,
        segment_coordinate=config.segment_coordinate,
    )
