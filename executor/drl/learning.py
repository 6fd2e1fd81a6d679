"""Kernels that learn from experience: advantages, gradients, reduction, update, broadcast."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from executor.drl.adam import AdamSegment, clip_scale
from executor.drl.config import PPOJobConfig
from executor.drl.context import JobContext
from executor.drl.importance import Experience, importance_estimates
from executor.drl.normalizer import (
    measure_moments,
    merge_moments,
    normalize,
    standard_deviation,
)
from executor.drl.ppo import Batch, gaussian_log_prob, generalized_advantages, part_gradient
from executor.drl.records import BatchStats, Bytes, RowColumns, ShardStats
from executor.job import Kernel

Float = NDArray[np.float32]


class ShardExperience:
    """Scratch for one shard's experience of an iteration, in time order."""

    def __init__(self, context: JobContext) -> None:
        config, spec = context.config, context.spec
        self._context = context
        wide = (config.horizon, config.envs_per_shard)
        self.obs = np.zeros((*wide, spec.obs_dim), np.float32)
        self.actions = np.zeros((*wide, spec.act_dim), np.float32)
        self.log_probs = np.zeros(wide, np.float32)
        self.values = np.zeros(wide, np.float32)
        self.reward = np.zeros(wide, np.float32)
        self.episode_return = np.zeros(wide, np.float32)
        self.episode_length = np.zeros(wide, np.float32)
        self.terminated = np.zeros(wide, np.bool_)
        self.truncated = np.zeros(wide, np.bool_)

    def load(self, tensors: Sequence[Bytes]) -> None:
        """Copies chunk experiences, or all step records and then all results."""
        layouts, config = self._context.layouts, self._context.config
        if config.fused:
            for c, tensor in enumerate(tensors):
                at = slice(c * config.chunk, (c + 1) * config.chunk)
                self._store(at, layouts.chunk_steps.views(tensor))
                self._store(at, layouts.chunk_results.views(tensor))
            return
        for t in range(config.horizon):
            at = slice(t, t + 1)
            self._store(at, layouts.step.views(tensors[t]))
            self._store(at, layouts.result.views(tensors[config.horizon + t]))

    def _store(self, at: slice, record: tuple[NDArray[np.generic], ...]) -> None:
        for name, array in zip(record._fields, record, strict=True):  # type: ignore[attr-defined]
            getattr(self, name)[at] = array


def advantage_kernel(context: JobContext) -> Kernel:
    """Returns the kernel of `advantage[k]`.

    Inputs: policy vector; the shard's experience in time order (fused: chunk experiences; unrolled:
    all step records, then all results); final observations. Outputs: training rows, statistics.
    """
    config, columns = context.config, context.layouts.rows
    experience = ShardExperience(context)
    n, obs_dim = config.envs_per_shard, context.spec.obs_dim
    scratch = np.empty_like(experience.obs)
    last_obs = np.empty((n, obs_dim), np.float32)
    last_tensor = torch.from_numpy(last_obs)

    def kernel(iteration: int, inputs: Sequence[Bytes], outputs: Sequence[Bytes]) -> None:
        vector, *tensors, final = inputs
        parameters, moments = context.split_vector(vector)
        experience.load(tensors)
        normalize(final.view(np.float32).reshape(n, obs_dim), moments, last_obs)
        normalize(experience.obs, moments, scratch)
        module = context.workspace().policy.bind(parameters)
        with torch.inference_mode():
            last_value = module(last_tensor)[2].numpy()
        if config.exact_advantages:
            advantages, returns = _importance_estimates(
                module, experience, scratch, last_value, config
            )
        else:
            advantages = generalized_advantages(
                experience.reward * np.float32(config.reward_scale),
                experience.values,
                last_value,
                experience.terminated,
                experience.truncated,
                config.gamma,
                config.lam,
            )
            returns = advantages + experience.values
        rows = outputs[0].view(np.float32).reshape(n, config.horizon, columns.width)
        _write_rows(rows, columns, scratch, experience, advantages, returns)
        stats = context.layouts.stats.views(outputs[1])
        _write_stats(stats, experience, advantages, returns)

    return kernel


