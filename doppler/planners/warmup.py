"""Compiles the learned planner's kernels into numba's cache on disk, on a graph of four ops.

Run as a process of its own (`python -m doppler.planners.warmup`) it works beside one that compiles
the simulator, so that a first run on two cores waits for the longer of the two only.
"""

from doppler.planners.learned import LearnedPlanner
from doppler.planners.tiny import rehearse
from doppler.training.config import ReinforceConfig, TrainingConfig


def compile_learned_planner() -> None:
    """Plans once with a scorer that needs no engine; what it compiles stays in the cache."""
    planner = LearnedPlanner(training=TrainingConfig(reinforce=ReinforceConfig(batch=8)))
    rehearse(planner, has_kernel=False)


if __name__ == "__main__":
    compile_learned_planner()
