"""A job for an interpreter that has numpy and nothing else; also runs on Python 3.8."""

import os
import time

import numpy as np


class Drift:
    """Each copy drifts by its action; ends beyond 1, is cut after 20 steps."""

    obs_dim, act_dim = 3, 2

    def __init__(self, num_envs, first_env):
        self.num_envs = num_envs
        self.ids = first_env + np.arange(num_envs)
        self.position = np.zeros((num_envs, 2))
        self.elapsed = np.zeros(num_envs, np.int64)

    def observe(self):
        return np.concatenate([self.position, self.elapsed[:, None] / 20.0], axis=1)

    def reset(self, seed):
        self.elapsed[:] = 0
        self.position[:] = 0.01 * (seed + self.ids)[:, None]
        return self.observe()

    def step(self, actions):
        self.position += 0.1 * actions
        self.elapsed += 1
        ended = np.abs(self.position).max(axis=1) > 1.0
        cut = (self.elapsed >= 20) & ~ended
        reward = 1.0 - np.abs(self.position).sum(axis=1)
        done = ended | cut
        self.position[done] = 0.0
        self.elapsed[done] = 0
        return self.observe(), reward, ended, cut

    def export_state(self):
        return {"position": self.position.copy(), "elapsed": self.elapsed.copy()}

    def import_state(self, state):
        self.position[:] = state["position"]
        self.elapsed[:] = state["elapsed"]


class DriftJob:
    settings = {"horizon": 8, "chunk": 4, "hidden": [16], "num_trainers": 1}  # noqa: RUF012 - as a user writes it

    def environment(self, num_envs, first_env):
        return Drift(num_envs, first_env)


class Faulty(Drift):
    """Misbehaves on purpose, as its job's name says."""

    how = ""
    export_state = property()

    def step(self, actions):
        if self.how == "raise":
            raise RuntimeError("the left wheel came off")
        if self.how == "die":
            os.write(2, b"out of luck\n")
            os._exit(3)
        if self.how == "hang":
            time.sleep(600)
        obs, reward, ended, cut = Drift.step(self, actions)
        return obs[:, :2], reward, ended, cut


def faulty(how):
    class Job:
        def environment(self, num_envs, first_env):
            environment = Faulty(num_envs, first_env)
            environment.how = how
            return environment

    return Job


RaisingJob, DyingJob, HangingJob, WrongShapeJob = map(faulty, ("raise", "die", "hang", "shape"))


class TooFewJob:
    def environment(self, num_envs, first_env):
        return Drift(num_envs + 1, first_env)


class BrokenStartJob:
    def environment(self, num_envs, first_env):
        raise RuntimeError("no licence found")
