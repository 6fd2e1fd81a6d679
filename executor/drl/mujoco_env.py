"""Vector environments on our own MuJoCo models, whatever moves them (`physics.Physics`)."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import mujoco
import numpy as np
from numpy.typing import NDArray

from doppler.core.errors import ExecutionError
from executor.drl.counter_random import CounterRandom, Stream
from executor.drl.physics import Array, PhysicsFactory, RolloutPhysics, load_model, state_size
from executor.drl.vector_env import EnvironmentStep

_START_S = 1.0  # clock at the start of an episode, apart from the physics' own reset to 0


class Transition(NamedTuple):
    """What a task sees of one control step of n copies.

    Attributes:
        before_qpos: [n, nq] positions when the step began.
        qpos: [n, nq] positions after it.
        qvel: [n, nv] velocities after it.
        sensors: [n, nsensordata] sensors of the last substep.
        actions: [n, nu] actions, clipped to [-1, 1].
        goals: [n, goal_dim] what each episode is asked for.
    """

    before_qpos: Array
    qpos: Array
    qvel: Array
    sensors: Array
    actions: Array
    goals: Array


class Task(Protocol):
    """Observation, reward, termination and reset of one task; holds no state."""

    @property
    def asset(self) -> str:
        """File name of the model under `assets/`."""
        ...

    @property
    def substeps(self) -> int:
        """Physics steps per control step."""
        ...

    @property
    def obs_dim(self) -> int:
        """Length of one observation."""
        ...

    @property
    def episode_limit(self) -> int:
        """Control steps after which an episode is truncated."""
        ...

    @property
    def goal_dim(self) -> int:
        """Length of what an episode is asked for; 0 where all episodes want the same."""
        return 0

    @property
    def senses_start(self) -> bool:
        """Whether the first observation of an episode reads the sensors."""
        return False

    def start(
        self, model: mujoco.MjModel, random: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns the first (qpos[nq], qvel[nv]) of one episode."""
        ...

    def draw_goal(self, random: np.random.Generator) -> NDArray[np.float64]:
        """Returns what one episode is asked for, [goal_dim]; drawn after its start."""
        return np.zeros(0)

    def observe(self, model: mujoco.MjModel, now: Transition, out: NDArray[np.float32]) -> None:
        """Writes the observations [n, obs_dim]."""
        ...

    def judge(
        self, model: mujoco.MjModel, now: Transition, obs: NDArray[np.float32]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Returns (reward[n], terminated[n]) of the step that led to `obs`."""
        ...


class MujocoEnvironment:
    """n copies of one task. The protocol is `vector_env.VectorEnvironment`.

    The physics state alone decides the future: an exported state continues bit for bit, and copies
    do not see each other.

    Args:
        task: What is asked for.
        num_envs: n.
        first_env: Global id of the first copy.
        physics: What moves the copies.
    """

    def __init__(
        self, task: Task, num_envs: int, first_env: int, physics: PhysicsFactory = RolloutPhysics
    ) -> None:
        self._task = task
        self._model = model = load_model(task.asset)
        self.num_envs = num_envs
        self.obs_dim = task.obs_dim
        self.act_dim = int(model.nu)
        self._first_env = first_env
        self._engine = physics(model, num_envs, task.substeps)
        self._physics = np.zeros((num_envs, state_size(model)))
        self._previous = np.zeros_like(self._physics)
        self._sensors = np.zeros((num_envs, model.nsensordata))
        self._controls = np.zeros((num_envs, self.act_dim))
        self._goals = np.zeros((num_envs, task.goal_dim))
        self._obs = np.zeros((num_envs, self.obs_dim), np.float32)
        self._elapsed = np.zeros(num_envs, np.int64)
        self._episode = np.zeros(num_envs, np.int64)
        self._seed = 0
        self._random = CounterRandom(0)
        self._at_rest = mujoco.MjData(model)
        self.state_bytes = sum(array.nbytes for array in self.export_state().values())
        self.step_flop = task.substeps * substep_flop(model)

    def set_threads(self, num_threads: int) -> None:
        """Passes the number on to the physics."""
        self._engine.set_threads(num_threads)

    def close(self) -> None:
        """Closes the physics; `set_threads` opens it again."""
        self._engine.close()

    def reset(self, seed: int) -> NDArray[np.float32]:
        """Starts episode 0 of every copy and returns the observations [n, obs_dim]."""
        self._seed = seed
        self._random = CounterRandom(seed)
        self._episode[:] = 0
        self._controls[:] = 0.0
        self._begin(np.arange(self.num_envs))
        return self._obs

    def step(self, actions: NDArray[np.float32]) -> EnvironmentStep:
        """Advances every copy by one control step."""
        np.clip(actions, -1.0, 1.0, out=self._controls, casting="unsafe")
        self._previous, self._physics = self._physics, self._previous
        self._engine.advance(self._previous, self._controls, self._physics, self._sensors)
        now = self._transition(slice(None))
        self._task.observe(self._model, now, self._obs)
        reward, terminated = self._task.judge(self._model, now, self._obs)
        # The physics resets a copy that broke down, and its clock to 0: that ends the episode.
        broken = ~np.isfinite(self._obs.sum(axis=1)) | (self._physics[:, 0] < _START_S)
        terminated |= broken
        reward[broken] = 0.0
        self._elapsed += 1
        truncated = (self._elapsed >= self._task.episode_limit) & ~terminated
        done = np.flatnonzero(terminated | truncated)
        if done.size:
            self._episode[done] += 1
            self._begin(done)
        return EnvironmentStep(self._obs, reward.astype(np.float32), terminated, truncated)

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """Returns physics, clocks, episode numbers, the seed, and goals where there are any."""
        state: dict[str, NDArray[np.generic]] = {
            "physics": self._physics.copy(),
            "elapsed": self._elapsed.copy(),
            "episode": self._episode.copy(),
            "seed": np.array([self._seed], np.int64),
        }
        if self._goals.size:
            state["goals"] = self._goals.copy()
        return state

    def import_state(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Continues from an exported state.

        Raises:
            ExecutionError: A name, shape or type is not that of this environment.
        """
        for name, mine in self.export_state().items():
            theirs = state.get(name)
            if theirs is None or theirs.shape != mine.shape or theirs.dtype != mine.dtype:
                found = "nothing" if theirs is None else f"{theirs.dtype}{list(theirs.shape)}"
                raise ExecutionError(
                    f"environment state {name!r} must be {mine.dtype}{list(mine.shape)}, "
                    f"but the imported state has {found}"
                )
        self._physics[:] = state["physics"]
        self._elapsed[:] = state["elapsed"]
        self._episode[:] = state["episode"]
        if self._goals.size:
            self._goals[:] = state["goals"]
        self._seed = int(state["seed"][0])
        self._random = CounterRandom(self._seed)

    def _transition(self, rows: slice | NDArray[np.int64]) -> Transition:
        nq = self._model.nq
        return Transition(
            before_qpos=self._previous[rows, 1 : 1 + nq],
            qpos=self._physics[rows, 1 : 1 + nq],
            qvel=self._physics[rows, 1 + nq :],
            sensors=self._sensors[rows],
            actions=self._controls[rows],
            goals=self._goals[rows],
        )

    def _begin(self, rows: NDArray[np.int64]) -> None:
        """Starts the next episode of the copies `rows` and writes their observations."""
        nq = self._model.nq
        for row in rows.tolist():
            random = self._random.generator(
                Stream.reset, int(self._episode[row]), self._first_env + row
            )
            qpos, qvel = self._task.start(self._model, random)
            self._physics[row, 0] = _START_S
            self._physics[row, 1 : 1 + nq] = qpos
            self._physics[row, 1 + nq :] = qvel
            self._goals[row] = self._task.draw_goal(random)
            self._sensors[row] = self._sense(qpos, qvel) if self._task.senses_start else 0.0
        self._elapsed[rows] = 0
        self._controls[rows] = 0.0
        obs = np.empty((len(rows), self.obs_dim), np.float32)
        self._task.observe(self._model, self._transition(rows), obs)
        self._obs[rows] = obs

    def _sense(self, qpos: Array, qvel: Array) -> Array:
        """Returns the sensors of a copy at rest or in motion, before any action."""
        data = self._at_rest
        mujoco.mj_resetData(self._model, data)
        data.qpos[:], data.qvel[:] = qpos, qvel
        mujoco.mj_forward(self._model, data)
        return np.array(data.sensordata)


def substep_flop(model: mujoco.MjModel) -> float:
    """Returns a first guess at the flop of one physics step.

    Spatial dynamics of every body (a few hundred flop), factorisation of the inertia matrix
    (nv**3 / 3), and per solver iteration a product with about 4 constraint rows per degree of
    freedom. Only an uncalibrated run uses it.
    """
    nv = int(model.nv)
    solver = int(model.opt.iterations) * 2 * nv * (4 * nv)
    return 300.0 * int(model.nbody) + nv**3 / 3 + solver
