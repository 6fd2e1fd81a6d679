"""The largest ratio of weight to distance over the circles of a graph, exact.

Starts from a circle, looks for one with a larger ratio by longest paths with reduced weights
w(src) - ratio * distance, and stops when there is none.

Source: Lawler 1976, section 3.13 (minimal cost-to-time ratio circle), with the ratio of the circle
that was found as the next trial.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.machine_code import cached

Ints = NDArray[np.int64]

_jit: Callable[[Any], Any] = cached()


def max_cycle_ratio(weights_V: Sequence[int], distances: Mapping[tuple[int, int], int]) -> Fraction:
    """Returns the largest sum of weights / sum of distances over all circles, 0 without one.

    Args:
        weights_V: Weight per node, at least 0.
        distances: (source, destination) -> distance, at least 0; no circle has distance 0.
    """
    if not distances:
        return Fraction(0)
    src = np.asarray([pair[0] for pair in distances], dtype=np.int64)
    dst = np.asarray([pair[1] for pair in distances], dtype=np.int64)
    distance = np.asarray(list(distances.values()), dtype=np.int64)
    weights = np.asarray(weights_V, dtype=np.int64)
    best = Fraction(0)
    while True:
        circle = _longer_circle(weights, src, dst, distance, best.numerator, best.denominator)
        if not len(circle):
            return best
        total = int(weights[src[circle]].sum())
        best = Fraction(total, int(distance[circle].sum()))


@_jit
def _longer_circle(
    weights: Ints, src: Ints, dst: Ints, distance: Ints, numerator: int, denominator: int
) -> Ints:
    """Arcs of a circle whose ratio exceeds numerator / denominator, or none."""
    length = np.zeros(weights.size, np.int64)
    arc_to = np.full(weights.size, -1, np.int64)
    for _ in range(weights.size + 1):
        changed = -1
        for arc in range(src.size):
            reduced = weights[src[arc]] * denominator - distance[arc] * numerator
            candidate = length[src[arc]] + reduced
            if candidate > length[dst[arc]]:
                length[dst[arc]] = candidate
                arc_to[dst[arc]] = arc
                changed = dst[arc]
        if changed < 0:
            return np.empty(0, np.int64)
        circle: Ints = _circle_of(arc_to, src, dst)
        if circle.size:
            return circle
    return np.empty(0, np.int64)


@_jit
def _circle_of(arc_to: Ints, src: Ints, dst: Ints) -> Ints:
    """Arcs of a circle of the predecessor graph, or none; every such circle is a longer one."""
    mark = np.full(arc_to.size, -1, np.int64)
    for first in range(arc_to.size):
        node = first
        while arc_to[node] >= 0 and mark[node] < 0:
            mark[node] = first
            node = src[arc_to[node]]
        if arc_to[node] < 0 or mark[node] != first:
            continue
        count, at = 1, src[arc_to[node]]
        while at != node:
            count += 1
            at = src[arc_to[at]]
        arcs = np.empty(count, np.int64)
        at = node
        for index in range(count):
            arcs[index] = arc_to[at]
            at = src[arc_to[at]]
        return arcs
    return np.empty(0, np.int64)
