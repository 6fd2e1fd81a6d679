"""What moves the copies of a model: one protocol, and `mujoco.rollout` on the cores of the host."""

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Protocol

import mujoco
import numpy as np
from mujoco.rollout import Rollout
from numpy.typing import NDArray

Array = NDArray[np.float64]
_ASSETS = Path(__file__).parent / "assets"
_FULL = int(mujoco.mjtState.mjSTATE_FULLPHYSICS)
_CTRL = int(mujoco.mjtState.mjSTATE_CTRL)
_log = logging.getLogger(__name__)


class Physics(Protocol):
    """Steps n copies of one model; holds nothing that the next step depends on.

    The constraint solver starts cold at every control step, so the physics state alone decides the
    future. A state is a row of (time, qpos, qvel) as MuJoCo's mjSTATE_FULLPHYSICS has it.
    """

    def advance(self, before: Array, controls: Array, after: Array, sensors: Array) -> None:
        """Moves every copy by one control step, a fixed number of physics steps.

        A copy whose physics breaks down is reset, and its time to 0.

        Args:
            before: [n, 1 + nq + nv] states that the step begins in.
            controls: [n, nu] what the actuators are told during all of it.
            after: [n, 1 + nq + nv] out; the states that it ends in.
            sensors: [n, nsensordata] out; what the sensors say in the last physics step.
        """
        ...

    def set_threads(self, num_threads: int) -> None:
        """Uses that many threads of the host from the next step on; results do not change."""
        ...

    def close(self) -> None:
        """Frees what lives outside Python's memory; `set_threads` brings it back."""
        ...


PhysicsFactory = Callable[[mujoco.MjModel, int, int], Physics]
"""(model, copies, physics steps per control step) -> what moves them."""


@cache
def load_model(asset: str) -> mujoco.MjModel:
    """Returns the compiled model of `assets/<asset>`; models never change, so one is enough."""
    # Unstable physics is handled by the environment; MuJoCo's default is a log file in the folder.
    mujoco.set_mju_user_warning(_log.debug)
    return mujoco.MjModel.from_xml_path(str(_ASSETS / asset))


def state_size(model: mujoco.MjModel) -> int:
    """Returns the length of a physics state."""
    size = mujoco.mj_stateSize(model, _FULL)
    assert size == 1 + model.nq + model.nv, "models without activations or plugins"
    return int(size)


class RolloutPhysics:
    """MuJoCo's own batched rollout with a pool of threads. The protocol is `Physics`."""

    def __init__(self, model: mujoco.MjModel, num_envs: int, substeps: int) -> None:
        self._model = model
        self._models = [model] * num_envs
        self._substates = np.zeros((num_envs, substeps, state_size(model)))
        self._sensors = np.zeros((num_envs, substeps, model.nsensordata))
        self._controls = np.zeros((num_envs, substeps, model.nu))
        self._num_threads = 0
        self._pool: Rollout | None = None
        self._datas: list[mujoco.MjData] = []
        self.set_threads(1)

    def advance(self, before: Array, controls: Array, after: Array, sensors: Array) -> None:
        """Moves every copy by one control step."""
        assert self._pool is not None, "step after close"
        self._controls[:] = controls[:, None]
        self._pool.rollout(
            self._models,
            self._datas,
            before,
            self._controls,
            nstep=self._controls.shape[1],
            skip_checks=True,
            control_spec=_CTRL,
            state=self._substates,
            sensordata=self._sensors,
        )
        after[:] = self._substates[:, -1]
        sensors[:] = self._sensors[:, -1]

    def set_threads(self, num_threads: int) -> None:
        """Uses a persistent pool of that many threads (one: the calling thread)."""
        if num_threads == self._num_threads:
            return
        self.close()
        self._num_threads = num_threads
        self._pool = Rollout(nthread=num_threads if num_threads > 1 else 0)
        self._datas = [mujoco.MjData(self._model) for _ in range(num_threads)]

    def close(self) -> None:
        """Ends the thread pool; `set_threads` starts another."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
            self._num_threads = 0
