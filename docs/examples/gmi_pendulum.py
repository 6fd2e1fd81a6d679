"""Two GMIs train one policy: data-parallel advantage actor-critic on the inverted pendulum."""

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from doppler.gmi import GMI, GMIManager, core_groups
from executor.drl.environments import make_environment
from executor.drl.policy import ActorCritic, seeded_module
from executor.drl.ppo import gaussian_log_prob, generalized_advantages


def make_policy():
    return seeded_module(lambda: ActorCritic(4, 1, hidden=(32, 32), init_log_std=0.0), seed=0)


class Learner(GMI):  # environments, agent and trainer in one GMI: the paper's DP-only
    def setup(self):
        self.environment = make_environment("pendulum", 16, first_env=16 * self.rank)
        self.obs = self.environment.reset(seed=0)
        self.policy = make_policy()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=0.01)
        torch.manual_seed(self.rank)

    def run(self, num_episodes, num_steps):
        return [self.train(num_steps) for _ in range(num_episodes)]

    def train(self, num_steps):
        steps = []
        for _ in range(num_steps):
            mean, log_std, value = self.policy(torch.from_numpy(self.obs.copy()))
            action = (mean + log_std.exp() * torch.randn_like(mean)).detach()
            self.obs, *results = self.environment.step(action.numpy())
            log_prob = gaussian_log_prob(action, mean, log_std)
            steps.append([log_prob, value, *(torch.from_numpy(array.copy()) for array in results)])
        log_prob, value, *results = (torch.stack(column) for column in zip(*steps, strict=True))
        reward, terminated, truncated = (tensor.numpy() for tensor in results)
        old = value.detach().numpy()
        advantage = torch.from_numpy(
            generalized_advantages(0.1 * reward, old, old[-1], terminated, truncated, 0.98, 0.95)
        )
        value_loss = (advantage + value.detach() - value).square().mean()
        score = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        self.optimizer.zero_grad()
        (value_loss - (score * log_prob).mean()).backward()
        gradients = [parameter.grad for parameter in self.policy.parameters()]
        total = parameters_to_vector(gradients)
        self.collective(total.numpy())  # an all-reduce over the group: the sum, in place
        vector_to_parameters(total / len(self.group), gradients)
        self.optimizer.step()
        return reward.size / max(1, terminated.sum())  # steps between falls


if __name__ == "__main__":
    manager = GMIManager(cluster=core_groups(2))
    for device in range(2):
        manager.add_gmi(Learner, role="learner", device=device)
    num_parameters = parameters_to_vector(make_policy().parameters()).numel()
    manager.add_collective("gradient", manager.group("learner"), num_parameters)
    print(manager.describe())
    lengths, _ = manager.run(num_episodes=150, num_steps=32)
    print(f"steps between falls: {lengths[0]:.0f} at first, {lengths[-1]:.0f} at the end")