def _importance_estimates(
    module: torch.nn.Module,
    experience: ShardExperience,
    obs: Float,
    last_value: Float,
    config: PPOJobConfig,
) -> tuple[Float, Float]:
    """Returns (advantages, targets); the experience's log-probabilities and values become pi's."""
    wide = experience.log_probs.shape
    with torch.inference_mode():
        mean, log_std, value = module(torch.from_numpy(obs).flatten(0, 1))
        actions = torch.from_numpy(experience.actions).flatten(0, 1)
        log_probs = gaussian_log_prob(actions, mean, log_std).numpy().reshape(wide)
    log_ratios = log_probs - experience.log_probs
    experience.log_probs[:] = log_probs
    experience.values[:] = value.numpy().reshape(wide)
    steps = Experience(
        rewards=experience.reward * np.float32(config.reward_scale),
        values=experience.values,
        last_value=last_value,
        terminated=experience.terminated,
        truncated=experience.truncated,
        log_ratios=log_ratios,
    )
    bounds = (config.rho_bar, config.c_bar)
    return importance_estimates(config.importance, steps, config.gamma, config.lam, bounds)


def _write_rows(
    rows: Float,
    columns: RowColumns,
    obs: Float,
    experience: ShardExperience,
    advantages: Float,
    returns: Float,
) -> None:
    """Writes time-major experience as rows[n, H, width] ordered by environment, then time."""
    rows[:, :, columns.obs] = obs.swapaxes(0, 1)
    rows[:, :, columns.actions] = experience.actions.swapaxes(0, 1)
    rows[:, :, columns.log_prob] = experience.log_probs.T
    rows[:, :, columns.value] = experience.values.T
    rows[:, :, columns.advantage] = advantages.T
    rows[:, :, columns.target] = returns.T
    rows[:, :, columns.target + 1 :] = 0.0


def _write_stats(
    stats: ShardStats, experience: ShardExperience, advantages: Float, returns: Float
) -> None:
    stats.obs[:] = measure_moments(experience.obs.reshape(-1, experience.obs.shape[-1]))
    stats.advantages[:] = measure_moments(advantages.reshape(-1, 1))
    stats.returns[:] = measure_moments(returns.reshape(-1, 1))
    done = experience.terminated | experience.truncated
    stats.episodes[0] = experience.episode_return.sum(dtype=np.float64)
    stats.episodes[1] = experience.episode_length.sum(dtype=np.float64)
    stats.episodes[2] = done.sum()
    stats.episodes[3] = experience.reward.sum(dtype=np.float64)


def collect_kernel(context: JobContext) -> Kernel:
    """Returns the kernel of `collect`.

    Inputs: statistics of every shard in order, the previous normaliser. Outputs: batch statistics,
    the new normaliser.
    """
    layout = context.layouts.stats

    def kernel(iteration: int, inputs: Sequence[Bytes], outputs: Sequence[Bytes]) -> None:
        *shards, previous = inputs
        stats = [layout.views(shard) for shard in shards]
        advantages = merge_moments([shard.advantages for shard in stats])
        returns = merge_moments([shard.returns for shard in stats])
        episodes = np.zeros(4)
        for shard in stats:
            episodes += shard.episodes
        outputs[0].view(np.float64)[:] = BatchStats(
            advantage_mean=advantages[1],
            advantage_std=float(standard_deviation(advantages)[0]),
            return_std=float(standard_deviation(returns)[0]),
            episode_return_sum=episodes[0],
            episode_length_sum=episodes[1],
            episodes=episodes[2],
            reward_sum=episodes[3],
            rows=advantages[0],
        )
        parts = [previous.view(np.float64), *[shard.obs for shard in stats]]
        outputs[1].view(np.float64)[:] = merge_moments(parts)

    return kernel


