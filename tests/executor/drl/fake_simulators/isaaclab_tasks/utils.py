"""Stands in for `isaaclab_tasks.utils`."""

from types import SimpleNamespace

import gymnasium


def parse_env_cfg(task_name, device="cuda:0", num_envs=None, use_fabric=None):
    gymnasium.spec(task_name)
    sim, scene = SimpleNamespace(device=device), SimpleNamespace(num_envs=num_envs)
    return SimpleNamespace(sim=sim, scene=scene, seed=None)
