"""How the tensors that travel between ops are laid out in bytes.

Shape legend: T time steps, N environments, O observation values, A action values.
"""

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from executor.drl.normalizer import moments_size

Bytes = NDArray[np.uint8]
Float = NDArray[np.float32]
Bool = NDArray[np.bool_]
Double = NDArray[np.float64]
_ALIGN_BYTES = 64
_TORCH_TYPES = {
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
    np.dtype(np.bool_): torch.bool,
}


class StepRecord(NamedTuple):
    """What agents record; observations are raw, the policy's normaliser is applied when needed."""

    obs: Float  # [T, N, O]
    actions: Float  # [T, N, A]
    log_probs: Float  # [T, N]
    values: Float  # [T, N]


class ResultRecord(NamedTuple):
    """What environments record; return and length are those of an episode that ended, else 0."""

    reward: Float  # [T, N]
    episode_return: Float  # [T, N]
    episode_length: Float  # [T, N]
    terminated: Bool  # [T, N]
    truncated: Bool  # [T, N]


class ShardStats(NamedTuple):
    """What a shard tells `collect` about its rows."""

    obs: Double  # moments of raw observations
    advantages: Double  # moments of one column
    returns: Double  # moments of one column: value targets
    episodes: Double  # [4]: sum of returns, sum of lengths, count, sum of rewards


class BatchStats(NamedTuple):
    """What `collect` tells trainers and the user, one float64 each.

    Attributes:
        advantage_mean: Mean advantage of all rows.
        advantage_std: Standard deviation of the advantages.
        return_std: Standard deviation of the value targets.
        episode_return_sum: Sum of the unscaled returns of episodes that ended.
        episode_length_sum: Sum of their lengths in control steps.
        episodes: How many ended.
        reward_sum: Sum of unscaled rewards.
        rows: Rows of the iteration.
    """

    advantage_mean: float
    advantage_std: float
    return_std: float
    episode_return_sum: float
    episode_length_sum: float
    episodes: float
    reward_sum: float
    rows: float


def merge_stats(parts: Sequence[BatchStats]) -> BatchStats:
    """Returns the statistics of all rows together, of parts with rows of their own.

    The deviation of value targets is that within the parts: their means are not told.
    """
    if len(parts) == 1:
        return parts[0]
    rows = sum(part.rows for part in parts)
    mean = sum(part.rows * part.advantage_mean for part in parts) / rows
    variance = sum(
        part.rows * (part.advantage_std**2 + (part.advantage_mean - mean) ** 2) for part in parts
    )
    target_variance = sum(part.rows * part.return_std**2 for part in parts)
    return BatchStats(
        advantage_mean=mean,
        advantage_std=sqrt(variance / rows),
        return_std=sqrt(target_variance / rows),
        episode_return_sum=sum(part.episode_return_sum for part in parts),
        episode_length_sum=sum(part.episode_length_sum for part in parts),
        episodes=sum(part.episodes for part in parts),
        reward_sum=sum(part.reward_sum for part in parts),
        rows=rows,
    )


Record = TypeVar("Record", bound=tuple)  # type: ignore[type-arg]


class RecordLayout(Generic[Record]):
    """A named tuple of arrays in one buffer, each array at a multiple of 64 bytes.

    Attributes:
        size: Bytes of the buffer.
    """

    def __init__(
        self, record: type[Record], fields: Sequence[tuple[type, tuple[int, ...]]], start: int = 0
    ) -> None:
        """Lays out `fields` (type and shape each, in the record's order) from byte `start` on."""
        self._record = record
        self._fields: list[tuple[tuple[int, ...], np.dtype[np.generic], int]] = []
        end = start
        for dtype, shape in fields:
            self._fields.append((shape, np.dtype(dtype), end))
            end += -(-prod(shape) * np.dtype(dtype).itemsize // _ALIGN_BYTES) * _ALIGN_BYTES
        self.size = end

    def views(self, buffer: Bytes) -> Record:
        """Returns the record whose arrays share memory with `buffer`."""
        return self._record(*[np.ndarray(s, d, buffer, o) for s, d, o in self._fields])

    def tensors(self, buffer: torch.Tensor) -> Any:
        """Returns the record whose fields are tensors that share memory with `buffer`[bytes]."""
        return self._record(
            *[
                buffer[o : o + prod(s) * d.itemsize].view(_TORCH_TYPES[d]).view(s)
                for s, d, o in self._fields
            ]
        )


def step_layout(steps: int, envs: int, obs_dim: int, act_dim: int) -> RecordLayout[StepRecord]:
    """Returns the layout of what agents record in `steps` steps."""
    wide, flat = (steps, envs), np.float32
    fields = [(flat, (*wide, obs_dim)), (flat, (*wide, act_dim)), (flat, wide), (flat, wide)]
    return RecordLayout(StepRecord, fields)


def result_layout(steps: int, envs: int, start: int = 0) -> RecordLayout[ResultRecord]:
    """Returns the layout of what environments record; in an experience it follows the steps."""
    wide, flat = (steps, envs), np.float32
    fields = [(flat, wide), (flat, wide), (flat, wide), (np.bool_, wide), (np.bool_, wide)]
    return RecordLayout(ResultRecord, fields, start)


def stats_layout(obs_dim: int) -> RecordLayout[ShardStats]:
    """Returns the layout of a shard's statistics."""
    one = (np.float64, (moments_size(1),))
    fields = [(np.float64, (moments_size(obs_dim),)), one, one, (np.float64, (4,))]
    return RecordLayout(ShardStats, fields)


class RowColumns(NamedTuple):
    """Columns of a training row; rows are float32 and start at multiples of 64 bytes.

    Rows of a shard are ordered by environment, then time, so row numbers do not depend on how the
    environments are sharded.

    Attributes:
        obs: Normalised observation.
        actions: Action.
        log_prob: Column of the log-probability.
        value: Column of the value.
        advantage: Column of the raw advantage.
        target: Column of the value target.
        width: Floats per row, padding included.
    """

    obs: slice
    actions: slice
    log_prob: int
    value: int
    advantage: int
    target: int
    width: int


def row_columns(obs_dim: int, act_dim: int) -> RowColumns:
    """Returns where a training row keeps what."""
    end = obs_dim + act_dim
    floats = _ALIGN_BYTES // 4
    width = -(-(end + 4) // floats) * floats
    return RowColumns(slice(0, obs_dim), slice(obs_dim, end), end, end + 1, end + 2, end + 3, width)
