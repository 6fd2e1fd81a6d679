"""Two GMIs train one policy: data-parallel PPO on the inverted pendulum."""

import numpy as np
import torch

from doppler.gmi import GMI, GMIManager, core_groups
from executor.drl.adam import AdamSegment
from executor.drl.environments import make_environment
from executor.drl.policy import ActorCritic, FlatPolicy, aligned_zeros, seeded_module
from executor.drl.ppo import (
    Batch,
    LossSettings,
    gaussian_log_prob,
    generalized_advantages,
    part_gradient,
)

LOSS = LossSettings(clip=0.2, value_coef=1.0, entropy_coef=0.0, clip_value=False)


def make_policy():
    return FlatPolicy(seeded_module(lambda: ActorCritic(4, 1, (32, 32), 0.0), seed=0))


class Learner(GMI):  # environments, agent and trainer in one GMI: the paper's DP-only
    def setup(self):
        self.environment = make_environment("pendulum", 16, first_env=16 * self.rank)
        self.obs = torch.from_numpy(self.environment.reset(seed=0).copy())
        self.policy, self.gradient = make_policy(), aligned_zeros(make_policy().layout.size)
        self.adam = AdamSegment(self.policy.read())
        self.policy.bind_gradient(self.gradient)

    def run(self, num_episodes, num_steps):
        return [self.train(*self.collect(num_steps)) for _ in range(num_episodes)]

    @torch.no_grad()
    def collect(self, num_steps):
        module, rows = self.policy.bind(self.adam.parameters), []
        for _ in range(num_steps):
            mean, log_std, value = module(self.obs)
            noise = torch.from_numpy(self.rng.standard_normal(mean.shape, np.float32))
            action = mean + log_std.exp() * noise
            step = [torch.from_numpy(a.copy()) for a in self.environment.step(action.numpy())]
            log_prob = gaussian_log_prob(action, mean, log_std)
            rows.append([self.obs, action, log_prob, value, *step[1:]])
            self.obs = step[0]
        obs, action, log_prob, value, *result = (
            torch.stack(column) for column in zip(*rows, strict=True)
        )
        reward, terminated, truncated = (tensor.numpy() for tensor in result)
        last = module(self.obs)[2].numpy()
        advantage = torch.from_numpy(
            generalized_advantages(
                0.1 * reward, value.numpy(), last, terminated, truncated, 0.99, 0.95
            )
        )
        columns = (obs, action, log_prob, value, advantage, advantage + value)
        return Batch(*(t.flatten(0, 1) for t in columns)), reward.size / max(1, terminated.sum())

    def train(self, batch, steps_between_falls):
        mean, std = float(batch.advantages.mean()), float(batch.advantages.std())
        for _ in range(8):
            self.gradient[:] = 0.0
            module = self.policy.bind(self.adam.parameters)
            part_gradient(module, batch, mean, std, len(batch.obs) * len(self.group), LOSS)
            self.collective(self.gradient)  # an all-reduce over the group
            self.adam.step(self.gradient, scale=1.0, learning_rate=3e-3)
        return steps_between_falls


if __name__ == "__main__":
    manager = GMIManager(cluster=core_groups(2))
    for device in range(2):
        manager.add_gmi(Learner, role="learner", device=device)
    manager.add_collective("gradient", manager.group("learner"), make_policy().layout.size)
    print(manager.describe())
    lengths = manager.run(num_episodes=40, num_steps=64)
    print(f"steps between falls: {lengths[0][0]:.0f} at first, {lengths[0][-1]:.0f} at the end")
