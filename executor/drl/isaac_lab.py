"""Isaac Lab tasks for `foreign_worker.py`. *Not yet run on hardware.*

Runs inside the foreign worker, on the Python that Isaac Lab is installed for (3.10 to 3.12), with
isaaclab, isaaclab_tasks, gymnasium and torch; written against the documented interface of Isaac Lab
2.3 (`AppLauncher`, `parse_env_cfg`, `gymnasium.make`, `DirectRLEnv.step`), which 3.0 keeps.
"""

import difflib
import sys

_DEVICE = "cuda:0"
_VERSION = "-v0"
_GROUP = "policy"  # observations come as a dict; this is what the policy sees


class IsaacLabEnvironment:
    """A DirectRLEnv or ManagerBasedRLEnv as a vector environment of this project's protocol.

    Quirks that are handled here:
    - The simulator must be launched before anything of isaaclab but its launcher is imported, and
      it reads the process's arguments, so the worker's own are taken away first.
    - Copies that end are reset within the step: the observation is already the new episode's first
      one, as in this project's protocol; terminations and time limits come apart.
    - Task ids lost their "-v0" in Isaac Lab 3.
    - Steps run under `no_grad`, not inference mode: tensors that were made in inference mode cannot
      be changed by a later reset outside of it.
    """

    def __init__(self, task, num_envs, first_env):
        del sys.argv[1:]
        from isaaclab.app import AppLauncher

        self._app = AppLauncher(headless=True).app
        import gymnasium
        import isaaclab_tasks  # noqa: F401 - registers the tasks
        import torch
        from isaaclab_tasks.utils import parse_env_cfg

        self._torch = torch
        self._first_env = first_env
        name = registered_task(task, gymnasium.registry)
        config = parse_env_cfg(name, device=_DEVICE, num_envs=num_envs)
        config.seed = first_env
        self._env = gymnasium.make(name, cfg=config)
        inner = self._env.unwrapped
        self.num_envs = int(inner.num_envs)
        self.obs_dim = _flat_size(task, inner.single_observation_space[_GROUP])
        self.act_dim = _flat_size(task, inner.single_action_space)
        self._device = inner.device

    def reset(self, seed):
        """Returns the first observations [n, obs_dim]."""
        with self._torch.no_grad():
            obs, _ = self._env.reset(seed=(seed + self._first_env) % 2**32)
        return _numpy(obs[_GROUP])

    def step(self, actions):
        """Returns (obs, reward, terminated, truncated) as numpy arrays."""
        # The task may keep the tensor, and shared memory changes under it: hand it a copy.
        tensor = self._torch.from_numpy(actions.copy()).to(self._device)
        with self._torch.no_grad():
            obs, reward, terminated, truncated, _ = self._env.step(tensor)
        return _numpy(obs[_GROUP]), _numpy(reward), _numpy(terminated), _numpy(truncated)

    def close(self):
        """Ends the environments and the simulator, which may end the process."""
        self._env.close()
        self._app.close()


def registered_task(task, registry):
    """Returns the id that a task is registered by: with or without its version.

    Raises:
        ValueError: There is none; the message names the nearest.
    """
    bare = task[: -len(_VERSION)] if task.endswith(_VERSION) else task
    for name in (task, bare, bare + _VERSION):
        if name in registry:
            return name
    near = difflib.get_close_matches(task, [name for name in registry if "Isaac" in name], 3)
    raise ValueError(
        "Isaac Lab has no task {!r}; the nearest are {}".format(task, ", ".join(near) or "none")
    )


def _flat_size(task, space):
    if len(space.shape) != 1:
        raise ValueError(
            "task {} must have flat observations and actions, not {}".format(task, space.shape)
        )
    return int(space.shape[0])


def _numpy(tensor):
    return tensor.detach().cpu().numpy()
