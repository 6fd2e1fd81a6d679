"""Environments under another Python interpreter, behind the ordinary protocol.

Isaac Gym, for one, needs Python 3.8, and Isaac Lab one of its own. The worker is
`foreign_worker.py`; arrays lie in shared memory without a name, commands are bytes on a pipe, and
every wait has a deadline.
"""

import contextlib
import json
import mmap
import os
import selectors
import subprocess
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from doppler.core.errors import ConfigError, ExecutionError, WorkerDiedError, WorkerHungError
from executor.drl import foreign_worker as wire
from executor.drl.vector_env import EnvironmentStep

_TAIL_BYTES = 2000
_QUIT_S = 2.0
_UNKNOWN_STEP_FLOP_PER_VALUE = 1000.0  # a guess for a simulator that we cannot look into


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignSource:
    """What a foreign worker runs.

    Attributes:
        path: Python file with a class whose `environment(num_envs, first_env)` makes environments,
            or empty.
        name: The class.
        simulator: One of `foreign_worker.ADAPTERS`, or empty where `path` is given.
        task: What the simulator calls the task.
    """

    path: str = ""
    name: str = ""
    simulator: str = ""
    task: str = ""

    def __str__(self) -> str:
        return f"{self.simulator}:{self.task}" if self.simulator else f"{self.path}:{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long to wait before the worker counts as hung.

    Attributes:
        start_s: For importing a simulator and making the environments.
        command_s: For one reset, step, export or import.
    """

    start_s: float = 300.0
    command_s: float = 60.0


class BridgeEnvironment:
    """n environments in a child process. The protocol is `vector_env.VectorEnvironment`."""

    def __init__(
        self,
        python: str,
        source: ForeignSource,
        num_envs: int,
        first_env: int,
        deadlines: Deadlines = Deadlines(),
    ) -> None:
        """Starts the worker and waits until its environments exist.

        Raises:
            ConfigError: The interpreter cannot be started, or the worker made other environments
                than asked for.
            WorkerDiedError: The worker ended; the message holds the tail of its stderr.
            WorkerHungError: It passed the deadline for starting.
        """
        self._source = source
        self._deadlines = deadlines
        self._stderr = _anonymous_file()
        memory_fd = _anonymous_file()
        try:
            self._process, self._commands, self._replies = _launch(
                python,
                {**asdict(source), "num_envs": num_envs, "first_env": first_env},
                memory_fd,
                self._stderr,
            )
            self._finalizer = weakref.finalize(
                self, _end, self._process, (self._commands, self._replies, self._stderr)
            )
            hello = self._hello(num_envs)
            layout, size = wire.block_layout(
                hello["num_envs"], hello["obs_dim"], hello["act_dim"], hello["state"]
            )
            os.ftruncate(memory_fd, size)
            self._memory = mmap.mmap(memory_fd, size)
        finally:
            os.close(memory_fd)
        os.write(self._commands, wire.DONE)
        self._views = wire.block_views(self._memory, layout)
        self.num_envs = num_envs
        self.obs_dim = int(hello["obs_dim"])
        self.act_dim = int(hello["act_dim"])
        state = [view for name, view in self._views.items() if name.startswith("state:")]
        self._has_state = bool(state)
        self.state_bytes = sum(view.nbytes for view in state) or self._views["obs"].nbytes
        guess = _UNKNOWN_STEP_FLOP_PER_VALUE * (self.obs_dim + self.act_dim)
        self.step_flop = float(hello["step_flop"]) or guess

    def reset(self, seed: int) -> NDArray[np.float32]:
        """Starts episode 0 of every copy."""
        self._views["header"][wire.SEED] = seed
        self._command(wire.RESET, "reset")
        obs: NDArray[np.float32] = self._views["obs"]
        return obs

    def step(self, actions: NDArray[np.float32]) -> EnvironmentStep:
        """Advances every copy by one control step."""
        np.clip(actions, -1.0, 1.0, out=self._views["actions"])
        self._command(wire.STEP, "step")
        views = self._views
        return EnvironmentStep(
            views["obs"], views["reward"], views["terminated"], views["truncated"]
        )

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """Returns copies of the state, where the foreign environment exports one.

        Raises:
            ExecutionError: It does not, so its group must stay on its device.
        """
        self._need_state("moved")
        self._command(wire.EXPORT, "export_state")
        return {
            name.removeprefix("state:"): view.copy()
            for name, view in self._views.items()
            if name.startswith("state:")
        }

    def import_state(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Continues from an exported state.

        Raises:
            ExecutionError: The environment does not import state, or the arrays are not its own.
        """
        self._need_state("continued")
        for name, view in self._views.items():
            if not name.startswith("state:"):
                continue
            array = state.get(name.removeprefix("state:"))
            if array is None or array.shape != view.shape or array.dtype != view.dtype:
                found = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
                raise ExecutionError(
                    f"environment {name} must be {view.dtype}{list(view.shape)}, "
                    f"but the imported state has {found}"
                )
            view[...] = array
        self._command(wire.IMPORT, "import_state")

    def set_threads(self, num_threads: int) -> None:
        """Asks the environment to use that many threads, if it can."""
        self._views["header"][wire.NUM_THREADS] = num_threads
        self._command(wire.THREADS, "set_threads")

    def close(self) -> None:
        """Ends the worker."""
        self._finalizer()

    def _need_state(self, verb: str) -> None:
        if not self._has_state:
            raise ExecutionError(
                f"environment {self._source} cannot be {verb}: it has no export_state, so pin the "
                "env groups to their devices"
            )

    def _hello(self, num_envs: int) -> dict[str, Any]:
        line = b""
        deadline = monotonic() + self._deadlines.start_s
        while not line.endswith(b"\n"):
            line += self._read(4096, deadline, "start")
        hello: dict[str, Any] = json.loads(line)
        if hello["num_envs"] != num_envs:
            self.close()
            raise ConfigError(
                f"environment {self._source} must make {num_envs} copies, "
                f"but made {hello['num_envs']}"
            )
        return hello

    def _command(self, command: bytes, what: str) -> None:
        try:
            os.write(self._commands, command)
        except BrokenPipeError:
            self._died(what)
        except OSError as error:
            raise ExecutionError(f"environment worker of {self._source} was closed") from error
        reply = self._read(1, monotonic() + self._deadlines.command_s, what)
        if reply != wire.DONE:
            raise ExecutionError(
                f"environment {self._source} failed in {what}: {self._tail() or 'no message'}"
            )

    def _read(self, size: int, deadline: float, what: str) -> bytes:
        with selectors.DefaultSelector() as selector:
            selector.register(self._replies, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - monotonic())):
                self._hung(what)
        data = os.read(self._replies, size)
        if not data:
            self._died(what)
        return data

    def _hung(self, what: str) -> None:
        pid = self._process.pid
        limit = self._deadlines.start_s if what == "start" else self._deadlines.command_s
        self._process.kill()
        tail = self._tail()
        self.close()
        raise WorkerHungError(
            f"environment worker of {self._source} (process {pid}) did not answer {what} within "
            f"{limit:g} s and was ended; its last output: {tail or 'none'}"
        )

    def _died(self, what: str) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):  # its pipe is closed: it is ending
            self._process.wait(_QUIT_S)
        tail = self._tail()
        self.close()
        raise WorkerDiedError(
            f"environment worker of {self._source} (process {self._process.pid}) ended with exit "
            f"code {self._process.returncode} during {what}; its last output: {tail or 'none'}"
        )

    def _tail(self) -> str:
        # Read without seeking: the worker writes at the shared position.
        size = os.fstat(self._stderr).st_size
        start = max(0, size - _TAIL_BYTES)
        return os.pread(self._stderr, _TAIL_BYTES, start).decode(errors="replace").strip()


