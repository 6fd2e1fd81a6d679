"""The PPO job: its kernels, group states, initial tokens. An `executor.job.AcceleratedJob`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from doppler.core.errors import ConfigError, ExecutionError
from doppler.core.job_mode import JobMode
from executor.drl import tensor_kernels
from executor.drl.acting import EnvironmentShard, env_step_kernel, infer_kernel, rollout_kernel
from executor.drl.adam import AdamSegment
from executor.drl.config import PPOJobConfig
from executor.drl.context import JobContext
from executor.drl.device_math import DeviceAdamSegment
from executor.drl.learning import (
    adam_kernel,
    advantage_kernel,
    broadcast_kernel,
    collect_kernel,
    forward_chunk_kernel,
    grad_kernel,
    reduce_chunk_kernel,
    reduce_kernel,
)
from executor.drl.normalizer import initial_moments
from executor.drl.op_names import check_name, parse_name
from executor.drl.policy import ActorCritic, PolicyFactory, check_policy
from executor.drl.ppo import NUM_LOSSES, LossParts
from executor.drl.records import BatchStats, Bytes, merge_stats
from executor.drl.sizes import JobSizes
from executor.drl.sources import Source, resolve_source
from executor.drl.tensor_kernels import DeviceContext
from executor.job import GroupState, Kernel, TensorKernel
from executor.workers.accelerator import Accelerator

Segment = TypeVar("Segment", AdamSegment, DeviceAdamSegment)


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationMetrics:
    """What one iteration of PPO achieved.

    Attributes:
        iteration: Counts from 0.
        rows: Control steps of all environments.
        mean_reward: Unscaled reward per control step.
        episodes: Episodes that ended.
        mean_return: Their mean unscaled return; NaN where none ended.
        mean_length: Their mean length in control steps; NaN where none ended.
        explained_variance: 1 - Var(target - value) / Var(target).
        policy_loss: Mean over gradient steps, as are the following.
        value_loss: Half the squared value error.
        entropy: Nat.
        approx_kl: Divergence of the updated from the acting policy.
        clip_fraction: Share of rows whose probability ratio was clipped.
    """

    iteration: int
    rows: int
    mean_reward: float
    episodes: int
    mean_return: float
    mean_length: float
    explained_variance: float
    policy_loss: float
    value_loss: float
    entropy: float
    approx_kl: float
    clip_fraction: float


class PPOJob:
    """Kernels of one PPO job, built anew in every worker process from the same config."""

    def __init__(self, config: PPOJobConfig) -> None:
        """Resolves environment and network.

        Raises:
            ConfigError: They do not exist or do not fit together.
        """
        source = resolve_source(config)
        self.config = config
        self._context = JobContext(
            config=config,
            spec=source.spec,
            environment=source.environment,
            policy=policy_factory(config, source),
        )
        if source.policy is not None:
            check_policy(self._context.workspace().policy.module, *_dims(source))
        self._first_obs: dict[int, NDArray[np.float32]] = {}
        self._device: DeviceContext | None = None

    def use_accelerator(self, accelerator: Accelerator) -> None:
        """Optimizers and tensor kernels made from now on lie there; environments on the host."""
        self._device = DeviceContext(self._context, accelerator.torch_device)

    @property
    def sizes(self) -> JobSizes:
        """Bytes and flop of every op, for the graph builder."""
        return self._context.sizes

    def create_group(self, name: str, threads: int) -> GroupState:
        """Returns the state of group `env[k]` or `optimizer[j]` at the start of the job.

        Where an all-reduce is spelled out as ops, optimizers are named `optimizer[j,m]`.

        Raises:
            ExecutionError: The job has no such group.
        """
        kind, at = parse_name(name)
        if kind == "env" and len(at) == 1 and at[0] < self.config.num_shards:
            shard = self._make_shard(at[0])
            shard.set_threads(threads)
            return shard
        count = 1 if self.config.has_direct_sums else 2
        limits = (self.config.num_segments, self.config.num_trainers)[:count]
        is_known = all(place < limit for place, limit in zip(at, limits, strict=False))
        if kind == "optimizer" and len(at) == len(limits) and is_known:
            start = self._initial_segment(at[0])
            if self._device is not None:
                return DeviceAdamSegment(start, self._device.torch_device)
            return AdamSegment(start)
        optimizers = ",".join(f"0...{limit - 1}" for limit in limits)
        raise ExecutionError(
            f"group {name!r} does not belong to this job, which has env[0..."
            f"{self.config.num_shards - 1}] and optimizer[{optimizers}]"
        )

    def bind(self, op_name: str, kind: str, state: GroupState | None, threads: int) -> Kernel:
        """Returns the kernel of one op; the process computes with `threads` threads from now on.

        Raises:
            ExecutionError: The op is not one of this job, or has no or a wrong group state.
        """
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        kind, at = check_name(self.config, op_name, kind)
        match kind:
            case "rollout":
                return rollout_kernel(self._context, at[0], at[1], _shard(op_name, state, threads))
            case "infer":
                return infer_kernel(self._context, at[0], at[1])
            case "env_step":
                return env_step_kernel(self._context, _shard(op_name, state, threads))
            case "advantage":
                return advantage_kernel(self._context)
            case "collect":
                return collect_kernel(self._context)
            case "grad":
                return grad_kernel(self._context, *at)
            case "reduce_chunk":
                return reduce_chunk_kernel
            case "forward_chunk":
                return forward_chunk_kernel
            case "reduce":
                return reduce_kernel
            case "adam":
                return adam_kernel(self._context, _segment(op_name, state, AdamSegment))
            case _:
                return broadcast_kernel(self._context)

    def bind_tensors(
        self, op_name: str, kind: str, state: GroupState | None, threads: int
    ) -> TensorKernel | None:
        """Returns the kernel of one op on the accelerator; None for environments and `collect`.

        Raises:
            ExecutionError: As `bind`.
        """
        assert self._device is not None, "use_accelerator comes first"
        kind, at = check_name(self.config, op_name, kind)
        match kind:
            case "rollout":
                shard = _shard(op_name, state, threads)
                return tensor_kernels.rollout_kernel(self._device, at[0], at[1], shard)
            case "infer":
                return tensor_kernels.infer_kernel(self._device, at[0], at[1])
            case "advantage":
                return tensor_kernels.advantage_kernel(self._device)
            case "grad":
                return tensor_kernels.grad_kernel(self._device, *at)
            case "reduce_chunk":
                return tensor_kernels.reduce_chunk_kernel
            case "forward_chunk":
                return tensor_kernels.forward_chunk_kernel
            case "reduce":
                return tensor_kernels.reduce_kernel
            case "adam":
                segment = _segment(op_name, state, DeviceAdamSegment)
                return tensor_kernels.adam_kernel(self._device, segment)
            case "broadcast" if not self.config.independent_trainers:  # merges on the host
                return tensor_kernels.broadcast_kernel(self._device)
            case _:
                return None

    def initial(self, op_name: str, output: int, version: int) -> NDArray[np.uint8] | None:
        """Returns the bytes of a loop-carried tensor before the first iteration; None means zeros.

        The policy vector (output of `broadcast`, or the input `policy` of a serving job), parameter
        segments, normaliser and first observations have a value.
        """
        kind, at = parse_name(op_name)
        match kind, output:
            case (("broadcast" | "policy"), 0):
                parameters = self._context.initial_parameters()
                return np.concatenate([_bytes(parameters), _bytes(self._initial_moments())])
            case (("adam" | "forward_chunk"), 0):  # copies of gradients are not carried
                segment = _bytes(self._initial_segment(at[self.config.segment_coordinate]))
                (size,) = self.output_bytes(op_name)
                return np.pad(segment, (0, size - len(segment)))
            case "collect", 1:
                return _bytes(self._initial_moments())
            case ("rollout", 1) | ("env_step", 0):
                return _bytes(self._initial_obs(at[0]))
            case _:
                return None

    def output_bytes(self, op_name: str) -> tuple[int, ...]:
        """Returns the bytes of each output of an op.

        Raises:
            ExecutionError: The op is not one of this job.
        """
        kind, at = check_name(self.config, op_name, parse_name(op_name)[0])
        return self.sizes.of(kind, at).outputs

    def metrics(
        self, iteration: int, batch_stats: Bytes, losses: Sequence[Bytes]
    ) -> IterationMetrics:
        """Returns the metrics of an iteration.

        Args:
            iteration: Which.
            batch_stats: Output 0 of `collect`.
            losses: Last output of every `grad[e,b,m]`, in any order; may be empty (then NaN).
        """
        stats = BatchStats(*batch_stats.view(np.float64).tolist())
        return iteration_metrics(iteration, stats, [loss.view(np.float32) for loss in losses])

    def recorded(self) -> tuple[tuple[str, int], ...]:
        """Returns (op name, output) of what tells the rewards of an iteration."""
        config = self.config
        if config.independent_trainers:
            return tuple((f"collect[{m}]", 0) for m in range(config.num_trainers))
        if config.mode is not JobMode.serving:
            return (("collect", 0),)
        kind, output = ("rollout", 0) if config.fused else ("env_step", 1)
        steps = config.num_chunks if config.fused else config.horizon
        return tuple(
            (f"{kind}[{k},{t}]", output) for k in range(config.num_shards) for t in range(steps)
        )

    def batch_stats(self, tensors: Sequence[Bytes]) -> BatchStats:
        """Returns the statistics of one iteration from the outputs that `recorded` names.

        A serving job knows no advantages: those are NaN.
        """
        if self.config.mode is not JobMode.serving:
            return merge_stats([BatchStats(*t.view(np.float64).tolist()) for t in tensors])
        layouts = self._context.layouts
        layout = layouts.chunk_results if self.config.fused else layouts.result
        results = [layout.views(tensor) for tensor in tensors]
        done = sum(int((result.terminated | result.truncated).sum()) for result in results)
        return BatchStats(
            advantage_mean=float("nan"),
            advantage_std=float("nan"),
            return_std=float("nan"),
            episode_return_sum=sum(float(r.episode_return.sum(dtype=float)) for r in results),
            episode_length_sum=sum(float(r.episode_length.sum(dtype=float)) for r in results),
            episodes=done,
            reward_sum=sum(float(r.reward.sum(dtype=float)) for r in results),
            rows=self.config.rows,
        )

    def _make_shard(self, shard: int) -> EnvironmentShard:
        n = self.config.envs_per_shard
        state = EnvironmentShard(self._context.environment(n, shard * n), self.config.seed)
        self._first_obs[shard] = state.first_obs
        return state

    def _initial_obs(self, shard: int) -> NDArray[np.float32]:
        if shard not in self._first_obs:
            self._make_shard(shard).close()
        return self._first_obs[shard]

    def _initial_segment(self, segment: int) -> NDArray[np.float32]:
        first, end = self._context.layouts.segments[segment]
        return self._context.initial_parameters()[first:end]

    def _initial_moments(self) -> NDArray[np.float64]:
        return initial_moments(self._context.spec.obs_dim)


def iteration_metrics(
    iteration: int, stats: BatchStats, losses: Sequence[NDArray[np.float32]]
) -> IterationMetrics:
    """Returns the metrics of an iteration from its batch statistics and the losses of all parts."""
    episodes = int(stats.episodes)
    # Parts of one gradient step add up to its mean loss; `rows` counts the steps.
    total = np.full(NUM_LOSSES, np.nan)
    if losses:
        total = np.stack(losses).sum(axis=0, dtype=np.float64)
    mean = LossParts(*(total / total[-1]).tolist())
    variance = stats.return_std**2
    return IterationMetrics(
        iteration=iteration,
        rows=int(stats.rows),
        mean_reward=stats.reward_sum / stats.rows,
        episodes=episodes,
        mean_return=stats.episode_return_sum / episodes if episodes else float("nan"),
        mean_length=stats.episode_length_sum / episodes if episodes else float("nan"),
        explained_variance=1.0 - stats.advantage_std**2 / variance if variance else float("nan"),
        policy_loss=mean.policy,
        value_loss=mean.value,
        entropy=mean.entropy,
        approx_kl=mean.approx_kl,
        clip_fraction=mean.clip_fraction,
    )


def policy_factory(config: PPOJobConfig, source: Source) -> PolicyFactory:
    """Returns what makes the job's network: the user's, or the built-in one."""
    if source.policy is not None:
        return source.policy
    return partial(ActorCritic, *_dims(source), config.hidden, config.init_log_std)


def _dims(source: Source) -> tuple[int, int]:
    return source.spec.obs_dim, source.spec.act_dim


def _shard(op_name: str, state: GroupState | None, threads: int) -> EnvironmentShard:
    if not isinstance(state, EnvironmentShard):
        raise ExecutionError(f"op {op_name!r} needs the state of its env group, not {state!r}")
    state.set_threads(threads)
    return state


def _segment(op_name: str, state: GroupState | None, kind: type[Segment]) -> Segment:
    if not isinstance(state, kind):
        raise ExecutionError(
            f"op {op_name!r} needs the state of its optimizer group, not {state!r}"
        )
    return state


def _bytes(array: NDArray[np.float32] | NDArray[np.float64]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def load_job(values: dict[str, object]) -> PPOJob:
    """Returns the job of a config's JSON form.

    Raises:
        ConfigError: A value is unknown or out of range.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"a PPO job needs a table of settings, not {type(values).__name__}")
    return PPOJob(PPOJobConfig.from_dict(values))
