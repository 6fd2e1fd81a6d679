"""Compiled list schedulers: HEFT (append and insertion) and the critical-path rule.

Both place op after op on a device that the mask leaves: allowed for the unit, room for the
group's state, and (where links are missing) no neighbour left without a device. The functions are
in one file because numba's disk cache looks at one file only.

Names as in `tables.py`; `S` streams of all devices in device order.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from doppler.planners.mask import Bools, Ints
from doppler.planners.tables import Floats, ListTables

# What a run ends with, besides an op id (>= 0) at which it met a dead end.
PLACED = -1

_jit: Callable[[Any], Any] = njit(cache=True, nogil=True)


@_jit
def heft(
    t: ListTables, order: Ints, insertion: bool, count_tensors: int, fully_linked: bool
) -> tuple[Ints, Floats, float, int]:
    """Places the ops of `order` by earliest finish time; ties go to the lower device.

    Args:
        t: `ListTables`.
        order: Ops with a device, predecessors first.
        insertion: Use idle gaps between placed ops; else append.
        count_tensors: Tensors per (op, output) that may be in memory at once: 0 = do not look at
            tensors, else a device is taken only if all that is placed there fits together.
        fully_linked: True if every pair of devices is joined.

    Returns:
        (device per unit, start per op, finish of the last op, PLACED or the op at a dead end).
    """
    num_ops, num_devices = t.times_VD.shape
    device_U, domain_UD, free_D, present_TD = _fresh(t, count_tensors)
    first_S = _first_streams(t)
    num_streams = first_S[num_devices]
    starts = np.empty((num_streams, order.size))
    ends = np.empty((num_streams, order.size))
    count_S = np.zeros(num_streams, np.int64)
    start_V = np.zeros(num_ops)
    end_V = np.zeros(num_ops)
    makespan = 0.0
    for index in range(order.size):
        op = order[index]
        best, best_finish, best_start, best_stream, best_at = -1, np.inf, 0.0, 0, 0
        for device in range(num_devices):
            if not _may_place(t, op, device, device_U, domain_UD, free_D, fully_linked):
                continue
            if count_tensors and _need(t, op, device, present_TD, count_tensors) > free_D[
                device
            ] - _new_state(t, op, device_U):
                continue
            ready = _ready(t, op, device, device_U, end_V)
            if ready == np.inf:
                continue
            time = t.times_VD[op, device]
            for stream in range(first_S[device], first_S[device + 1]):
                at = count_S[stream]
                start = ready
                if insertion:
                    start, at = _gap(starts[stream], ends[stream], at, ready, time)
                elif at > 0:
                    start = max(ready, ends[stream, at - 1])
                if start + time < best_finish:
                    best, best_finish, best_start = device, start + time, start
                    best_stream, best_at = stream, at
        if best < 0:
            return device_U, start_V, makespan, op
        _take(t, op, best, device_U, domain_UD, free_D, present_TD, count_tensors, fully_linked)
        for position in range(count_S[best_stream], best_at, -1):
            starts[best_stream, position] = starts[best_stream, position - 1]
            ends[best_stream, position] = ends[best_stream, position - 1]
        starts[best_stream, best_at], ends[best_stream, best_at] = best_start, best_finish
        count_S[best_stream] += 1
        start_V[op], end_V[op] = best_start, best_finish
        makespan = max(makespan, best_finish)
    return device_U, start_V, makespan, PLACED


@_jit
def critical_path(
    t: ListTables, levels_V: Floats, draws_V2: Floats, fully_linked: bool
) -> tuple[Ints, Ints, int, int]:
    """Takes the ready op with the largest level and its device with the earliest start.

    Ties are drawn among the tied ops and among the tied devices.

    Args:
        t: `ListTables`.
        levels_V: Level per op.
        draws_V2: Uniform numbers in [0, 1), one pair per step.
        fully_linked: True if every pair of devices is joined.

    Returns:
        (device per unit, ops in the order taken, how many, PLACED or the op at a dead end).
    """
    num_ops, num_devices = t.times_VD.shape
    device_U, domain_UD, free_D, present_TD = _fresh(t, 0)
    first_S = _first_streams(t)
    available_S = np.zeros(first_S[num_devices])
    end_V = np.zeros(num_ops)
    order = np.empty(num_ops, np.int64)
    missing = np.zeros(num_ops, np.int64)
    ready = np.empty(num_ops, np.int64)
    tied = np.empty(max(num_ops, num_devices), np.int64)
    num_ready, taken = 0, 0
    for op in range(num_ops):
        missing[op] = t.in_ptr[op + 1] - t.in_ptr[op]
        if missing[op] == 0 and t.unit_V[op] >= 0:
            ready[num_ready] = op
            num_ready += 1
    while num_ready > 0:
        largest, num_tied = -np.inf, 0
        for position in range(num_ready):
            level = levels_V[ready[position]]
            if level > largest:
                largest, num_tied = level, 0
            if level == largest:
                tied[num_tied] = position
                num_tied += 1
        position = tied[int(draws_V2[taken, 0] * num_tied)]
        op = ready[position]
        num_ready -= 1
        ready[position] = ready[num_ready]
        earliest, num_tied = np.inf, 0
        for device in range(num_devices):
            if not _may_place(t, op, device, device_U, domain_UD, free_D, fully_linked):
                continue
            begin = _ready(t, op, device, device_U, end_V)
            if begin == np.inf:
                continue
            begin = max(begin, available_S[first_S[device] : first_S[device + 1]].min())
            if begin < earliest:
                earliest, num_tied = begin, 0
            if begin == earliest:
                tied[num_tied] = device
                num_tied += 1
        if num_tied == 0:
            return device_U, order, taken, op
        device = tied[int(draws_V2[taken, 1] * num_tied)]
        _take(t, op, device, device_U, domain_UD, free_D, present_TD, 0, fully_linked)
        streams = available_S[first_S[device] : first_S[device + 1]]
        end_V[op] = earliest + t.times_VD[op, device]
        streams[streams.argmin()] = end_V[op]
        order[taken] = op
        taken += 1
        for e in range(t.out_ptr[op], t.out_ptr[op + 1]):
            consumer = t.out_dst[e]
            missing[consumer] -= 1
            if missing[consumer] == 0:
                ready[num_ready] = consumer
                num_ready += 1
    return device_U, order, taken, PLACED


@_jit
def heft_by_keys(t: ListTables, keys_V: Floats, fully_linked: bool) -> tuple[Ints, Ints, int]:
    """HEFT with insertion in the order of keys, largest first, predecessors first anyway.

    Returns:
        (device per unit, the order, PLACED or the op at a dead end).
    """
    by_key = np.argsort(-keys_V, kind="mergesort")
    order = np.empty(keys_V.size, np.int64)
    count = 0
    for op in by_key:
        if t.unit_V[op] >= 0:
            order[count] = op
            count += 1
    order = predecessors_first(t, order[:count])
    device_U, _, _, status = heft(t, order, True, 0, fully_linked)
    return device_U, order, status


@_jit
def predecessors_first(t: ListTables, order: Ints) -> Ints:
    """Returns the order with every op right after its predecessors at the earliest.

    Predecessors that come too late are moved before their successor, in the order given.
    """
    num_ops = t.unit_V.size
    done = np.zeros(num_ops, np.bool_)
    place = np.empty(num_ops, np.int64)
    for index in range(order.size):
        place[order[index]] = index
    result = np.empty(order.size, np.int64)
    stack = np.empty(order.size + 1, np.int64)
    count = 0
    for index in range(order.size):
        if done[order[index]]:
            continue
        stack[0], height = order[index], 1
        while height > 0:
            op = stack[height - 1]
            first = -1
            for e in range(t.in_ptr[op], t.in_ptr[op + 1]):
                src = t.in_src[e]
                if not done[src] and (first < 0 or place[src] < place[first]):
                    first = src
            if first >= 0:
                stack[height] = first
                height += 1
                continue
            height -= 1
            done[op] = True
            result[count] = op
            count += 1
    return result


@_jit
def _fresh(t: ListTables, count_tensors: int) -> tuple[Ints, Bools, Ints, Bools]:
    device_U = np.full(t.state_U.size, -1, np.int64)
    rows = t.bytes_T.size if count_tensors else 0
    return (
        device_U,
        t.allowed_UD.copy(),
        t.limit_D.copy(),
        np.zeros((rows, t.limit_D.size), np.bool_),
    )


@_jit
def _first_streams(t: ListTables) -> Ints:
    first_S = np.zeros(t.streams_D.size + 1, np.int64)
    for device in range(t.streams_D.size):
        first_S[device + 1] = first_S[device] + t.streams_D[device]
    return first_S


@_jit
def _new_state(t: ListTables, op: int, device_U: Ints) -> int:
    """State that the op's unit brings along if this op is its first."""
    unit = t.unit_V[op]
    return t.state_U[unit] if device_U[unit] < 0 else 0


