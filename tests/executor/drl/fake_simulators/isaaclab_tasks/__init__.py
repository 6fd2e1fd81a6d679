"""Stands in for `isaaclab_tasks`: registers tasks, of version 2 (one) and 3 (the other).

An observation is [steps of the episode, last first action]; episodes last 3 steps (time limit), or
end at once for good where the second action is above 0.5. Copies are reset within the step.
"""

import gymnasium
import torch
from isaaclab.app import launched

LIMIT = 3
if not launched:
    raise ImportError("no module of the simulator before it is launched")


class CountingEnv(gymnasium.Env):
    def __init__(self, cfg, wide=False):
        self.num_envs, self.device = cfg.scene.num_envs, "cpu"
        assert cfg.sim.device == "cuda:0"
        self.single_observation_space = gymnasium.spaces.Dict(
            {"policy": gymnasium.spaces.Box(-9, 9, (2, 2) if wide else (2,))}
        )
        self.single_action_space = gymnasium.spaces.Box(-9, 9, (2,))
        self.observation_space = gymnasium.spaces.Dict({})
        self.action_space = gymnasium.spaces.Box(-9, 9, (self.num_envs, 2))
        self.progress = torch.zeros(self.num_envs)

    def reset(self, seed=None, options=None):
        self.progress[:] = 0
        self.start = float(seed)
        return self.observations(torch.full((self.num_envs,), self.start)), {}

    def step(self, action):
        self.progress += 1  # in place, as the simulator does
        reward = self.progress * 10
        terminated = action[:, 1] > 0.5
        time_outs = self.progress >= LIMIT
        self.progress[terminated | time_outs] = 0
        return self.observations(action[:, 0]), reward, terminated, time_outs, {}

    def observations(self, last):
        obs = torch.stack([self.progress, last], 1)
        return {"policy": obs, "critic": obs * float("nan")}


for name, settings in {
    "Isaac-Ant-Direct-v0": {},
    "Isaac-Humanoid-Direct": {},
    "Isaac-Cartpole-RGB-v0": {"wide": True},
}.items():
    gymnasium.register(name, CountingEnv, disable_env_checker=True, kwargs=settings)
