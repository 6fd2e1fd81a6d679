"""Compiled parts of all list schedulers: what may go where, memory, arrivals, gaps.

Names as in `tables.py`; transfers take their uncontended time.
"""

import numpy as np

from doppler.planners.mask import Bools, Ints
from doppler.planners.tables import Floats, ListTables
from simulator.engine.jit import inlined, jit

# What a run ends with, besides an op id (>= 0) at which it met a dead end.
PLACED = -1

# Which tensors must fit into a device's memory together: no check, those with a reader that is not
# placed yet, or all that were ever there.
FIT_NONE, FIT_LIVE, FIT_ALL = 0, 1, 2


@jit
def fresh_state(t: ListTables, fit: int) -> tuple[Ints, Bools, Ints, Bools, Ints]:
    """Returns (device per unit, domains, free bytes, tensors present, readers) before any op."""
    device_U = np.full(t.state_U.size, -1, np.int64)
    present_TD = np.zeros((t.bytes_T.size if fit else 0, t.limit_D.size), np.bool_)
    return device_U, t.allowed_UD.copy(), t.limit_D.copy(), present_TD, t.readers_T.copy()


@jit
def first_streams(t: ListTables) -> Ints:
    """Returns the first stream of each device, and the number of streams."""
    first_S = np.zeros(t.streams_D.size + 1, np.int64)
    for device in range(t.streams_D.size):
        first_S[device + 1] = first_S[device] + t.streams_D[device]
    return first_S


@jit
def may_place(
    t: ListTables,
    op: int,
    device: int,
    device_U: Ints,
    domain_UD: Bools,
    free_D: Ints,
    fully_linked: bool,
) -> bool:
    """True if kinds, pins, groups, group state and links let the op go to a device now."""
    unit = t.unit_V[op]
    if device_U[unit] >= 0:
        return bool(device_U[unit] == device)
    if not domain_UD[unit, device] or t.state_U[unit] > free_D[device]:
        return False
    return fully_linked or links_left(t, unit, device, device_U, domain_UD)


@jit
def links_left(t: ListTables, unit: int, device: int, device_U: Ints, domain_UD: Bools) -> bool:
    """True if every neighbour of the unit keeps a device that is linked to this one."""
    for n in range(t.near_ptr[unit], t.near_ptr[unit + 1]):
        other = t.near_unit[n]
        if device_U[other] >= 0:
            continue
        left = False
        for peer in range(t.limit_D.size):
            joined = t.linked_DD[device, peer] if t.near_sends[n] else t.linked_DD[peer, device]
            if domain_UD[other, peer] and joined:
                left = True
                break
        if not left:
            return False
    return True


@jit
def narrow(t: ListTables, unit: int, device: int, domain_UD: Bools) -> None:
    """Leaves the unit's neighbours only devices that are linked to its own."""
    for n in range(t.near_ptr[unit], t.near_ptr[unit + 1]):
        other = t.near_unit[n]
        for peer in range(t.limit_D.size):
            joined = t.linked_DD[device, peer] if t.near_sends[n] else t.linked_DD[peer, device]
            if not joined:
                domain_UD[other, peer] = False


@jit
def fits(
    t: ListTables,
    op: int,
    device: int,
    device_U: Ints,
    free_D: Ints,
    present_TD: Bools,
    versions: int,
) -> bool:
    """True if the device has room for the op's tensors and what state its unit brings."""
    unit = t.unit_V[op]
    state = t.state_U[unit] if device_U[unit] < 0 else 0
    return bool(need(t, op, device, present_TD, versions) + state <= free_D[device])


