"""Skeletons of generated graphs: ops with relative work, tensors with relative sizes, edges.

A skeleton says who reads what and how the work compares; `doppler.graphs.families` turns it into
nanoseconds and bytes. The shapes here are the random ones; `doppler.graphs.tiled` has the tiled
factorisations.

Sources: facts of the portfolio study (layered, in-tree, fork-join); Valdes, Tarjan and Lawler 1982
(two-terminal series-parallel graphs).
"""

import math
from dataclasses import dataclass

import numpy as np

from doppler.core.errors import GraphError

Rng = np.random.Generator
LOW, HIGH = 0.5, 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Skeleton:
    """A graph before it has units.

    Attributes:
        kinds, names: Per op.
        work: Relative work per op.
        outputs: Per op the relative size of each output.
        edges: (producer, output, consumer).
    """

    kinds: tuple[str, ...]
    names: tuple[str, ...]
    work: tuple[float, ...]
    outputs: tuple[tuple[float, ...], ...]
    edges: tuple[tuple[int, int, int], ...]


def layered(
    num_ops: int,
    rng: Rng,
    *,
    layers: int | None = None,
    most_predecessors: int = 5,
    reach: int = 3,
) -> Skeleton:
    """Layers of nearly equal width; an op reads 1 to 5 ops of the three layers before its own.

    Args:
        num_ops: Number of ops.
        rng: Source of randomness.
        layers: Number of layers; None = about the square root of `num_ops`, drawn.
        most_predecessors: An op reads 1 to that many others.
        reach: Layers before its own that an op reads from.
    """
    count = _drawn_side(num_ops, rng) if layers is None else layers
    _check_range("layers", count, 1, num_ops)
    _check_range("most_predecessors", most_predecessors, 1, None)
    _check_range("reach", reach, 1, None)
    starts = [num_ops * layer // count for layer in range(count + 1)]
    edges: list[tuple[int, int]] = []
    for layer in range(1, count):
        first = starts[max(0, layer - reach)]
        width = starts[layer] - first
        for op in range(starts[layer], starts[layer + 1]):
            wanted = min(width, int(rng.integers(1, most_predecessors + 1)))
            chosen = rng.choice(width, size=wanted, replace=False)
            edges += [(first + int(src), op) for src in np.sort(chosen)]
    return _random_skeleton(num_ops, edges, rng)


def series_parallel(num_ops: int, rng: Rng, *, parallel_percent: int = 60) -> Skeleton:
    """A two-terminal series-parallel graph, grown edge by edge.

    Args:
        num_ops: Number of ops, at least 2.
        rng: Source of randomness.
        parallel_percent: Chance that a new op lies beside the edge it is drawn for; else it
            splits the edge.
    """
    _check_range("num_ops", num_ops, 2, None)
    _check_range("parallel_percent", parallel_percent, 0, 100)
    edges = [(0, 1)]
    for op in range(2, num_ops):
        index = int(rng.integers(len(edges)))
        src, dst = edges[index]
        if rng.integers(100) < parallel_percent:
            edges.append((src, op))
        else:
            edges[index] = (src, op)
        edges.append((op, dst))
    return _random_skeleton(num_ops, edges, rng)


def stencil(num_ops: int, rng: Rng, *, width: int | None = None, radius: int = 1) -> Skeleton:
    """Time steps of a one-dimensional stencil: a cell reads its neighbours of the step before.

    Args:
        num_ops: Number of ops; the last step may be cut short.
        rng: Source of randomness.
        width: Cells per step; None = about the square root of `num_ops`, drawn.
        radius: Neighbours on each side that a cell reads.
    """
    cells = _drawn_side(num_ops, rng) if width is None else width
    _check_range("width", cells, 1, num_ops)
    _check_range("radius", radius, 0, None)
    edges = [
        (op - op % cells - cells + src, op)
        for op in range(cells, num_ops)
        for src in range(max(0, op % cells - radius), min(cells, op % cells + radius + 1))
    ]
    return _random_skeleton(num_ops, edges, rng)


def in_tree(num_ops: int, rng: Rng, *, arity: int = 4) -> Skeleton:
    """Many entries, one exit.

    Counted from the exit, op v feeds op (v - 1) // arity or one of the two before that.

    Args:
        num_ops: Number of ops.
        rng: Source of randomness.
        arity: Children per op on average.
    """
    parents = _tree_parents(num_ops, rng, arity)
    last = num_ops - 1
    edges = [(last - child, last - parent) for child, parent in parents]
    return _random_skeleton(num_ops, sorted(edges), rng)


def out_tree(num_ops: int, rng: Rng, *, arity: int = 4) -> Skeleton:
    """One entry, many exits: `in_tree` turned round."""
    parents = _tree_parents(num_ops, rng, arity)
    return _random_skeleton(num_ops, sorted((parent, child) for child, parent in parents), rng)


def fork_join(num_ops: int, rng: Rng, *, branches: int | None = None) -> Skeleton:
    """Fork-joins in a row: a join is the fork of the next one.

    Args:
        num_ops: Number of ops, at least 3; the last fork-join may have fewer branches.
        rng: Source of randomness.
        branches: Branches of one op each; None = drawn, at most 32.
    """
    _check_range("num_ops", num_ops, 3, None)
    most = num_ops - 2
    count = int(rng.integers(min(4, most), min(32, most) + 1)) if branches is None else branches
    _check_range("branches", count, 1, most)
    edges: list[tuple[int, int]] = []
    fork = 0
    while fork < num_ops - 1:
        join = min(fork + count + 1, num_ops - 1)
        if num_ops - 1 - join == 1:  # one op more would be a join without a branch
            join += 1
        edges += [(fork, op) for op in range(fork + 1, join)]
        edges += [(op, join) for op in range(fork + 1, join)]
        fork = join
    return _random_skeleton(num_ops, edges, rng)


def _tree_parents(num_ops: int, rng: Rng, arity: int) -> list[tuple[int, int]]:
    _check_range("arity", arity, 1, None)
    return [
        (child, max(0, (child - 1) // arity - int(rng.integers(3)))) for child in range(1, num_ops)
    ]


def _random_skeleton(num_ops: int, edges: list[tuple[int, int]], rng: Rng) -> Skeleton:
    """One output per op; work and sizes uniform within a factor of three."""
    return Skeleton(
        kinds=("task",) * num_ops,
        names=tuple(f"task[{op}]" for op in range(num_ops)),
        work=tuple(rng.uniform(LOW, HIGH, num_ops).tolist()),
        outputs=tuple((size,) for size in rng.uniform(LOW, HIGH, num_ops).tolist()),
        edges=tuple((src, 0, dst) for src, dst in edges),
    )


def _drawn_side(num_ops: int, rng: Rng) -> int:
    """About the square root, between 0.6 and 1.6 times it."""
    factor = float(rng.uniform(0.6, 1.6))
    return max(1, min(max(round(math.sqrt(num_ops) * factor), 2), num_ops - 1))


def _check_range(name: str, value: int, low: int, high: int | None) -> None:
    if value < low or (high is not None and value > high):
        limits = f"at least {low}" if high is None else f"from {low} to {high}"
        raise GraphError(f"{name} of a generated graph is {limits}, and it is {value}")
