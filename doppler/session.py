"""A real job under way: executors by layout, and the reward curve that the job itself reports."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

from doppler.api import open_executor
from doppler.core.plan import Plan
from doppler.core.problem import Objective, Problem
from doppler.core.trace import Trace
from doppler.jobs import RLJob
from doppler.passes import back_to_back
from doppler.real_job import RealJob
from executor.drl.job import PPOJob, iteration_metrics
from executor.drl.records import BatchStats
from executor.options import ExecutorOptions
from executor.runtime import CoreExecutor


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRecord:
    """What one iteration of the RL job achieved.

    Attributes:
        iteration: Iterations before it.
        env_steps: Environment steps up to its end.
        num_episodes: Episodes that ended in it.
        mean_return: Mean return of the episodes that ended in it, None if none did.
        reward_per_step: Mean reward per environment step.
        mean_length: Mean length of those episodes in steps, None if none ended.
    """

    iteration: int
    env_steps: int
    num_episodes: int
    mean_return: float | None
    reward_per_step: float
    mean_length: float | None


class RewardReader:
    """Reads the reward curve of a deep-RL job from tensors that the executor keeps.

    Attributes:
        recorded: (op, output) of each.
    """

    def __init__(self, job: RLJob) -> None:
        self._steps = job.env_steps_per_iteration
        self._kernels = PPOJob(job.config)
        ids = job.graph.op_ids
        self.recorded = tuple((ids[op], output) for op, output in self._kernels.recorded())

    def read(self, executor: CoreExecutor) -> Iterator[RewardRecord]:
        """Yields a record per iteration since the last call."""
        records = executor.take_records()
        for rows in zip(*(records[key] for key in self.recorded), strict=True):
            stats = self._kernels.batch_stats([values for _, values in rows])
            yield reward_record(rows[0][0], stats, self._steps)


class JobSession:
    """A running job on one layout.

    Attributes:
        problem: Graph and cluster.
        executor: What runs it.
        rewards: The reward curve of a deep-RL job so far; empty for other jobs.
    """

    def __init__(self, job: RealJob, problem: Problem, options: ExecutorOptions) -> None:
        self.problem = problem
        self.rewards: list[RewardRecord] = []
        self._reader = RewardReader(job) if isinstance(job, RLJob) else None
        recorded = () if self._reader is None else self._reader.recorded
        self.executor = open_executor(job.spec, problem, replace(options, record=recorded))

    def __enter__(self) -> "JobSession":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.executor.close()

    def run(self, plan: Plan, iterations: int) -> Trace:
        """Runs the job on; the rewards of every iteration are kept.

        Where the makespan counts, an iteration is a pass that starts when the last one has ended.
        """
        if self.problem.objective is Objective.makespan:
            passes = [self.executor.run(self.problem, plan, 1) for _ in range(iterations)]
            trace = back_to_back(passes)
        else:
            trace = self.executor.run(self.problem, plan, iterations)
        if self._reader is not None:
            self.rewards += self._reader.read(self.executor)
        return trace

    def last_return(self, over: int = 10) -> float | None:
        """Returns the mean return of the episodes of the last `over` iterations, None if none."""
        return mean_return(self.rewards[-over:])


def mean_return(records: Sequence[RewardRecord]) -> float | None:
    """Returns the mean return of all episodes that ended in some iterations, None if none did."""
    ended = [(r.mean_return, r.num_episodes) for r in records if r.mean_return is not None]
    total = sum(count for _, count in ended)
    return sum(value * count for value, count in ended) / total if total else None


def reward_record(iteration: int, stats: BatchStats, steps: int) -> RewardRecord:
    """Returns the record of one iteration."""
    metrics = iteration_metrics(iteration, stats, [])
    return RewardRecord(
        iteration=iteration,
        env_steps=(iteration + 1) * steps,
        num_episodes=metrics.episodes,
        mean_return=None if math.isnan(metrics.mean_return) else metrics.mean_return,
        reward_per_step=metrics.mean_reward,
        mean_length=None if math.isnan(metrics.mean_length) else metrics.mean_length,
    )