@jit
def store(
    t: ListTables,
    op: int,
    device: int,
    free_D: Ints,
    present_TD: Bools,
    readers_T: Ints,
    fit: int,
    versions: int,
) -> None:
    """Counts the tensors that the op brings to a device; FIT_LIVE frees what nobody will read."""
    free_D[device] -= need(t, op, device, present_TD, versions)
    for e in range(t.in_ptr[op], t.in_ptr[op + 1]):
        present_TD[t.in_tensor[e], device] = True
    for e in range(t.held_ptr[op], t.held_ptr[op + 1]):
        present_TD[t.held_tensor[e], device] = True
    present_TD[t.tensor_ptr[op] : t.tensor_ptr[op + 1], device] = True
    if fit != FIT_LIVE:
        return
    for e in range(t.in_ptr[op], t.in_ptr[op + 1]):
        readers_T[t.in_tensor[e]] -= 1
        if readers_T[t.in_tensor[e]] == 0:
            _free(t, t.in_tensor[e], free_D, present_TD, versions)
    for tensor in range(t.tensor_ptr[op], t.tensor_ptr[op + 1]):
        if readers_T[tensor] == 0:
            _free(t, tensor, free_D, present_TD, versions)


@jit
def _free(t: ListTables, tensor: int, free_D: Ints, present_TD: Bools, versions: int) -> None:
    for device in range(free_D.size):
        if present_TD[tensor, device]:
            present_TD[tensor, device] = False
            free_D[device] += t.bytes_T[tensor] * versions


@jit
def need(t: ListTables, op: int, device: int, present_TD: Bools, versions: int) -> int:
    """Bytes that the op adds to a device: its outputs and inputs that are not there yet."""
    need = 0
    for tensor in range(t.tensor_ptr[op], t.tensor_ptr[op + 1]):
        if not present_TD[tensor, device]:
            need += t.bytes_T[tensor] * versions
    for e in range(t.in_ptr[op], t.in_ptr[op + 1]):
        if not present_TD[t.in_tensor[e], device] and _first_use(t.in_tensor, t.in_ptr[op], e):
            need += t.bytes_T[t.in_tensor[e]] * versions
    for e in range(t.held_ptr[op], t.held_ptr[op + 1]):
        tensor = t.held_tensor[e]
        if not present_TD[tensor, device] and _first_use(t.held_tensor, t.held_ptr[op], e):
            need += t.bytes_T[tensor]
    return need


@jit
def _first_use(tensors: Ints, first: int, e: int) -> bool:
    return not bool((tensors[first:e] == tensors[e]).any())


@inlined
def arrivals(
    in_ptr: Ints,
    in_src: Ints,
    in_tensor: Ints,
    unit_V: Ints,
    bytes_T: Ints,
    latency_DD: Floats,
    per_byte_DD: Floats,
    op: int,
    device_U: Ints,
    end_V: Floats,
    arrival_RD: Floats,
    row: int,
) -> None:
    """Writes when all inputs can be on each device, links free; infinite without a link.

    Takes fields of the tables one by one: to hand over all of them costs more than the work.
    """
    num_devices = arrival_RD.shape[1]
    for device in range(num_devices):
        arrival_RD[row, device] = 0.0
    for e in range(in_ptr[op], in_ptr[op + 1]):
        src = in_src[e]
        at, end, size = device_U[unit_V[src]], end_V[src], bytes_T[in_tensor[e]]
        for device in range(num_devices):
            arrival = end + (latency_DD[at, device] + size * per_byte_DD[at, device])
            arrival_RD[row, device] = max(arrival_RD[row, device], arrival)


@jit
def fetch_time(t: ListTables, op: int, device: int, device_U: Ints, present_TD: Bools) -> float:
    """Transfer times of the inputs that are not on the device, one after the other."""
    time = 0.0
    for e in range(t.in_ptr[op], t.in_ptr[op + 1]):
        tensor = t.in_tensor[e]
        if not present_TD[tensor, device] and _first_use(t.in_tensor, t.in_ptr[op], e):
            at = device_U[t.unit_V[t.in_src[e]]]
            time += t.latency_DD[at, device] + t.bytes_T[tensor] * t.per_byte_DD[at, device]
    return time


@inlined
def gap(
    starts_SN: Floats, ends_SN: Floats, stream: int, count: int, ready: float, time: float
) -> tuple[float, int]:
    """(start, position) of the first idle gap of `time` on a stream from `ready` on."""
    first = count
    while first > 0 and ends_SN[stream, first - 1] > ready:
        first -= 1
    begin = ready
    for position in range(first, count):
        if begin + time <= starts_SN[stream, position]:
            return begin, position
        begin = max(begin, ends_SN[stream, position])
    return begin, count
