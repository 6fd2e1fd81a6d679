"""A real job under way: executors by layout, and the reward curve that the job itself reports."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType

from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.trace import Trace
from doppler.jobs import RealJob
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


class JobSession:
    """A running job on one layout.

    Attributes:
        problem: Graph and cluster.
        executor: What runs it.
        rewards: The job's reward curve so far.
    """

    def __init__(self, job: RealJob, problem: Problem, options: ExecutorOptions) -> None:
        self.problem = problem
        self.rewards: list[RewardRecord] = []
        self._job = job
        self._kernels = PPOJob(job.config)
        ids = problem.graph.op_ids
        self._recorded = tuple((ids[op], output) for op, output in self._kernels.recorded())
        self.executor = CoreExecutor(job.spec, problem, replace(options, record=self._recorded))

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
        """Runs the job on; the rewards of every iteration are kept."""
        trace = self.executor.run(self.problem, plan, iterations)
        steps = self._job.env_steps_per_iteration
        records = self.executor.take_records()
        for rows in zip(*(records[key] for key in self._recorded), strict=True):
            stats = self._kernels.batch_stats([values for _, values in rows])
            self.rewards.append(reward_record(rows[0][0], stats, steps))
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
