"""Asynchronous training: one GMI collects with a policy that may be old, another one trains."""

import time

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from doppler.gmi import GMI, GMIManager, Package, core_groups
from executor.drl.environments import make_environment
from executor.drl.policy import ActorCritic, seeded_module
from executor.drl.ppo import gaussian_log_prob

NUM_ENVS, LENGTH, MAX_LAG, DISCOUNT = 16, 32, 2, 0.98
SEGMENT = [
    Package("obs", "float32", (LENGTH + 1, 4)),
    Package("action", "float32", (LENGTH, 1)),
    *(Package(name, "float32", (LENGTH,)) for name in ("log_prob", "reward", "ended")),
]


class Worker(GMI):
    def setup(self):
        self.policy = seeded_module(
            lambda: ActorCritic(4, 1, hidden=(32, 32), init_log_std=0.0), seed=0
        )
        torch.manual_seed(self.gmi_id)


class Collector(Worker):  # environments and agent in one GMI, the trainer in another: EA-T
    def run(self, num_episodes, num_steps):
        self.environment = make_environment("pendulum", NUM_ENVS, first_env=0)
        self.obs = self.environment.reset(seed=0).copy()
        weights = parameters_to_vector(self.policy.parameters()).detach().numpy()
        for episode in range(num_episodes):
            while (version := self.read_weights(weights)) < episode - MAX_LAG:
                time.sleep(0.001)
            vector_to_parameters(torch.from_numpy(weights.copy()), self.policy.parameters())
            self.send(self.collect(), version)
        self.flush()

    @torch.no_grad()
    def collect(self):
        rows = []
        for _ in range(LENGTH):
            mean, log_std, _ = self.policy(torch.from_numpy(self.obs))
            action = mean + log_std.exp() * torch.randn_like(mean)
            log_prob = gaussian_log_prob(action, mean, log_std).numpy()
            obs, reward, terminated, truncated = self.environment.step(action.numpy())
            ended = (terminated | truncated).astype(np.float32)
            rows.append((self.obs, action.numpy(), log_prob, 0.1 * reward, ended))
            self.obs = obs.copy()
        obs, *others = (np.stack(column, axis=1) for column in zip(*rows, strict=True))
        fields = [np.concatenate([obs, self.obs[:, None]], axis=1), *others]
        return {p.name: np.float32(f) for p, f in zip(SEGMENT, fields, strict=True)}


class Trainer(Worker):
    def run(self, num_episodes, num_steps):
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=0.003)
        out = tuple(np.zeros((NUM_ENVS, *package.shape), np.float32) for package in SEGMENT)
        lengths, version = [], 0
        for _ in range(num_episodes):
            self.receive(out, version)
            lengths.append(self.train(*(torch.from_numpy(array) for array in out)))
            weights = parameters_to_vector(self.policy.parameters()).detach().numpy()
            version = self.publish_weights(weights)
        return lengths, self.staleness()

    def train(self, obs, action, old_log_prob, reward, ended):
        mean, log_std, value = self.policy(obs)
        log_prob = gaussian_log_prob(action, mean[:, :-1], log_std)
        with torch.no_grad():  # V-trace: importance weights that are cut off at 1
            weight = (log_prob - old_log_prob).exp().clamp(max=1.0)
            discount = DISCOUNT * (1 - ended)
            change = weight * (reward + discount * value[:, 1:] - value[:, :-1])
            for t in reversed(range(LENGTH - 1)):
                change[:, t] += discount[:, t] * weight[:, t] * change[:, t + 1]
            target = value[:, :-1] + change
            following = torch.cat([target[:, 1:], value[:, -1:]], dim=1)
            advantage = weight * (reward + discount * following - value[:, :-1])
            score = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        loss = (target - value[:, :-1]).square().mean() - (score * log_prob).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return ended.numel() / max(1.0, float(ended.sum()))  # steps between falls


if __name__ == "__main__":
    manager = GMIManager(cluster=core_groups(2), on_failure="restart")
    trainer = manager.add_gmi(Trainer, role="trainer", device=0)
    collector = manager.add_gmi(Collector, role="collector", device=1)
    manager.add_channel("experience", [collector], [trainer], SEGMENT, batch=NUM_ENVS)
    num_bytes = 4 * sum(p.numel() for p in ActorCritic(4, 1, (32, 32), 0.0).parameters())
    manager.add_weights("policy", trainer, [collector], num_bytes)
    (lengths, lags), _ = manager.run(num_episodes=200, num_steps=LENGTH)
    late = np.mean(lengths[-20:])
    print(f"steps between falls: {lengths[0]:.0f} at first, {late:.0f} at the end")
    print(f"segments by how many versions their policy was behind: {dict(sorted(lags.items()))}")
