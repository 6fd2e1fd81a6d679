"""Names of a PPO job's ops: a kind, and coordinates in brackets."""

import re
from collections.abc import Mapping

from doppler.core.errors import ExecutionError, nearest
from executor.drl.config import PPOJobConfig

KINDS: Mapping[str, int] = {
    "rollout": 2,
    "infer": 2,
    "env_step": 2,
    "advantage": 1,
    "collect": 0,
    "grad": 3,
    "reduce_chunk": 5,
    "forward_chunk": 5,
    "reduce": 3,
    "adam": 3,
    "broadcast": 0,
}
"""Number of coordinates per op kind; see `num_coordinates`."""
_NAME = re.compile(r"(?P<kind>[a-z_]+)(\[(?P<at>\d+(,\d+)*)\])?")
_ANY_STEP = 1 << 31


def parse_name(name: str) -> tuple[str, tuple[int, ...]]:
    """Returns kind and coordinates of the name of an op or a group.

    Raises:
        ExecutionError: It is no such name.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ExecutionError(f"op or group {name!r} must be named like 'grad[0,1,2]' or 'collect'")
    at = found["at"]
    return found["kind"], tuple(int(part) for part in at.split(",")) if at else ()


def num_coordinates(config: PPOJobConfig, kind: str) -> int:
    """Returns how many coordinates the ops of a kind have in a job.

    Where an all-reduce is spelled out as ops, sums and optimizers also say at which trainer. Where
    trainers are independent, each has its own (before the segment), statistics and policy.
    """
    more: tuple[str, ...] = () if config.has_direct_sums else ("reduce", "adam")
    if config.independent_trainers:
        more = ("reduce", "adam", "collect", "broadcast")
    return KINDS[kind] + (kind in more)


def check_name(config: PPOJobConfig, op_name: str, kind: str) -> tuple[str, tuple[int, ...]]:
    """Returns kind and coordinates of an op of a job.

    Raises:
        ExecutionError: The job has no such op.
    """
    named, at = parse_name(op_name)
    if kind not in KINDS:
        raise ExecutionError(
            f"op {op_name!r} has kind {kind!r}, which a PPO job lacks; {nearest(kind, KINDS)}"
        )
    count = num_coordinates(config, kind)
    if named != kind or len(at) != count:
        raise ExecutionError(
            f"op {op_name!r} of kind {kind!r} must be named {kind!r} with {count} "
            f"coordinates in brackets"
        )
    limits = _limits(config, kind)
    if any(position >= limit for position, limit in zip(at, limits, strict=True)):
        raise ExecutionError(f"op {op_name!r} must have coordinates below {list(limits)}")
    return kind, at


def _limits(config: PPOJobConfig, kind: str) -> tuple[int, ...]:
    step, trainers = (config.epochs, config.minibatches), config.num_trainers
    segment = (*step, config.num_segments)
    total = segment if config.has_direct_sums else (*segment, trainers)
    own: tuple[int, ...] = ()
    if config.independent_trainers:
        total, own = (*step, trainers, config.num_segments), (trainers,)
    return {
        "rollout": (config.num_shards, config.num_chunks),
        "infer": (config.num_shards, config.horizon),
        "env_step": (config.num_shards, config.horizon),
        "advantage": (config.num_shards,),
        "grad": (*step, trainers),
        "reduce_chunk": (*segment, _ANY_STEP, trainers),
        "forward_chunk": (*segment, _ANY_STEP, trainers),
        "reduce": total,
        "adam": total,
        "collect": own,
        "broadcast": own,
    }.get(kind, ())
