"""A PPO job on pendulum that is small enough to be interpreted op by op in a test."""

from dataclasses import replace

from interpreter import Interpreter

from doppler.config import JOBS, JobConfig
from doppler.jobs import build_job

SMALL_JOB = replace(
    JOBS["ppo_pendulum"],
    envs_per_shard=4,
    horizon=8,
    chunk=8,
    hidden=[32, 16],
    epochs=2,
    minibatches=2,
)


def interpreted(settings: JobConfig, iterations: int) -> Interpreter:
    """Returns the interpreter of a job's own graph after some iterations."""
    job = build_job(settings, seed=3)
    return Interpreter(job.config, job.graph).run(iterations)
