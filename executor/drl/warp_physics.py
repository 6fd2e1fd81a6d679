"""The same models on MuJoCo Warp: thousands of copies on one GPU.

On CUDA *not yet run on hardware*. Needs the optional dependency `warp` (mujoco-warp), whose "cpu"
device runs the same kernels on one thread. Observations, rewards and resets are those of
`mujoco_env`, computed on the host; per control step states, controls and sensors cross between
host and device once each way.

Source: MuJoCo Warp, documentation (`put_model`, `make_data`, `step`; capture of CUDA graphs).
"""

from functools import cache
from types import ModuleType
from typing import Any

import mujoco
import numpy as np

from doppler.core.errors import ConfigError, ExecutionError
from executor.drl.physics import Array, state_size

CONTACTS_PER_COPY, ROWS_PER_COPY = 64, 256
"""Room for contacts and constraint rows, 4 times what random play has needed (16 and 64)."""
SOLVER_ITERATIONS, LINE_SEARCH_ITERATIONS = 100, 50
"""MuJoCo's defaults. Our models ask for fewer, which is enough where the solver may start from the
unconstrained acceleration as well; Warp's starts from zero only, and ends once it has converged."""
_BROKEN = 1e10  # mjMAXVAL: from here on MuJoCo resets a copy


class WarpPhysics:
    """MuJoCo Warp on the GPU that this process sees, else on its CPU device.

    The protocol is `physics.Physics`. Numbers are float32 where MuJoCo's are float64, so states
    agree with `RolloutPhysics` to rounding only, and in contact-rich motion for some steps only.
    On a GPU contacts are found in any order, so runs differ by rounding, too.

    Raises:
        ConfigError: If mujoco-warp is not installed, or does not have what the model uses.
    """

    def __init__(self, model: mujoco.MjModel, num_envs: int, substeps: int) -> None:
        self._warp, self._engine = _load_warp()
        self._substeps = substeps
        self._num_envs = num_envs
        self._start = np.concatenate([[0.0], model.qpos0, np.zeros(model.nv)])
        assert len(self._start) == state_size(model)
        self._nq = int(model.nq)
        self._has_loops = int(model.neq) > 0
        self._device = self._warp.get_preferred_device()
        self._graph: Any = None
        self._has_run = False
        with self._warp.ScopedDevice(self._device):
            try:
                self._model = self._engine.put_model(model)
            except NotImplementedError as error:
                raise ConfigError(f"mujoco-warp cannot run this model: {error}") from error
            self._model.opt.iterations = SOLVER_ITERATIONS
            self._model.opt.ls_iterations = LINE_SEARCH_ITERATIONS
            self._model.opt.warn_overflow = 0  # it prints; `_check_room` tells
            self._data = self._engine.make_data(
                model, nworld=num_envs, nconmax=CONTACTS_PER_COPY, njmax=ROWS_PER_COPY
            )

    def advance(self, before: Array, controls: Array, after: Array, sensors: Array) -> None:
        """Moves every copy by one control step.

        Raises:
            ExecutionError: If there are more contacts or constraints than there is room for.
        """
        data, nq = self._data, self._nq
        with self._warp.ScopedDevice(self._device):
            for target, values in (
                (data.time, before[:, 0]),
                (data.qpos, before[:, 1 : 1 + nq]),
                (data.qvel, before[:, 1 + nq :]),
                (data.ctrl, controls),
            ):
                target.assign(np.ascontiguousarray(values, np.float32))
            data.qacc_warmstart.zero_()
            self._run_substeps()
            after[:, 0] = data.time.numpy()
            after[:, 1 : 1 + nq] = data.qpos.numpy()
            after[:, 1 + nq :] = data.qvel.numpy()
            sensors[:] = data.sensordata.numpy()
            self._check_room()
        broken = ~(np.abs(after) < _BROKEN).all(axis=1)
        after[broken] = self._start
        sensors[broken] = 0.0

    def set_threads(self, num_threads: int) -> None:
        """Changes nothing: a GPU needs no threads of the host, and Warp's CPU device has one."""

    def close(self) -> None:
        """Frees nothing: device memory goes with the object."""

    def _run_substeps(self) -> None:
        """Launches the kernels; on a GPU as one captured graph from the second time on."""
        if self._graph is not None:
            self._warp.capture_launch(self._graph)
            return
        if self._device.is_cuda and self._has_run:  # all kernels are compiled: nothing loads now
            with self._warp.ScopedCapture() as capture:
                self._step_all()
            self._graph = capture.graph
            self._warp.capture_launch(self._graph)
            return
        self._step_all()
        self._has_run = True

    def _step_all(self) -> None:
        for _ in range(self._substeps):
            if self._has_loops:
                self._find_velocities()
            self._engine.step(self._model, self._data)

    def _find_velocities(self) -> None:
        """Brings the velocities of bodies up to the state: `step` reads those of the step before.

        It makes the constraints of closed loops before it finds velocities (mujoco-warp 3.17 and
        4.0, `fwd_position`), and their reference has the derivative of the Jacobian in it.
        """
        for find in (self._engine.kinematics, self._engine.com_pos, self._engine.com_vel):
            find(self._model, self._data)

    def _check_room(self) -> None:
        """Looks at the last physics step: what found no room is counted there, and left out."""
        data, room = self._data, CONTACTS_PER_COPY * self._num_envs
        contacts = max(int(count.numpy()[0]) for count in (data.nacon, data.ncollision))
        rows = int(data.nefc.numpy().max())
        if contacts > room or rows > ROWS_PER_COPY:
            raise ExecutionError(
                f"mujoco-warp has room for {room} contacts of {self._num_envs} copies and "
                f"{ROWS_PER_COPY} constraint rows per copy, but the models have {contacts} "
                f"contacts and up to {rows} rows"
            )


@cache
def _load_warp() -> tuple[ModuleType, ModuleType]:
    """Returns (warp, mujoco_warp), told to print warnings only."""
    try:
        import warp  # noqa: PLC0415 - optional

        warp.config.log_level = warp.LOG_WARNING
        import mujoco_warp  # noqa: PLC0415 - optional
    except ImportError as error:
        raise ConfigError(
            "environments with the prefix mujoco_warp: need mujoco-warp, which cannot be imported "
            f"({error}): pip install 'doppler-placement[warp]'"
        ) from error
    return warp, mujoco_warp
