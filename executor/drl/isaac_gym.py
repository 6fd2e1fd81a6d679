"""Isaac Gym tasks for `foreign_worker.py`. *Not yet run on hardware.*

Runs inside the foreign worker on Python 3.6-3.8 with isaacgym, isaacgymenvs and torch; written
against the documented interface of IsaacGymEnvs 1.5 (`isaacgymenvs.make`, `VecTask`).
"""

import numpy as np

_RL_DEVICE = "cpu"  # results are read into shared memory of the host
_SIM_DEVICE = "cuda:0"


class IsaacGymEnvironment:
    """A VecTask as a vector environment of this project's protocol.

    Quirks that are handled here:
    - isaacgym must be imported before torch, or it refuses to load.
    - Observations come as a dict with "obs"; asymmetric tasks add "states", which is ignored.
    - `reset()` returns a buffer that nothing has filled yet: one step with zero actions fills it.
    - `reset_buf` says that an episode ended; "time_outs" in the extras says which of those were cut
      by the time limit. Tasks without it only terminate.
    - A task resets lazily, at the start of the next step: on the step on which an episode ends the
      observation is still the old episode's last one, and the action that follows is ignored.
    """

    def __init__(self, task, num_envs, first_env):
        import isaacgym  # noqa: F401 - before torch
        import isaacgymenvs
        import torch

        self._torch = torch
        self._first_env = first_env
        self._env = isaacgymenvs.make(
            seed=first_env,
            task=task,
            num_envs=num_envs,
            sim_device=_SIM_DEVICE,
            rl_device=_RL_DEVICE,
            graphics_device_id=-1,
            headless=True,
        )
        self.num_envs = int(self._env.num_envs)
        self.obs_dim = int(self._env.num_obs)
        self.act_dim = int(self._env.num_acts)
        if self.num_envs != num_envs:
            raise ValueError(
                "task {} made {} environments, not {}".format(task, self.num_envs, num_envs)
            )

    def reset(self, seed):
        """Returns the first observations [n, obs_dim]."""
        np.random.seed((seed + self._first_env) % 2**32)
        self._torch.manual_seed(seed + self._first_env)
        self._env.reset()
        zeros = self._torch.zeros(self.num_envs, self.act_dim, device=_RL_DEVICE)
        return self._observations(self._env.step(zeros)[0])

    def step(self, actions):
        """Returns (obs, reward, terminated, truncated) as numpy arrays."""
        # The task may keep the tensor, and shared memory changes under it: hand it a copy.
        tensor = self._torch.from_numpy(actions.copy()).to(_RL_DEVICE)
        obs, reward, resets, extras = self._env.step(tensor)
        done = _numpy(resets).astype(bool)
        time_outs = extras.get("time_outs")
        cut = done & _numpy(time_outs).astype(bool) if time_outs is not None else done & False
        return self._observations(obs), _numpy(reward), done & ~cut, cut

    def _observations(self, obs):
        return _numpy(obs["obs"] if isinstance(obs, dict) else obs)


def _numpy(tensor):
    return tensor.detach().cpu().numpy()