@_jit
def _may_place(
    t: ListTables,
    op: int,
    device: int,
    device_U: Ints,
    domain_UD: Bools,
    free_D: Ints,
    fully_linked: bool,
) -> bool:
    unit = t.unit_V[op]
    if device_U[unit] >= 0:
        return bool(device_U[unit] == device)
    if not domain_UD[unit, device] or t.state_U[unit] > free_D[device]:
        return False
    if fully_linked:
        return True
    for n in range(t.near_ptr[unit], t.near_ptr[unit + 1]):
        other = t.near_unit[n]
        if device_U[other] >= 0:
            continue
        left = False
        for peer in range(free_D.size):
            joined = t.linked_DD[device, peer] if t.near_sends[n] else t.linked_DD[peer, device]
            if domain_UD[other, peer] and joined:
                left = True
                break
        if not left:
            return False
    return True


@_jit
def _take(
    t: ListTables,
    op: int,
    device: int,
    device_U: Ints,
    domain_UD: Bools,
    free_D: Ints,
    present_TD: Bools,
    count_tensors: int,
    fully_linked: bool,
) -> None:
    unit = t.unit_V[op]
    if count_tensors:
        free_D[device] -= _need(t, op, device, present_TD, count_tensors)
        for e in range(t.in_ptr[op], t.in_ptr[op + 1]):
            present_TD[t.in_tensor[e], device] = True
        for e in range(t.held_ptr[op], t.held_ptr[op + 1]):
            present_TD[t.held_tensor[e], device] = True
        present_TD[t.tensor_ptr[op] : t.tensor_ptr[op + 1], device] = True
    if device_U[unit] >= 0:
        return
    device_U[unit] = device
    free_D[device] -= t.state_U[unit]
    if fully_linked:
        return
    for n in range(t.near_ptr[unit], t.near_ptr[unit + 1]):
        other = t.near_unit[n]
        for peer in range(free_D.size):
            joined = t.linked_DD[device, peer] if t.near_sends[n] else t.linked_DD[peer, device]
            if not joined:
                domain_UD[other, peer] = False