def _anonymous_file() -> int:
    """Returns a descriptor of memory without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("doppler-environments")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _launch(
    python: str, start: dict[str, object], memory_fd: int, stderr: int
) -> tuple["subprocess.Popen[bytes]", int, int]:
    """Returns (process, command pipe, reply pipe)."""
    command_out, command_in = os.pipe()
    reply_out, reply_in = os.pipe()
    start = start | {"commands": command_out, "replies": reply_in, "memory": memory_fd}
    script = str(Path(wire.__file__).resolve())
    try:
        process = subprocess.Popen(
            [python, script, json.dumps(start)],
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            pass_fds=(command_out, reply_in, memory_fd),
        )
    except OSError as error:
        for fd in (command_in, reply_out, stderr):
            os.close(fd)
        raise ConfigError(f"env_python {python!r} cannot be started: {error}") from error
    finally:
        for fd in (command_out, reply_in):
            os.close(fd)
    return process, command_in, reply_out


def _end(process: "subprocess.Popen[bytes]", descriptors: tuple[int, int, int]) -> None:
    """Ends a worker: asks, waits, insists."""
    with contextlib.suppress(OSError):  # it may be gone already
        os.write(descriptors[0], wire.QUIT)
    for fd in descriptors:
        os.close(fd)
    try:
        process.wait(_QUIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
