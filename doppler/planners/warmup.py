"""Compiles the learned planner's kernels into numba's cache on disk, on a graph of four ops.

Run as a process of its own (`python -m doppler.planners.warmup`) it works beside one that compiles
the simulator, so that a first run on two cores waits for the longer of the two only.
"""

import numpy as np

from doppler.planners.base import Budget
from doppler.planners.learned import LearnedPlanner
from doppler.planners.tiny import LoadScorer, tiny_problem
from doppler.training.config import ReinforceConfig, TrainingConfig

BUDGET = 120


def compile_learned_planner() -> None:
    """Plans once with a scorer that needs no engine; what it compiles stays in the cache."""
    problem, costs = tiny_problem()
    planner = LearnedPlanner(training=TrainingConfig(reinforce=ReinforceConfig(batch=8)))
    planner(problem, LoadScorer(problem, costs), Budget(BUDGET), np.random.default_rng(0))


if __name__ == "__main__":
    compile_learned_planner()
