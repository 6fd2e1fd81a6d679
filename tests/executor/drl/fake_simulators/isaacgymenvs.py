"""Stands in for IsaacGymEnvs 1.5: `make` and the VecTask's step, with its lazy resets.

An observation is [steps of the episode, last first action]; episodes last 3 steps (time limit), or
end at once for good where the second action is above 0.5.
"""

import torch

LIMIT = 3


class CountingTask:
    def __init__(self, task, num_envs, has_time_outs):
        self.task, self.num_envs, self.num_obs, self.num_acts = task, num_envs, 2, 2
        self._has_time_outs = has_time_outs
        self.progress = torch.zeros(num_envs)
        self.reset_buf = torch.ones(num_envs, dtype=torch.long)
        self.obs = torch.full((num_envs, 2), float("nan"))

    def reset(self):
        return {"obs": self.obs}  # filled by the first step only

    def step(self, actions):
        actions = torch.clamp(actions, -1.0, 1.0)
        starts = self.reset_buf.bool()
        self.progress = torch.where(starts, 0.0, self.progress + 1)
        fell = ~starts & (actions[:, 1] > 0.5)
        late = ~starts & (self.progress >= LIMIT)
        self.reset_buf = (fell | late).long()
        self.obs = torch.stack([self.progress, actions[:, 0]], 1)
        extras = {"time_outs": late.long()} if self._has_time_outs else {}
        return {"obs": self.obs, "states": None}, self.progress * 10, self.reset_buf, extras


def make(seed, task, num_envs, sim_device, rl_device, graphics_device_id=-1, headless=False):
    assert (sim_device, rl_device, headless) == ("cuda:0", "cpu", True)
    if task == "Wrong":
        num_envs += 1
    return CountingTask(task, num_envs, has_time_outs=task != "Endless")
