"""A small stateful job for the executor's tests: sums that depend on every input and call."""

import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from doppler.core.graph import DataflowGraph, Edge, EdgeMode, Group, Op
from executor import channels

BYTES = 64


class Counter:
    """State of a group: a vector that every call of its ops changes."""

    def __init__(self, name: str) -> None:
        self.values = np.full(8, len(name), dtype=np.float64)

    def export_state(self) -> dict[str, np.ndarray]:
        return {"values": self.values.copy()}

    def import_state(self, state: Mapping[str, np.ndarray]) -> None:
        self.values = np.array(state["values"])


class ToyJob:
    """Kernels: `mix` sums its inputs, `count` also changes its group; others misbehave on order."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def create_group(self, name: str, threads: int) -> Counter:
        return Counter(name)

    def bind(self, op_name: str, kind: str, state: Counter | None, threads: int) -> Any:
        trouble = self.config.get("trouble", {}).get(op_name)
        jitter_s = self.config.get("jitter_s", 0.0)

        def kernel(
            iteration: int, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
        ) -> None:
            if trouble is not None and iteration == trouble["iteration"]:
                misbehave(trouble["what"])
            if jitter_s:  # other orders of events, the same values
                time.sleep(jitter_s * ((iteration * 7 + len(op_name) * 3) % 5))
            total = np.full(8, iteration + len(op_name), dtype=np.float64)
            for number, data in enumerate(inputs):
                total += np.sin(data.view(np.float64)) * (number + 1)
            if state is not None:
                state.values = state.values * 0.75 + total
                total = state.values
            for output in outputs:
                output.view(np.float64)[:] = total

        return kernel

    def initial(self, op_name: str, output: int, version: int) -> np.ndarray | None:
        if op_name == "zero":
            return None
        return np.full(8, version - output, dtype=np.float64)


class BadInitialJob(ToyJob):
    """Gives too few bytes."""

    def initial(self, op_name: str, output: int, version: int) -> np.ndarray | None:
        return np.zeros(3, dtype=np.float64)


class BrokenJob:
    """Cannot be built."""

    def __init__(self, config: dict[str, Any]) -> None:
        raise RuntimeError("no such environment")


def misbehave(what: str) -> None:
    """Does to this worker what a test asks for."""
    if what == "raise":
        raise ZeroDivisionError("the environment divided by zero")
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "exit":
        os._exit(3)
    if what == "hang":
        time.sleep(3600)
    if what == "interrupt parent":
        os.kill(os.getppid(), signal.SIGINT)
    if what == "interrupt group":  # what a terminal does on Ctrl-C
        os.killpg(os.getpgrp(), signal.SIGINT)
        time.sleep(3600)
    if what == "kill parent":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(3600)
    if what == "lose messages":
        channels.RingWriter.send = lambda *_: None  # type: ignore[method-assign]


def random_graph(seed: int, num_ops: int = 14, window: int = 3) -> DataflowGraph:
    """A random graph with state, loop-carried edges and two outputs per op."""
    rng = random.Random(seed)
    ops = [Op(kind="input", name="data", outputs=(BYTES,))]
    edges = []
    groups = []
    for op in range(1, num_ops + 1):
        has_state = rng.random() < 0.4
        if has_state:
            groups.append(Group(f"group{op}", 64))
        ops.append(
            Op(
                kind="count" if has_state else "mix",
                name="op" + "x" * rng.randrange(5) + str(op),
                outputs=(BYTES, BYTES),
                group=f"group{op}" if has_state else None,
            )
        )
        for _ in range(rng.randrange(1, 4)):
            distance = rng.randrange(window)
            src = rng.randrange(1, num_ops + 1) if distance else rng.randrange(op)
            edges.append(Edge(src, 0 if src == 0 else rng.randrange(2), op, distance if src else 0))
    return DataflowGraph(
        name=f"random{seed}",
        ops=tuple(ops),
        edges=tuple(edges),
        groups=tuple(groups),
        window=window,
    )


def toy_graph(window: int = 3, mode: EdgeMode = EdgeMode.token) -> DataflowGraph:
    """Two stateful chains that exchange tensors within and across iterations."""
    ops = (
        Op(kind="input", name="data", outputs=(BYTES,)),
        Op(kind="count", name="a0", outputs=(BYTES,), group="left"),
        Op(kind="mix", name="a1", outputs=(BYTES, BYTES)),
        Op(kind="count", name="b0", outputs=(BYTES,), group="right"),
        Op(kind="mix", name="b1", outputs=(BYTES,)),
        Op(kind="mix", name="join", outputs=(BYTES,)),
        Op(kind="count", name="a2", outputs=(BYTES,), group="left"),
        Op(kind="mix", name="sink", outputs=()),
    )
    edges = (
        Edge(0, 0, 1),
        Edge(0, 0, 3),
        Edge(1, 0, 2),
        Edge(3, 0, 4),
        Edge(2, 1, 4),
        Edge(2, 0, 5),
        Edge(4, 0, 5),
        Edge(5, 0, 6),
        Edge(5, 0, 3, 1, mode),  # join feeds b0 of the next iteration
        Edge(6, 0, 1, 1),  # a2 before the next a0: ops that change one group are ordered by edges
        Edge(2, 0, 4, 2),  # a1 feeds b1 two iterations later
        Edge(6, 0, 7),
        Edge(4, 0, 4, 1),  # b1 feeds itself
    )
    groups = (Group("left", 64), Group("right", 64))
    return DataflowGraph(name="toy", ops=ops, edges=edges, groups=groups, window=window)


class TensorToyJob(ToyJob):
    """The same values to the bit, computed on tensors by the ops that `on_host` does not name."""

    def use_accelerator(self, accelerator: Any) -> None:
        assert accelerator.torch_device == "cpu"

    def bind_tensors(self, op_name: str, kind: str, state: Counter | None, threads: int) -> Any:
        if op_name in self.config.get("on_host", ()):
            return None
        on_arrays = self.bind(op_name, kind, state, threads)

        def kernel(iteration: int, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            on_arrays(iteration, [t.numpy() for t in inputs], [t.numpy() for t in outputs])

        return kernel
