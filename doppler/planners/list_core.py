"""Compiled static list schedulers: one kernel that places op after op, and the orders it takes.

The kernel takes only devices that the mask leaves: allowed for the unit, room for the group's
state, and (where links are missing) no neighbour left without a device. Names as in `tables.py`;
`S` streams of all devices in device order.
"""

import numpy as np

from doppler.planners.list_parts import (
    PLACED,
    arrivals,
    first_streams,
    fresh_state,
    gap,
    links_left,
    narrow,
    need,
    store,
)
from doppler.planners.mask import Bools, Ints
from doppler.planners.tables import Floats, ListTables
from simulator.engine.jit import entry

# How `place` chooses; added up.
INSERTION, EARLIEST_START, ALL_READY = 1, 2, 4


@entry
def place(
    t: ListTables,
    order: Ints,
    extra_VD: Floats,
    tie_VD: Floats,
    rule: int,
    fit: int,
    versions: int,
    fully_linked: bool,
) -> tuple[Ints, Ints, Floats, float, int]:
    """Places op after op on the device of least value.

    The value is the finish time (with EARLIEST_START the start time) plus `extra_VD`; ties go to
    the smaller `tie_VD`, then to the lower op, then to the lower device.

    Args:
        t: `ListTables`.
        order: Ops with a device, predecessors first. With ALL_READY all ops whose predecessors are
            placed compete for the next turn, and only the members of `order` matter.
        extra_VD: Added to the value, shape [V, D], or [0, 0] for nothing.
        tie_VD: Breaks ties, shape [V, D], or [0, 0] for none.
        rule: INSERTION uses idle gaps between placed ops, else append; see above.
        fit: FIT_NONE, FIT_LIVE or FIT_ALL.
        versions: Versions of each tensor that may be in memory at once.
        fully_linked: True if every pair of devices is joined.

    Returns:
        (device per unit, ops in the order placed, start per op, finish of the last op, PLACED or
        the op at a dead end).
    """
    # Fields are loaded once: inside the loops every load of one would count references.
    times_VD, unit_V, state_U = t.times_VD, t.unit_V, t.state_U
    in_ptr, in_src, in_tensor, out_ptr, out_dst = (
        t.in_ptr,
        t.in_src,
        t.in_tensor,
        t.out_ptr,
        t.out_dst,
    )
    bytes_T, latency_DD, per_byte_DD = t.bytes_T, t.latency_DD, t.per_byte_DD
    num_ops, num_devices = times_VD.shape
    count = order.size
    insertion, all_ready = rule & INSERTION != 0, rule & ALL_READY != 0
    device_U, domain_UD, free_D, present_TD, readers_T = fresh_state(t, fit)
    first_S = first_streams(t)
    starts = np.empty((first_S[num_devices], count))
    ends = np.empty((first_S[num_devices], count))
    count_S = np.zeros(first_S[num_devices], np.int64)
    # No idle gap between a stream's slots is longer: most ops need no search for one.
    longest_S = np.zeros(first_S[num_devices])
    start_V, end_V = np.zeros(num_ops), np.zeros(num_ops)
    arrival_RD = np.empty((num_ops if all_ready else 1, num_devices))
    missing_V = np.zeros(num_ops if all_ready else 0, np.int64)
    candidates, num_candidates = np.empty(max(1, count), np.int64), 0
    placed = np.empty(count, np.int64)
    makespan = 0.0
    if all_ready:
        for op in order:
            missing_V[op] = in_ptr[op + 1] - in_ptr[op]
            if missing_V[op] == 0:
                candidates[num_candidates] = op
                num_candidates += 1
                arrival_RD[op] = 0.0
    for index in range(count):
        if not all_ready:
            candidates[0], num_candidates = order[index], 1
            arrivals(
                in_ptr,
                in_src,
                in_tensor,
                unit_V,
                bytes_T,
                latency_DD,
                per_byte_DD,
                order[index],
                device_U,
                end_V,
                arrival_RD,
                0,
            )
        best_value, best_tie, best_start = np.inf, np.inf, 0.0
        best, best_device, best_stream, best_at, best_position = -1, 0, 0, 0, 0
        for position in range(num_candidates):
            op = candidates[position]
            row = op if all_ready else 0
            unit = unit_V[op]
            fixed = device_U[unit]
            state = state_U[unit] if fixed < 0 else 0
            for device in range(num_devices):
                ready = arrival_RD[row, device]
                if ready == np.inf or (fixed >= 0 and fixed != device):
                    continue
                if fixed < 0:
                    if not domain_UD[unit, device] or state > free_D[device]:
                        continue
                    if not fully_linked and not links_left(t, unit, device, device_U, domain_UD):
                        continue
                if fit and need(t, op, device, present_TD, versions) + state > free_D[device]:
                    continue
                time = times_VD[op, device]
                extra = extra_VD[op, device] if extra_VD.size else 0.0
                tie = tie_VD[op, device] if tie_VD.size else 0.0
                for stream in range(first_S[device], first_S[device + 1]):
                    at = count_S[stream]
                    start = ready
                    if insertion and time <= longest_S[stream]:
                        start, at = gap(starts, ends, stream, at, ready, time)
                    elif at > 0:
                        start = max(ready, ends[stream, at - 1])
                    value = start + extra if rule & EARLIEST_START else start + time + extra
                    if value > best_value or (
                        value == best_value
                        and (tie > best_tie or (tie == best_tie and best >= 0 and op >= best))
                    ):
                        continue
                    best_value, best_tie, best_start = value, tie, start
                    best, best_device, best_stream = op, device, stream
                    best_at, best_position = at, position
        if best < 0:
            return device_U, placed[:index], start_V, makespan, candidates[0]
        unit = unit_V[best]
        if device_U[unit] < 0:
            device_U[unit] = best_device
            free_D[best_device] -= state_U[unit]
            if not fully_linked:
                narrow(t, unit, best_device, domain_UD)
        if fit:
            store(t, best, best_device, free_D, present_TD, readers_T, fit, versions)
        finish = best_start + times_VD[best, best_device]
        if best_at == count_S[best_stream]:
            before = ends[best_stream, best_at - 1] if best_at > 0 else 0.0
            longest_S[best_stream] = max(longest_S[best_stream], best_start - before)
        for position in range(count_S[best_stream], best_at, -1):
            starts[best_stream, position] = starts[best_stream, position - 1]
            ends[best_stream, position] = ends[best_stream, position - 1]
        starts[best_stream, best_at], ends[best_stream, best_at] = best_start, finish
        count_S[best_stream] += 1
        start_V[best], end_V[best], placed[index] = best_start, finish, best
        makespan = max(makespan, finish)
        if all_ready:
            num_candidates -= 1
            candidates[best_position] = candidates[num_candidates]
            for e in range(out_ptr[best], out_ptr[best + 1]):
                consumer = out_dst[e]
                missing_V[consumer] -= 1
                if missing_V[consumer] == 0:
                    candidates[num_candidates] = consumer
                    num_candidates += 1
                    arrivals(
                        in_ptr,
                        in_src,
                        in_tensor,
                        unit_V,
                        bytes_T,
                        latency_DD,
                        per_byte_DD,
                        consumer,
                        device_U,
                        end_V,
                        arrival_RD,
                        consumer,
                    )
    return device_U, placed, start_V, makespan, PLACED


