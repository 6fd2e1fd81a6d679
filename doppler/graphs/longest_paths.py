"""Longest paths over edges of distance 0, compiled: levels, the paths' next ops, what is left.

Legend: N ops, E edges, D devices; CSR: the in-edges of op i are `in_src[in_ptr[i]:in_ptr[i + 1]]`.
Source: Kwok and Ahmad 1999 (b-level, t-level); paths are followed without recursion.
"""

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Levels:
    """Longest paths through the graph.

    Attributes:
        b_level: Longest path from an op to an exit, its own time and transfers included, N.
        t_level: Longest path from an entry to an op, its own time and transfers included, N.
        next_down: The op after this one on its longest path to an exit, -1 at an exit.
        next_up: The op before this one on its longest path from an entry, -1 at an entry.
        order: Ops in topological order.
    """

    b_level: Floats
    t_level: Floats
    next_down: Ints
    next_up: Ints
    order: Ints

    @property
    def critical_path(self) -> float:
        """Length of the longest path."""
        return float(self.b_level.max(initial=0.0))


def compute_levels(work_N: Floats, in_ptr: Ints, in_src: Ints, comm_E: Floats) -> Levels:
    """Returns the levels for one time per op and one transfer time per in-edge.

    Paths of equal length go over the op of the lower id.
    """
    order = _topological(in_ptr, in_src)
    b_level, t_level, down, up = _longest(work_N, in_ptr, in_src, comm_E, order)
    return Levels(b_level=b_level, t_level=t_level, next_down=down, next_up=up, order=order)


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _topological(in_ptr: Ints, in_src: Ints) -> Ints:
    num_ops = len(in_ptr) - 1
    out_count = np.zeros(num_ops + 1, np.int64)
    for src in in_src:
        out_count[src + 1] += 1
    out_ptr = np.cumsum(out_count)
    fill = out_ptr[:-1].copy()
    out_dst = np.empty(len(in_src), np.int64)
    missing = np.empty(num_ops, np.int64)
    for op in range(num_ops):
        missing[op] = in_ptr[op + 1] - in_ptr[op]
        for edge in range(in_ptr[op], in_ptr[op + 1]):
            out_dst[fill[in_src[edge]]] = op
            fill[in_src[edge]] += 1
    order = np.empty(num_ops, np.int64)
    count = 0
    for op in range(num_ops):
        if missing[op] == 0:
            order[count] = op
            count += 1
    head = 0
    while head < count:
        op = order[head]
        head += 1
        for slot in range(out_ptr[op], out_ptr[op + 1]):
            consumer = out_dst[slot]
            missing[consumer] -= 1
            if missing[consumer] == 0:
                order[count] = consumer
                count += 1
    return order


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _longest(
    work_N: Floats, in_ptr: Ints, in_src: Ints, comm_E: Floats, order: Ints
) -> tuple[Floats, Floats, Ints, Ints]:
    num_ops = len(work_N)
    b_level, t_level = np.empty(num_ops), np.empty(num_ops)
    up = np.full(num_ops, -1, np.int64)
    down = np.full(num_ops, -1, np.int64)
    tail = np.zeros(num_ops)
    for op in order:
        head = 0.0
        for edge in range(in_ptr[op], in_ptr[op + 1]):
            src = in_src[edge]
            length = comm_E[edge] + t_level[src]
            if up[op] < 0 or length > head or (length == head and src < up[op]):
                head, up[op] = length, src
        t_level[op] = work_N[op] + head
    for index in range(num_ops - 1, -1, -1):
        op = order[index]
        b_level[op] = work_N[op] + tail[op]
        for edge in range(in_ptr[op], in_ptr[op + 1]):
            src = in_src[edge]
            length = comm_E[edge] + b_level[op]
            if down[src] < 0 or length > tail[src] or (length == tail[src] and op < down[src]):
                tail[src], down[src] = length, op
    return b_level, t_level, down, up


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def lookahead_costs(
    work_ND: Floats,
    edges: tuple[Ints, Ints, Floats],
    latency_DD: Floats,
    per_byte_DD: Floats,
    order: Ints,
) -> Floats:
    """Returns the least time from the end of an op on a device to an exit, float64[N, D].

    `cost(v, d) = max over consumers s of min over devices q of cost(s, q) + work(s, q) +
    transfer(d, q)`; exits have 0.

    Args:
        work_ND: Time per op and device, infinite where the op is not allowed.
        edges: (in_ptr, in_src, in_bytes) of distance 0.
        latency_DD: Of the links, infinite where there is none.
        per_byte_DD: Time per byte of the links.
        order: Ops in topological order.

    Source: Arabnejad and Barbosa 2014 (PEFT's optimistic cost table), with each link's own times.
    """
    in_ptr, in_src, in_bytes = edges
    num_ops, num_devices = work_ND.shape
    cost_ND = np.zeros((num_ops, num_devices))
    for index in range(num_ops - 1, -1, -1):
        op = order[index]
        for edge in range(in_ptr[op], in_ptr[op + 1]):
            src = in_src[edge]
            for device in range(num_devices):
                least = np.inf
                for other in range(num_devices):
                    after = cost_ND[op, other] + work_ND[op, other]
                    if other != device:
                        after += latency_DD[device, other]
                        after += in_bytes[edge] * per_byte_DD[device, other]
                    least = min(least, after)
                cost_ND[src, device] = max(cost_ND[src, device], least)
    return cost_ND
