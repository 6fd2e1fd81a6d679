"""PPO as an ordinary loop: one process, all threads, whole minibatches, no executor.

Mathematically the same job as the dataflow graph's, from the same random numbers; it is what the
executor has to beat.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from executor.drl.adam import BETA1, BETA2, EPSILON
from executor.drl.config import PPOJobConfig
from executor.drl.counter_random import CounterRandom, Stream
from executor.drl.job import IterationMetrics, iteration_metrics, policy_factory
from executor.drl.learning import make_batch
from executor.drl.normalizer import (
    initial_moments,
    measure_moments,
    merge_moments,
    normalize,
    standard_deviation,
)
from executor.drl.policy import FlatPolicy, aligned_zeros, seeded_module
from executor.drl.ppo import LossParts, generalized_advantages, part_gradient
from executor.drl.records import BatchStats, row_columns
from executor.drl.sources import resolve_source

_HALF_LOG_2PI = np.float32(0.5 * np.log(2.0 * np.pi))


class PlainPPO:
    """Trains `config` with `num_threads` threads; shards, chunks, parts and segments do not matter.

    Attributes:
        config: The job.
        iteration: Iterations done.
    """

    def __init__(self, config: PPOJobConfig, num_threads: int) -> None:
        """Makes all environments, the network and its optimizer; sets torch's threads."""
        torch.set_num_threads(num_threads)
        self.config = config
        self.iteration = 0
        source = resolve_source(config)
        obs_dim, act_dim = source.spec.obs_dim, source.spec.act_dim
        envs, steps = config.num_envs, config.horizon
        self._environment = source.environment(envs, 0)
        self._environment.set_threads(num_threads)
        self._obs = self._environment.reset(config.seed)
        self._random = CounterRandom(config.seed)
        self._module = seeded_module(policy_factory(config, source), config.seed)
        self._optimizer = torch.optim.Adam(
            self._module.parameters(),
            lr=config.learning_rate,
            betas=(BETA1, BETA2),
            eps=EPSILON,
            fused=True,
        )
        self._moments = initial_moments(obs_dim)
        self._columns = row_columns(obs_dim, act_dim)
        width = self._columns.width
        self._rows = aligned_zeros(config.rows * width).reshape(envs, steps, width)
        self._table = aligned_zeros(config.minibatch_rows * width).reshape(-1, width)
        self._normalized = np.empty((envs, obs_dim), np.float32)
        self._raw = np.empty((steps, envs, obs_dim), np.float32)
        wide = (steps, envs)
        self._values, self._reward = np.zeros(wide, np.float32), np.zeros(wide, np.float32)
        self._terminated, self._truncated = np.zeros(wide, np.bool_), np.zeros(wide, np.bool_)
        self._return, self._length = np.zeros(envs), np.zeros(envs)

    def step(self) -> IterationMetrics:
        """Runs one iteration: experience, advantages, epochs of minibatch steps."""
        episodes = self._collect()
        stats = self._advantages(episodes)
        losses = [
            np.array(self._update(order, b, stats), np.float32)
            for order in self._orders()
            for b in range(self.config.minibatches)
        ]
        columns = self._raw.shape[-1]
        moments = measure_moments(self._raw.reshape(-1, columns))
        self._moments = merge_moments([self._moments, moments])
        self.iteration += 1
        return iteration_metrics(self.iteration - 1, stats, losses)

    def act(self, obs: NDArray[np.float32], noise: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns mean + std x noise of the policy as it is; nothing is recorded.

        Args:
            obs: [n, O] raw observations.
            noise: [n, A] standard normal; zeros give the means.
        """
        normalized = normalize(obs, self._moments, np.empty_like(obs))
        with torch.inference_mode():
            mean, log_std, _ = self._module(torch.from_numpy(normalized))
            actions: NDArray[np.float32] = (mean + log_std.exp() * torch.from_numpy(noise)).numpy()
        return actions

    def parameters(self) -> NDArray[np.float32]:
        """Returns the parameters in the job's flat layout."""
        return FlatPolicy(self._module).read()

    def close(self) -> None:
        """Frees the environments."""
        self._environment.close()

    def _collect(self) -> NDArray[np.float64]:
        """Fills rows and returns [sum of returns, sum of lengths, episodes] of those that ended."""
        columns, rows = self._columns, self._rows
        normalized = torch.from_numpy(self._normalized)
        episodes = np.zeros(3)
        shape = (self.config.num_envs, rows[0, 0, columns.actions].size)
        for t in range(self.config.horizon):
            self._raw[t] = self._obs
            normalize(self._obs, self._moments, self._normalized)
            with torch.inference_mode():
                outputs = self._module(normalized)
            mean, log_std, value = (tensor.detach().numpy() for tensor in outputs)
            noise = self._random.normals(Stream.action, self.iteration, t, 0, shape)
            actions = mean + np.exp(log_std) * noise
            rows[:, t, columns.obs] = self._normalized
            rows[:, t, columns.actions] = actions
            terms = np.square(noise) * np.float32(-0.5) - log_std - _HALF_LOG_2PI
            rows[:, t, columns.log_prob] = terms.sum(axis=1)
            self._values[t] = value
            step = self._environment.step(actions)
            self._obs = step.obs
            self._reward[t] = step.reward
            self._terminated[t], self._truncated[t] = step.terminated, step.truncated
            self._return += step.reward
            self._length += 1
            done = step.terminated | step.truncated
            if done.any():
                episodes += (self._return[done].sum(), self._length[done].sum(), done.sum())
                self._return[done] = self._length[done] = 0.0
        return episodes

    def _advantages(self, episodes: NDArray[np.float64]) -> BatchStats:
        config, columns, rows = self.config, self._columns, self._rows
        normalize(self._obs, self._moments, self._normalized)
        with torch.inference_mode():
            last_value = self._module(torch.from_numpy(self._normalized))[2].numpy()
        advantages = generalized_advantages(
            self._reward * np.float32(config.reward_scale),
            self._values,
            last_value,
            self._terminated,
            self._truncated,
            config.gamma,
            config.lam,
        )
        returns = advantages + self._values
        rows[:, :, columns.value] = self._values.T
        rows[:, :, columns.advantage] = advantages.T
        rows[:, :, columns.target] = returns.T
        moments = measure_moments(advantages.reshape(-1, 1))
        return BatchStats(
            advantage_mean=float(moments[1]),
            advantage_std=float(standard_deviation(moments)[0]),
            return_std=float(returns.std(dtype=np.float64)),
            episode_return_sum=episodes[0],
            episode_length_sum=episodes[1],
            episodes=episodes[2],
            reward_sum=float(self._reward.sum(dtype=np.float64)),
            rows=config.rows,
        )

    def _orders(self) -> list[NDArray[np.int64]]:
        return [
            self._random.generator(Stream.permutation, self.iteration, epoch).permutation(
                self.config.rows
            )
            for epoch in range(self.config.epochs)
        ]

    def _update(self, order: NDArray[np.int64], minibatch: int, stats: BatchStats) -> LossParts:
        config = self.config
        first = minibatch * config.minibatch_rows
        chosen = np.sort(order[first : first + config.minibatch_rows])
        flat = self._rows.reshape(config.rows, -1)
        np.take(flat, chosen, axis=0, out=self._table, mode="clip")
        self._optimizer.zero_grad(set_to_none=False)
        losses = part_gradient(
            self._module,
            make_batch(self._table, self._columns),
            stats.advantage_mean,
            stats.advantage_std,
            config.minibatch_rows,
            config.loss,
        )
        torch.nn.utils.clip_grad_norm_(self._module.parameters(), config.max_grad_norm)
        self._optimizer.step()
        return losses
