"""The PPO job's kernels on tensors: agents, advantages, trainers and their reductions on a device.

Inputs and outputs have the bytes of the kernels for cores (`acting`, `learning`), so a plan may mix
both. Environments and `collect` compute on the host; a fused rollout steps its environments there
and decides on the device. Random numbers come from the same counters on the host. On a GPU
*not yet run on hardware*; on the CPU device the same code is tested.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from executor.drl import device_math
from executor.drl.acting import EnvironmentShard
from executor.drl.config import PPOJobConfig
from executor.drl.context import JobContext
from executor.drl.counter_random import CounterRandom, Stream
from executor.drl.device_math import DeviceAdamSegment
from executor.drl.learning import batch_of, gradient_part, part_rows
from executor.drl.policy import FlatPolicy, seeded_module
from executor.drl.ppo import gaussian_log_prob, means_and_gradients
from executor.drl.records import ResultRecord, StepRecord
from executor.job import TensorKernel


class DeviceWorkspace:
    """Scratch of one thread on a device.

    Attributes:
        policy: The network there.
        parameters: [P] a whole parameter vector.
        gradient: [P] a whole gradient.
        random: Generator for coordinates, on the host.
    """

    def __init__(self, context: JobContext, torch_device: str) -> None:
        module = seeded_module(context.policy, context.config.seed)
        self.policy = FlatPolicy(module, torch_device)
        self.parameters = torch.zeros(self.policy.layout.size, device=torch_device)
        self.gradient = torch.zeros_like(self.parameters)
        self.policy.bind(self.parameters)
        self.policy.bind_gradient(self.gradient)
        self.random = CounterRandom(context.config.seed)


class DeviceContext:
    """One job on one torch device, for the threads of a process.

    Attributes:
        job: Layouts and sizes.
        torch_device: Where tensors lie.
    """

    def __init__(self, job: JobContext, torch_device: str) -> None:
        self.job = job
        self.torch_device = torch_device
        self._local = threading.local()

    def workspace(self) -> DeviceWorkspace:
        """Returns the calling thread's scratch."""
        workspace: DeviceWorkspace | None = getattr(self._local, "workspace", None)
        if workspace is None:
            workspace = self._local.workspace = DeviceWorkspace(self.job, self.torch_device)
        return workspace

    def split_vector(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (parameters [P], normaliser) of a policy vector, without a copy."""
        end = 4 * self.job.layouts.parameters.size
        return vector[:end].view(torch.float32), vector[end:].view(torch.float64)

    def to_device(self, array: np.ndarray) -> Tensor:
        """Returns a copy of an array there."""
        return torch.from_numpy(array).to(self.torch_device)


class DeviceAgent:
    """Chooses the actions of shard k."""

    def __init__(self, context: DeviceContext, shard: int) -> None:
        config, spec = context.job.config, context.job.spec
        self._context = context
        self._first_env = shard * config.envs_per_shard
        self._shape = (config.envs_per_shard, spec.act_dim)

    def act(
        self, vector: Tensor, obs: Tensor, coordinates: tuple[int, int], record: Any, t: int
    ) -> Tensor:
        """Records observation, action, log-probability and value at step `t` of `record`.

        Args:
            vector: The policy vector.
            obs: [n, O] raw observations.
            coordinates: (iteration, control step within it): where the noise comes from.
            record: Where to record: a `StepRecord` of tensors.
            t: Step of `record`.

        Returns:
            The actions [n, A], a view of the record.
        """
        context, workspace = self._context, self._context.workspace()
        parameters, moments = context.split_vector(vector)
        normals = workspace.random.normals
        noise = normals(Stream.action, *coordinates, self._first_env, self._shape)
        with torch.no_grad():
            outputs = workspace.policy.bind(parameters)(device_math.normalize(obs, moments))
            decision = device_math.decide(outputs, context.to_device(noise))
        fields: tuple[Tensor, ...] = (obs, *decision)
        for field, value in zip(record, fields, strict=True):
            field[t] = value
        actions: Tensor = record.actions[t]
        return actions


def infer_kernel(context: DeviceContext, shard: int, step: int) -> TensorKernel:
    """Returns the kernel of `infer[k,t]`; inputs and outputs as `acting.infer_kernel`."""
    agent, layout = DeviceAgent(context, shard), context.job.layouts.step
    shape = (context.job.config.envs_per_shard, context.job.spec.obs_dim)

    def kernel(iteration: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        vector, obs = inputs
        record = layout.tensors(outputs[0])
        obs = obs.view(torch.float32).view(shape)
        actions = agent.act(vector, obs, (iteration, step), record, 0)
        outputs[1].view(torch.float32).view(actions.shape).copy_(actions)

    return kernel


def rollout_kernel(
    context: DeviceContext, shard: int, chunk: int, state: EnvironmentShard
) -> TensorKernel:
    """Returns the kernel of `rollout[k,c]`; inputs and outputs as `acting.rollout_kernel`.

    Observations and actions cross between host and device once per control step, results once per
    chunk.
    """
    agent, layouts, config = DeviceAgent(context, shard), context.job.layouts, context.job.config
    first_step, begin = chunk * config.chunk, layouts.chunk_steps.size
    shape = (config.envs_per_shard, context.job.spec.obs_dim)
    scratch = np.zeros(layouts.chunk_results.size, np.uint8)
    results: ResultRecord = layouts.chunk_results.views(scratch)

    def kernel(iteration: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        vector, obs = inputs
        steps = layouts.chunk_steps.tensors(outputs[0])
        obs = obs.view(torch.float32).view(shape)
        for t in range(config.chunk):
            actions = agent.act(vector, obs, (iteration, first_step + t), steps, t)
            obs = context.to_device(state.step(actions.cpu().numpy(), results, t))
        outputs[0][begin:].copy_(torch.from_numpy(scratch[begin:]))
        outputs[1].view(torch.float32).view(shape).copy_(obs)

    return kernel


def advantage_kernel(context: DeviceContext) -> TensorKernel:
    """Returns the kernel of `advantage[k]`; inputs and outputs as `learning.advantage_kernel`."""
    config, layouts, spec = context.job.config, context.job.layouts, context.job.spec
    columns = layouts.rows
    shape = (config.envs_per_shard, spec.obs_dim)

    def kernel(iteration: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        vector, *tensors, final = inputs
        parameters, moments = context.split_vector(vector)
        steps, results = _experience(context, tensors)
        last_obs = device_math.normalize(final.view(torch.float32).view(shape), moments)
        obs = device_math.normalize(steps.obs, moments)
        module = context.workspace().policy.bind(parameters)
        with torch.no_grad():
            last_value = module(last_obs)[2]
        if config.exact_advantages:
            steps, advantages, targets = _importance_estimates(
                module, steps, results, obs, last_value, config
            )
        else:
            advantages = device_math.generalized_advantages(
                results.reward * config.reward_scale,
                steps.values,
                last_value,
                results.terminated,
                results.truncated,
                config.gamma,
                config.lam,
            )
            targets = advantages + steps.values
        # [n, H, width]: rows are ordered by environment, then time.
        rows = outputs[0].view(torch.float32).view(shape[0], config.horizon, columns.width)
        rows[:, :, columns.obs] = obs.transpose(0, 1)
        rows[:, :, columns.actions] = steps.actions.transpose(0, 1)
        for column, values in (
            (columns.log_prob, steps.log_probs),
            (columns.value, steps.values),
            (columns.advantage, advantages),
            (columns.target, targets),
        ):
            rows[:, :, column] = values.t()
        rows[:, :, columns.target + 1 :] = 0.0
        stats = layouts.stats.tensors(outputs[1])
        stats.obs.copy_(device_math.measure_moments(steps.obs.flatten(0, 1)))
        stats.advantages.copy_(device_math.measure_moments(advantages.view(-1, 1)))
        stats.returns.copy_(device_math.measure_moments(targets.view(-1, 1)))
        done = results.terminated | results.truncated
        counted = (results.episode_return, results.episode_length, done, results.reward)
        stats.episodes.copy_(torch.stack([c.sum(dtype=torch.float64) for c in counted]))

    return kernel


def _importance_estimates(
    module: torch.nn.Module,
    steps: Any,
    results: Any,
    obs: Tensor,
    last_value: Tensor,
    config: PPOJobConfig,
) -> tuple[Any, Tensor, Tensor]:
    """Returns (steps with log-probabilities and values of pi, advantages, targets)."""
    wide = steps.log_probs.shape
    with torch.no_grad():
        mean, log_std, value = module(obs.flatten(0, 1))
        log_probs = gaussian_log_prob(steps.actions.flatten(0, 1), mean, log_std).view(wide)
    ours = steps._replace(log_probs=log_probs, values=value.view(wide))
    parts = (
        results.reward * config.reward_scale,
        ours.values,
        last_value,
        results.terminated,
        results.truncated,
        log_probs - steps.log_probs,
    )
    bounds = (config.rho_bar, config.c_bar)
    estimates = device_math.importance_estimates(
        config.importance, parts, config.gamma, config.lam, bounds
    )
    return ours, *estimates


def _experience(context: DeviceContext, tensors: Sequence[Tensor]) -> tuple[Any, Any]:
    """Returns a shard's `StepRecord` and `ResultRecord` of tensors [H, N, ...], in time order."""
    layouts, config = context.job.layouts, context.job.config
    if config.fused:
        steps = [layouts.chunk_steps.tensors(tensor) for tensor in tensors]
        results = [layouts.chunk_results.tensors(tensor) for tensor in tensors]
    else:
        steps = [layouts.step.tensors(tensor) for tensor in tensors[: config.horizon]]
        results = [layouts.result.tensors(tensor) for tensor in tensors[config.horizon :]]
    return _joined(StepRecord, steps), _joined(ResultRecord, results)


def _joined(record: Callable[..., Any], parts: Sequence[Any]) -> Any:
    """Returns one record of records that follow each other in time."""
    return record(*[torch.cat(fields) for fields in zip(*parts, strict=True)])


def _newest(sources: Sequence[Tensor], size: int) -> Tensor:
    """Returns the segment of `size` bytes with the most updates behind it, the first of equals."""
    if len(sources) == 1:
        return sources[0][:size].view(torch.float32)
    counts = torch.cat([source[size:].view(torch.int64) for source in sources])
    return sources[int(counts.argmax())][:size].view(torch.float32)


def grad_kernel(context: DeviceContext, epoch: int, minibatch: int, trainer: int) -> TensorKernel:
    """Returns the kernel of `grad[e,b,m]`; inputs and outputs as `learning.grad_kernel`."""
    config, layouts = context.job.config, context.job.layouts
    columns, segments = layouts.rows, layouts.segments
    shard_rows = config.envs_per_shard * config.horizon
    of = gradient_part(config, epoch, trainer)
    bounds = np.arange(of.num_shards + 1) * shard_rows
    num_weights = len(segments) * of.num_sources

    def kernel(iteration: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        workspace = context.workspace()
        for j, (first, end) in enumerate(segments):
            sources = inputs[j * of.num_sources : (j + 1) * of.num_sources]
            workspace.parameters[first:end].copy_(_newest(sources, 4 * (end - first)))
        order = context.job.workspace().permutation(iteration, of.order, of.rows)
        chosen = part_rows(order, minibatch, of.part, of.minibatch_rows, of.num_parts)
        cuts = np.searchsorted(chosen, bounds).tolist()
        places = context.to_device(chosen)
        table = torch.cat(
            [
                shard.view(torch.float32)
                .view(shard_rows, columns.width)
                .index_select(0, places[cuts[k] : cuts[k + 1]] - k * shard_rows)
                for k, shard in enumerate(inputs[num_weights:-1])
            ]
        )
        stats = inputs[-1].view(torch.float64)
        workspace.gradient.zero_()
        module = workspace.policy.bind(workspace.parameters)
        module_outputs = module(table[:, columns.obs])
        means, gradients = means_and_gradients(
            module_outputs,
            batch_of(table, columns),
            stats[0],
            stats[1],
            of.minibatch_rows,
            config.loss,
        )
        torch.autograd.backward(module_outputs, gradients)
        for (first, end), output in zip(segments, outputs, strict=False):
            output.view(torch.float32).copy_(workspace.gradient[first:end])
        part = len(table) / of.minibatch_rows
        _write_losses(outputs[len(segments)].view(torch.float32), means, context, part)

    return kernel


def _write_losses(losses: Tensor, means: Tensor, context: DeviceContext, part: float) -> None:
    """Writes the fields of `LossParts` [8]: `total` follows from the others."""
    settings = context.job.config.loss
    losses[:5] = means[:5]
    losses[5] = means[0] + settings.value_coef * means[1] - settings.entropy_coef * means[2]
    losses[6] = means[5]
    losses[7] = part


def reduce_chunk_kernel(
    iteration: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> None:
    """The kernel of `reduce_chunk[e,b,j,i,m]`, as `learning.reduce_chunk_kernel`."""
    total = outputs[0].view(torch.float32)
    total.copy_(inputs[0].view(torch.float32))
    for segment in inputs[1:]:
        total.add_(segment.view(torch.float32))


def forward_chunk_kernel(
    iteration: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> None:
    """The kernel of `forward_chunk[e,b,j,i,m]`: copies a segment."""
    outputs[0].copy_(inputs[0])


def reduce_kernel(iteration: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """The kernel of `reduce[e,b,j]`: adds from first to last, as `learning.reduce_kernel`."""
    reduce_chunk_kernel(iteration, inputs, outputs)
    total = outputs[0].view(torch.float32)
    outputs[1].view(torch.float64)[0] = total.to(torch.float64).square_().sum()


def adam_kernel(context: DeviceContext, state: DeviceAdamSegment) -> TensorKernel:
    """Returns the kernel of `adam[e,b,j]`; inputs and outputs as `learning.adam_kernel`."""
    max_norm, rate = context.job.config.max_grad_norm, context.job.config.learning_rate

    def kernel(iteration: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        gradient, *norms = inputs
        scale = device_math.clip_scale([norm.view(torch.float64) for norm in norms], max_norm)
        (output,), size = outputs, gradient.nbytes
        with state.lock:
            parameters = state.step(gradient.view(torch.float32), scale, rate)
            output[:size].view(torch.float32).copy_(parameters)
            output[size:].view(torch.int64).fill_(state.num_steps)

    return kernel


def broadcast_kernel(context: DeviceContext) -> TensorKernel:
    """Returns the kernel of `broadcast`; inputs and outputs as `learning.broadcast_kernel`."""
    segments = context.job.layouts.segments

    def kernel(iteration: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        *pieces, moments = inputs
        parameters, normalizer = context.split_vector(outputs[0])
        for (first, end), piece in zip(segments, pieces, strict=True):
            parameters[first:end].copy_(piece.view(torch.float32))
        normalizer.copy_(moments.view(torch.float64))

    return kernel
