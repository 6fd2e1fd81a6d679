"""Serving: GMIs collect experience with a fixed policy, and one records what they send."""

import time

import numpy as np
import torch

from doppler.gmi import AUTO, GMI, GMIManager, Package, core_groups
from executor.drl.environments import make_environment
from executor.drl.policy import ActorCritic, seeded_module

NUM_ENVS = 16
RECORD = [
    Package("obs", "float32", (4,)),
    Package("action", "float32", (1,)),
    Package("reward", "float32"),
]


class Server(GMI):  # environments and agent in one GMI: the paper's DP-only
    def setup(self):
        first_env = NUM_ENVS * self.rank
        self.environment = make_environment("pendulum", NUM_ENVS, first_env=first_env)
        self.policy = seeded_module(
            lambda: ActorCritic(4, 1, hidden=(32, 32), init_log_std=0.0), seed=0
        )

    @torch.no_grad()
    def run(self, num_episodes, num_steps):
        obs = self.environment.reset(seed=0).copy()
        start = time.perf_counter()
        for _ in range(num_steps):
            mean, _, _ = self.policy(torch.from_numpy(obs))
            following, reward, *_ = self.environment.step(mean.numpy())
            self.send({"obs": obs, "action": mean.numpy(), "reward": np.float32(reward)}, 0)
            obs = following.copy()
        self.flush()
        return num_steps * NUM_ENVS / (time.perf_counter() - start)


class Recorder(GMI):
    def run(self, num_episodes, num_steps):
        rewards = []
        out = tuple(np.zeros((NUM_ENVS, *package.shape), np.float32) for package in RECORD)
        for _ in range(num_steps * self.settings["servers"]):
            self.receive(out, version=0)
            rewards.append(out[2].mean())  # a real one writes the records to a file
        return len(rewards) * NUM_ENVS, float(np.mean(rewards))


if __name__ == "__main__":
    cluster = core_groups(2)
    manager = GMIManager(cluster=cluster)
    recorder = manager.add_gmi(Recorder, "recorder", 0, {"servers": cluster.num_devices - 1})
    for device in range(1, cluster.num_devices):
        manager.add_gmi(Server, role="server", device=device)
    servers = manager.group("server")
    manager.add_channel("experience", servers, [recorder], RECORD, batch=AUTO, num_sent=NUM_ENVS)
    print(manager.describe())
    (num_records, reward), *rates = manager.run(num_episodes=1, num_steps=500)
    print(
        f"{sum(rates):,.0f} steps/s by {len(rates)} GMI; {num_records} records, mean reward "
        f"{reward:.2f}"
    )