@_jit
def _need(t: ListTables, op: int, device: int, present_TD: Bools, count_tensors: int) -> int:
    """Bytes that the op adds to a device: its outputs and inputs that are not there yet."""
    need = 0
    for tensor in range(t.tensor_ptr[op], t.tensor_ptr[op + 1]):
        if not present_TD[tensor, device]:
            need += t.bytes_T[tensor] * count_tensors
    for e in range(t.in_ptr[op], t.in_ptr[op + 1]):
        if not present_TD[t.in_tensor[e], device] and _first_use(t.in_tensor, t.in_ptr[op], e):
            need += t.bytes_T[t.in_tensor[e]] * count_tensors
    for e in range(t.held_ptr[op], t.held_ptr[op + 1]):
        tensor = t.held_tensor[e]
        if not present_TD[tensor, device] and _first_use(t.held_tensor, t.held_ptr[op], e):
            need += t.bytes_T[tensor]
    return need


@_jit
def _first_use(tensors: Ints, first: int, e: int) -> bool:
    return not bool((tensors[first:e] == tensors[e]).any())


@_jit
def _ready(t: ListTables, op: int, device: int, device_U: Ints, end_V: Floats) -> float:
    """When all inputs can be on the device, links free; infinite without a link."""
    ready = 0.0
    for e in range(t.in_ptr[op], t.in_ptr[op + 1]):
        src = t.in_src[e]
        at = device_U[t.unit_V[src]]
        arrival = end_V[src]
        if at != device:
            arrival += (
                t.latency_DD[at, device] + t.bytes_T[t.in_tensor[e]] * t.per_byte_DD[at, device]
            )
        ready = max(ready, arrival)
    return ready


@_jit
def _gap(starts: Floats, ends: Floats, count: int, ready: float, time: float) -> tuple[float, int]:
    """(start, position) of the first idle gap of `time` from `ready` on."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if ends[middle] > ready:
            high = middle
        else:
            low = middle + 1
    begin = ready
    for position in range(low, count):
        if begin + time <= starts[position]:
            return begin, position
        begin = max(begin, ends[position])
    return begin, count