def part_rows(
    order: NDArray[np.int64], minibatch: int, part: int, num_rows: int, num_parts: int
) -> NDArray[np.int64]:
    """Returns the rows of one part of a minibatch, ascending.

    Args:
        order: The epoch's permutation of all rows.
        minibatch: Which run of `num_rows` rows of it.
        part: Which of `num_parts` nearly equal pieces of that run.
        num_rows: Rows per minibatch.
        num_parts: Parts per minibatch.
    """
    first = minibatch * num_rows
    low, high = (first + num_rows * piece // num_parts for piece in (part, part + 1))
    return np.sort(order[low:high])


def make_batch(table: Float, columns: RowColumns) -> Batch:
    """Returns training rows [B, width] as tensors that share their memory."""
    return batch_of(torch.from_numpy(table), columns)


def batch_of(tensor: torch.Tensor, columns: RowColumns) -> Batch:
    """Returns training rows [B, width] column by column, without a copy."""
    return Batch(
        obs=tensor[:, columns.obs],
        actions=tensor[:, columns.actions],
        log_probs=tensor[:, columns.log_prob],
        values=tensor[:, columns.value],
        advantages=tensor[:, columns.advantage],
        returns=tensor[:, columns.target],
    )


class GradientPart(NamedTuple):
    """What one `grad[e,b,m]` computes on.

    Attributes:
        num_shards: Shards whose rows it reads.
        rows: Rows of all of them.
        minibatch_rows: Rows of the gradient step that it is a part of.
        part: Which part.
        num_parts: Of so many.
        order: Coordinate of the permutation of the rows, beside the iteration.
        num_sources: Tensors that it chooses each segment of the weights from.
    """

    num_shards: int
    rows: int
    minibatch_rows: int
    part: int
    num_parts: int
    order: int
    num_sources: int


def gradient_part(config: PPOJobConfig, epoch: int, trainer: int) -> GradientPart:
    """Returns what a trainer computes on in an epoch.

    A part of a minibatch of all rows; or, where trainers are independent, all of a minibatch of
    the rows of its own shards, with the newest weights that any trainer has made.
    """
    trainers = config.num_trainers
    if not config.independent_trainers:
        rows = config.rows, config.minibatch_rows
        return GradientPart(config.num_shards, *rows, trainer, trainers, epoch, 1)
    own = config.rows // trainers
    order = epoch * trainers + trainer
    shards = config.num_shards // trainers
    return GradientPart(shards, own, own // config.minibatches, 0, 1, order, trainers)


def _newest(sources: Sequence[Bytes], size: int) -> Float:
    """Returns the segment of `size` bytes with the most updates behind it, the first of equals."""
    if len(sources) == 1:
        return sources[0][:size].view(np.float32)
    newest = max(sources, key=lambda source: int(source[size:].view(np.int64)[0]))
    return newest[:size].view(np.float32)


def grad_kernel(context: JobContext, epoch: int, minibatch: int, trainer: int) -> Kernel:
    """Returns the kernel of `grad[e,b,m]`.

    Inputs: every parameter segment (where trainers are independent, of every trainer, one after the
    other per segment), training rows of its shards, batch statistics. Outputs: a gradient per
    segment, losses.
    """
    config, layouts = context.config, context.layouts
    columns, segments = layouts.rows, layouts.segments
    shard_rows = config.envs_per_shard * config.horizon
    of = gradient_part(config, epoch, trainer)
    bounds = np.arange(of.num_shards + 1) * shard_rows
    num_weights = len(segments) * of.num_sources

    def kernel(iteration: int, inputs: Sequence[Bytes], outputs: Sequence[Bytes]) -> None:
        workspace = context.workspace()
        parameters, gradient, table = workspace.parameters, workspace.gradient, workspace.table
        for j, (first, end) in enumerate(segments):
            sources = inputs[j * of.num_sources : (j + 1) * of.num_sources]
            parameters[first:end] = _newest(sources, 4 * (end - first))
        order = workspace.permutation(iteration, of.order, of.rows)
        chosen = part_rows(order, minibatch, of.part, of.minibatch_rows, of.num_parts)
        cuts = np.searchsorted(chosen, bounds).tolist()
        for k, shard in enumerate(inputs[num_weights:-1]):
            rows = shard.view(np.float32).reshape(shard_rows, columns.width)
            low, high = cuts[k], cuts[k + 1]
            local = chosen[low:high] - k * shard_rows
            np.take(rows, local, axis=0, out=table[low:high], mode="clip")
        stats = BatchStats(*inputs[-1].view(np.float64).tolist())
        gradient[:] = 0.0
        module = workspace.policy.bind(parameters)
        losses = part_gradient(
            module,
            make_batch(table[: len(chosen)], columns),
            stats.advantage_mean,
            stats.advantage_std,
            of.minibatch_rows,
            config.loss,
        )
        for (first, end), output in zip(segments, outputs, strict=False):
            output.view(np.float32)[:] = gradient[first:end]
        outputs[len(segments)].view(np.float32)[:] = losses

    return kernel


def reduce_chunk_kernel(iteration: int, inputs: Sequence[Bytes], outputs: Sequence[Bytes]) -> None:
    """The kernel of `reduce_chunk[e,b,j,i,m]`: adds from first to last.

    Inputs: parts, or sums of parts, of gradient segment j. Outputs: their sum.
    """
    total = outputs[0].view(np.float32)
    if len(inputs) == 1:
        total[:] = inputs[0].view(np.float32)
    else:
        np.add(inputs[0].view(np.float32), inputs[1].view(np.float32), out=total)
    for segment in inputs[2:]:
        total += segment.view(np.float32)


def forward_chunk_kernel(iteration: int, inputs: Sequence[Bytes], outputs: Sequence[Bytes]) -> None:
    """The kernel of `forward_chunk[e,b,j,i,m]`: copies a segment of gradients or weights."""
    np.copyto(outputs[0], inputs[0])


def reduce_kernel(iteration: int, inputs: Sequence[Bytes], outputs: Sequence[Bytes]) -> None:
    """The kernel of `reduce[e,b,j]`: adds from first to last.

    Inputs: gradient segment j of every part. Outputs: their sum, its squared norm (float64).
    """
    reduce_chunk_kernel(iteration, inputs, outputs)
    total = outputs[0].view(np.float32)
    wide = total.astype(np.float64)
    outputs[1].view(np.float64)[0] = np.square(wide, out=wide).sum()


def adam_kernel(context: JobContext, state: AdamSegment) -> Kernel:
    """Returns the kernel of `adam[e,b,j]`.

    Inputs: summed gradient segment j, squared norms of all segments. Outputs: the new segment;
    behind it, where trainers are independent, how many updates it has seen.
    """
    max_norm, rate = context.config.max_grad_norm, context.config.learning_rate

    def kernel(iteration: int, inputs: Sequence[Bytes], outputs: Sequence[Bytes]) -> None:
        gradient, *norms = inputs
        scale = clip_scale([float(norm.view(np.float64)[0]) for norm in norms], max_norm)
        (output,), size = outputs, gradient.nbytes
        with state.lock:
            parameters = state.step(gradient.view(np.float32), scale, rate)
            output[:size].view(np.float32)[:] = parameters
            output[size:].view(np.int64)[:] = state.num_steps

    return kernel


def broadcast_kernel(context: JobContext) -> Kernel:
    """Returns the kernel of `broadcast`.

    Inputs: the last parameter segments, the new normaliser (where trainers are independent, the
    trainer's and those of all others, which are merged). Outputs: the policy vector.
    """
    segments = context.layouts.segments

    def kernel(iteration: int, inputs: Sequence[Bytes], outputs: Sequence[Bytes]) -> None:
        pieces, moments = inputs[: len(segments)], inputs[len(segments) :]
        parameters, normalizer = context.split_vector(outputs[0])
        for (first, end), piece in zip(segments, pieces, strict=True):
            parameters[first:end] = piece[: 4 * (end - first)].view(np.float32)
        normalizer[:] = merge_moments([part.view(np.float64) for part in moments])

    return kernel
