"""Runs environments under another Python for `bridge.py`. Needs Python 3.8 and numpy, nothing else.

Started as a script with one argument, the JSON of a start message; it imports nothing of this
package, because the package needs a newer Python than Isaac Gym allows.

Commands and replies are single bytes on two pipes; arrays lie in shared memory, whose file
descriptor is inherited and has no name, so nothing is left behind when either side dies.
"""

import importlib.util
import json
import mmap
import os
import sys
import traceback
from typing import Any, Dict, List, Tuple

import numpy as np

Layout = Dict[str, Tuple[str, Tuple[int, ...], int]]

RESET, STEP, EXPORT, IMPORT, THREADS, QUIT = b"R", b"S", b"X", b"I", b"T", b"Q"
DONE, FAILED = b"K", b"E"
SEED, NUM_THREADS = 0, 1  # places in the header
_ALIGN = 64
ADAPTERS = {
    "isaacgym": ("isaac_gym.py", "IsaacGymEnvironment"),
    "isaaclab": ("isaac_lab.py", "IsaacLabEnvironment"),
}


def block_layout(
    num_envs: int, obs_dim: int, act_dim: int, state: List[List[Any]]
) -> Tuple[Layout, int]:
    """Returns ({name: (dtype, shape, offset)}, bytes) of the shared memory.

    Args:
        num_envs: Copies.
        obs_dim: Length of one observation.
        act_dim: Length of one action.
        state: List of (name, dtype, shape) of the exported state; may be empty.
    """
    fields = [  # type: List[Tuple[str, str, List[int]]]
        ("header", "int64", [8]),
        ("obs", "float32", [num_envs, obs_dim]),
        ("actions", "float32", [num_envs, act_dim]),
        ("reward", "float32", [num_envs]),
        ("terminated", "bool", [num_envs]),
        ("truncated", "bool", [num_envs]),
    ]
    fields += [("state:" + name, dtype, shape) for name, dtype, shape in state]
    layout = {}  # type: Layout
    end = 0
    for name, dtype, shape in fields:
        layout[name] = (dtype, tuple(shape), end)
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        end += -(-size // _ALIGN) * _ALIGN
    return layout, end


def block_views(memory: Any, layout: Layout) -> Dict[str, Any]:
    """Returns {name: array} over a buffer."""
    return {
        name: np.ndarray(shape, np.dtype(dtype), memory, offset)
        for name, (dtype, shape, offset) in layout.items()
    }


def load_module(path: str, name: str) -> Any:
    """Returns the module in a file, without touching the search path."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError("{} is not a Python file".format(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def make_environment(start: Dict[str, Any]) -> Any:
    """Returns the environment that a start message asks for."""
    num_envs, first_env = start["num_envs"], start["first_env"]
    if start["simulator"]:
        file, name = ADAPTERS[start["simulator"]]
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), file)
        adapter = load_module(path, "doppler_" + start["simulator"])
        return getattr(adapter, name)(start["task"], num_envs, first_env)
    module = load_module(start["path"], "doppler_foreign_job")
    if not hasattr(module, start["name"]):
        raise ValueError("{} has no class {!r}".format(start["path"], start["name"]))
    job = getattr(module, start["name"])()
    return job.environment(num_envs, first_env)


def describe(environment: Any) -> Dict[str, Any]:
    """Returns what the parent needs to know, as a JSON-able value."""
    state = []
    if hasattr(environment, "export_state"):
        state = [
            [name, array.dtype.name, list(array.shape)]
            for name, array in sorted(environment.export_state().items())
        ]
    return {
        "num_envs": int(environment.num_envs),
        "obs_dim": int(environment.obs_dim),
        "act_dim": int(environment.act_dim),
        "step_flop": float(getattr(environment, "step_flop", 0.0)),
        "state": state,
    }


def copy_checked(target: Any, value: Any, name: str) -> None:
    """Copies a result into shared memory; another shape is an error, never a broadcast."""
    array = np.asarray(value)
    if array.shape != target.shape:
        raise ValueError(
            "the environment's {} must have shape {}, not {}".format(
                name, list(target.shape), list(array.shape)
            )
        )
    target[...] = array


def handle(environment: Any, views: Dict[str, Any], command: bytes) -> None:
    """Carries out one command."""
    header = views["header"]
    if command == RESET:
        copy_checked(views["obs"], environment.reset(int(header[SEED])), "observations")
    elif command == STEP:
        obs, reward, terminated, truncated = environment.step(views["actions"])
        copy_checked(views["obs"], obs, "observations")
        copy_checked(views["reward"], reward, "reward")
        copy_checked(views["terminated"], terminated, "terminated")
        copy_checked(views["truncated"], truncated, "truncated")
        # Both at once would ask to bootstrap from a state that is worth nothing.
        views["truncated"][...] &= ~views["terminated"]
    elif command == EXPORT:
        for name, array in environment.export_state().items():
            copy_checked(views["state:" + name], array, "state " + name)
    elif command == IMPORT:
        prefix = "state:"
        environment.import_state(
            {n[len(prefix) :]: v.copy() for n, v in views.items() if n.startswith(prefix)}
        )
    elif command == THREADS:
        if hasattr(environment, "set_threads"):
            environment.set_threads(int(header[NUM_THREADS]))
    else:
        raise ValueError("unknown command {!r}".format(command))


def main() -> None:
    """Serves commands until told to quit or the parent is gone."""
    start = json.loads(sys.argv[1])
    # This file's folder must not shadow modules that the environment imports.
    del sys.path[0]
    commands, replies, memory_fd = start["commands"], start["replies"], start["memory"]
    environment = make_environment(start)
    hello = describe(environment)
    os.write(replies, json.dumps(hello).encode() + b"\n")
    if os.read(commands, 1) != DONE:  # the parent has sized the memory, or is gone
        return
    layout, size = block_layout(
        hello["num_envs"], hello["obs_dim"], hello["act_dim"], hello["state"]
    )
    memory = mmap.mmap(memory_fd, size)
    views = block_views(memory, layout)
    while True:
        command = os.read(commands, 1)
        if command in (b"", QUIT):
            break
        try:
            handle(environment, views, command)
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()
            os.write(replies, FAILED)
        else:
            os.write(replies, DONE)
    if hasattr(environment, "close"):
        environment.close()


if __name__ == "__main__":
    main()
