"""Kernels that make experience: agents and environments, fused or step by step."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from doppler.core.errors import ExecutionError
from executor.drl.context import JobContext, Workspace
from executor.drl.counter_random import Stream
from executor.drl.normalizer import normalize
from executor.drl.records import Bytes, ResultRecord, StepRecord
from executor.drl.vector_env import VectorEnvironment
from executor.job import Kernel

_HALF_LOG_2PI = np.float32(0.5 * np.log(2.0 * np.pi))


class EnvironmentShard:
    """State of a group `env[k]`: n environments, and the return and length of their episodes."""

    def __init__(self, environment: VectorEnvironment, seed: int) -> None:
        self._environment = environment
        self.first_obs = environment.reset(seed).copy()
        self._return = np.zeros(environment.num_envs, np.float64)
        self._length = np.zeros(environment.num_envs, np.int64)

    def step(
        self, actions: NDArray[np.float32], results: ResultRecord, t: int
    ) -> NDArray[np.float32]:
        """Steps, records the result at step `t`, and returns the next observations [n, O].

        The observations belong to the environment and are valid until the next step.
        """
        step = self._environment.step(actions)
        done = step.terminated | step.truncated
        self._return += step.reward
        self._length += 1
        results.reward[t] = step.reward
        np.multiply(self._return, done, out=results.episode_return[t], casting="unsafe")
        np.multiply(self._length, done, out=results.episode_length[t], casting="unsafe")
        results.terminated[t] = step.terminated
        results.truncated[t] = step.truncated
        self._return[done] = 0.0
        self._length[done] = 0
        return step.obs

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """Returns the environments' state and the running episodes."""
        return self._environment.export_state() | {
            "running_return": self._return.copy(),
            "running_length": self._length.copy(),
        }

    def import_state(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Continues from an exported state.

        Raises:
            ExecutionError: A name or shape is not that of this shard.
        """
        for name, mine in (("running_return", self._return), ("running_length", self._length)):
            if name not in state or state[name].shape != mine.shape:
                raise ExecutionError(
                    f"environment state {name!r} must have shape {list(mine.shape)}, "
                    f"but the imported state holds {sorted(state)}"
                )
        self._environment.import_state(
            {name: array for name, array in state.items() if not name.startswith("running_")}
        )
        self._return[:] = state["running_return"]
        self._length[:] = state["running_length"]

    def set_threads(self, num_threads: int) -> None:
        """Steps with that many threads from now on."""
        self._environment.set_threads(num_threads)

    def close(self) -> None:
        """Frees the environments."""
        self._environment.close()


class Agent:
    """Chooses the actions of shard k."""

    def __init__(self, context: JobContext, shard: int) -> None:
        self._context = context
        n, obs_dim = context.config.envs_per_shard, context.spec.obs_dim
        self._first_env = shard * n
        self._shape = (n, context.spec.act_dim)
        self._obs = np.empty((n, obs_dim), np.float32)
        self._obs_tensor = torch.from_numpy(self._obs)

    def act(
        self,
        vector: Bytes,
        obs: NDArray[np.float32],
        coordinates: tuple[int, int],
        record: StepRecord,
        t: int,
    ) -> NDArray[np.float32]:
        """Records observation, action, log-probability and value at step `t` of `record`.

        Args:
            vector: The policy vector.
            obs: [n, O] raw observations.
            coordinates: (iteration, control step within it): where the noise comes from.
            record: Where to record.
            t: Step of `record`.

        Returns:
            The actions [n, A], a view of the record.
        """
        workspace: Workspace = self._context.workspace()
        parameters, moments = self._context.split_vector(vector)
        normalize(obs, moments, self._obs)
        with torch.inference_mode():
            outputs = workspace.policy.bind(parameters)(self._obs_tensor)
        mean, log_std, value = (tensor.detach().numpy() for tensor in outputs)
        noise = workspace.random.normals(Stream.action, *coordinates, self._first_env, self._shape)
        actions: NDArray[np.float32] = record.actions[t]
        np.multiply(noise, np.exp(log_std), out=actions)
        actions += mean
        terms = noise * noise
        terms *= np.float32(-0.5)
        terms -= log_std
        terms -= _HALF_LOG_2PI
        record.obs[t] = obs
        terms.sum(axis=1, out=record.log_probs[t])
        record.values[t] = value
        return actions


def rollout_kernel(context: JobContext, shard: int, chunk: int, state: EnvironmentShard) -> Kernel:
    """Returns the kernel of `rollout[k,c]`: environment and agent for one chunk of steps.

    Inputs: policy vector, observations. Outputs: experience, next observations.
    """
    agent, layouts = Agent(context, shard), context.layouts
    first_step = chunk * context.config.chunk
    shape = (context.config.envs_per_shard, context.spec.obs_dim)

    def kernel(iteration: int, inputs: Sequence[Bytes], outputs: Sequence[Bytes]) -> None:
        vector, obs_bytes = inputs
        steps = layouts.chunk_steps.views(outputs[0])
        results = layouts.chunk_results.views(outputs[0])
        obs = obs_bytes.view(np.float32).reshape(shape)
        for t in range(context.config.chunk):
            actions = agent.act(vector, obs, (iteration, first_step + t), steps, t)
            obs = state.step(actions, results, t)
        outputs[1].view(np.float32).reshape(shape)[:] = obs

    return kernel


def infer_kernel(context: JobContext, shard: int, step: int) -> Kernel:
    """Returns the kernel of `infer[k,t]`.

    Inputs: policy vector, observations. Outputs: step record, actions.
    """
    agent, layout = Agent(context, shard), context.layouts.step
    shape = (context.config.envs_per_shard, context.spec.obs_dim)

    def kernel(iteration: int, inputs: Sequence[Bytes], outputs: Sequence[Bytes]) -> None:
        vector, obs_bytes = inputs
        record = layout.views(outputs[0])
        obs = obs_bytes.view(np.float32).reshape(shape)
        actions = agent.act(vector, obs, (iteration, step), record, 0)
        outputs[1].view(np.float32).reshape(actions.shape)[:] = actions

    return kernel


def env_step_kernel(context: JobContext, state: EnvironmentShard) -> Kernel:
    """Returns the kernel of `env_step[k,t]`.

    Inputs: actions. Outputs: next observations, results.
    """
    layout = context.layouts.result
    n, obs_dim, act_dim = (
        context.config.envs_per_shard,
        context.spec.obs_dim,
        context.spec.act_dim,
    )

    def kernel(iteration: int, inputs: Sequence[Bytes], outputs: Sequence[Bytes]) -> None:
        actions = inputs[0].view(np.float32).reshape(n, act_dim)
        results = layout.views(outputs[1])
        outputs[0].view(np.float32).reshape(n, obs_dim)[:] = state.step(actions, results, 0)

    return kernel