@entry
def decode_keys(
    t: ListTables, keys_BV: Floats, fit: int, versions: int, fully_linked: bool
) -> tuple[Ints, Ints, Bools]:
    """HEFT with insertion in the order of keys, largest first, predecessors first anyway.

    Returns:
        (device per unit [B, U], priority per op [B, V], False where a row met a dead end [B]).
    """
    none = np.empty((0, 0))
    devices_BU = np.empty((keys_BV.shape[0], t.state_U.size), np.int64)
    priority_BV = np.zeros(keys_BV.shape, np.int64)
    placed_B = np.empty(keys_BV.shape[0], np.bool_)
    ops = np.flatnonzero(t.unit_V >= 0)
    for row in range(keys_BV.shape[0]):
        by_key = ops[np.argsort(-keys_BV[row, ops], kind="mergesort")]
        order = predecessors_first(t, by_key)
        device_U, _, _, _, status = place(
            t, order, none, none, INSERTION, fit, versions, fully_linked
        )
        devices_BU[row], placed_B[row] = device_U, status == PLACED
        priority_BV[row, order] = np.arange(order.size, 0, -1)
    return devices_BU, priority_BV, placed_B


@entry
def ready_order(t: ListTables, keys_V: Floats, ties_V: Floats) -> Ints:
    """Returns the ops with a device, each time the ready one of the largest key.

    Ties go to the smaller entry of `ties_V`, then to the lower op.
    """
    ready, order = np.empty(keys_V.size, np.int64), np.empty(keys_V.size, np.int64)
    missing_V = t.in_ptr[1:] - t.in_ptr[:-1]
    num_ready, taken = 0, 0
    for op in range(keys_V.size):
        if missing_V[op] == 0 and t.unit_V[op] >= 0:
            ready[num_ready] = op
            num_ready += 1
    while num_ready > 0:
        best = 0
        for position in range(1, num_ready):
            op, other = ready[position], ready[best]
            if keys_V[op] > keys_V[other] or (
                keys_V[op] == keys_V[other] and (ties_V[op], op) < (ties_V[other], other)
            ):
                best = position
        op = ready[best]
        num_ready -= 1
        ready[best] = ready[num_ready]
        order[taken] = op
        taken += 1
        for e in range(t.out_ptr[op], t.out_ptr[op + 1]):
            consumer = t.out_dst[e]
            missing_V[consumer] -= 1
            if missing_V[consumer] == 0:
                ready[num_ready] = consumer
                num_ready += 1
    return order[:taken]


@entry
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
