"""What the kernels of one PPO job share: its layouts, and scratch memory per thread."""

import threading
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from executor.drl.config import PPOJobConfig
from executor.drl.counter_random import CounterRandom, Stream
from executor.drl.policy import (
    FlatPolicy,
    ParameterLayout,
    PolicyFactory,
    aligned_zeros,
    parameter_layout,
    seeded_module,
    segment_bounds,
)
from executor.drl.records import (
    Bytes,
    RecordLayout,
    ResultRecord,
    RowColumns,
    ShardStats,
    StepRecord,
    result_layout,
    row_columns,
    stats_layout,
    step_layout,
)
from executor.drl.sizes import JobSizes, op_sizes
from executor.drl.vector_env import EnvironmentFactory, EnvironmentSpec

_KEPT_PERMUTATIONS = 4


class Workspace:
    """Scratch of one thread: a network to bind, a generator, a few permutations.

    Attributes:
        policy: The network, bound to whatever an op needs.
        random: Generator for coordinates.
        parameters: [P] scratch for a whole parameter vector.
        gradient: [P] scratch for a whole gradient.
        table: [B, width] scratch for the training rows of the largest part of a minibatch.
    """

    def __init__(self, factory: PolicyFactory, seed: int, table_shape: tuple[int, int]) -> None:
        self.policy = FlatPolicy(seeded_module(factory, seed))
        size = self.policy.layout.size
        self.parameters = aligned_zeros(size)
        self.gradient = aligned_zeros(size)
        self.table = aligned_zeros(table_shape[0] * table_shape[1]).reshape(table_shape)
        self.policy.bind(self.parameters)
        self.policy.bind_gradient(self.gradient)
        self.random = CounterRandom(seed)
        self._permutations: dict[tuple[int, int], NDArray[np.int64]] = {}

    def permutation(self, iteration: int, epoch: int, rows: int) -> NDArray[np.int64]:
        """Returns the order in which an epoch visits the rows of an iteration."""
        key = (iteration, epoch)
        order = self._permutations.get(key)
        if order is None:
            generator = self.random.generator(Stream.permutation, iteration, epoch)
            order = generator.permutation(rows)
            while len(self._permutations) >= _KEPT_PERMUTATIONS:
                self._permutations.pop(next(iter(self._permutations)))
            self._permutations[key] = order
        return order


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Byte layouts of the job's tensors.

    Attributes:
        step: One step of what agents record.
        result: One step of what environments record.
        chunk_steps: What agents record in a chunk: the head of an experience.
        chunk_results: What environments record in a chunk: the tail of an experience.
        stats: Statistics of a shard.
        rows: Columns of a training row.
        segments: (first, end) float of each segment of the parameter vector.
        parameters: Where each parameter lies in the vector.
    """

    step: RecordLayout[StepRecord]
    result: RecordLayout[ResultRecord]
    chunk_steps: RecordLayout[StepRecord]
    chunk_results: RecordLayout[ResultRecord]
    stats: RecordLayout[ShardStats]
    rows: RowColumns
    segments: tuple[tuple[int, int], ...]
    parameters: ParameterLayout


@dataclass(kw_only=True)
class JobContext:
    """One job in one process.

    Attributes:
        config: The job.
        spec: Sizes of its environment.
        environment: Makes environments.
        policy: Makes networks.
    """

    config: PPOJobConfig
    spec: EnvironmentSpec
    environment: EnvironmentFactory
    policy: PolicyFactory
    _local: threading.local = field(default_factory=threading.local)

    @cached_property
    def layouts(self) -> Layouts:
        """Byte layouts of the job's tensors."""
        config, (obs, act) = self.config, (self.spec.obs_dim, self.spec.act_dim)
        n, chunk = config.envs_per_shard, config.chunk
        steps = step_layout(chunk, n, obs, act)
        parameters = parameter_layout(self.workspace().policy.module)
        return Layouts(
            step=step_layout(1, n, obs, act),
            result=result_layout(1, n),
            chunk_steps=steps,
            chunk_results=result_layout(chunk, n, steps.size),
            stats=stats_layout(obs),
            rows=row_columns(obs, act),
            segments=segment_bounds(parameters.size, config.num_segments),
            parameters=parameters,
        )

    @cached_property
    def sizes(self) -> JobSizes:
        """Bytes and flop of every op."""
        return op_sizes(self.config, self.spec, self.layouts.parameters)

    def initial_parameters(self) -> NDArray[np.float32]:
        """Returns the first parameter vector [P]; the same in every process."""
        return FlatPolicy(seeded_module(self.policy, self.config.seed)).read()

    def workspace(self) -> Workspace:
        """Returns the calling thread's scratch."""
        workspace: Workspace | None = getattr(self._local, "workspace", None)
        if workspace is None:
            part_rows = -(-self.config.minibatch_rows // self.config.num_trainers)
            columns = row_columns(self.spec.obs_dim, self.spec.act_dim)
            shape = (part_rows, columns.width)
            workspace = Workspace(self.policy, self.config.seed, shape)
            self._local.workspace = workspace
        return workspace

    def split_vector(self, vector: Bytes) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Returns (parameters [P], normaliser) of a policy vector, without a copy."""
        end = 4 * self.layouts.parameters.size
        return vector[:end].view(np.float32), vector[end:].view(np.float64)
