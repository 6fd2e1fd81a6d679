"""Compiled dynamic list scheduler: ops are assigned at the moment they become ready."""

import numpy as np

from doppler.planners.list_parts import (
    FIT_ALL,
    PLACED,
    arrivals,
    fetch_time,
    first_streams,
    fits,
    fresh_state,
    may_place,
    narrow,
    need,
    store,
)
from doppler.planners.mask import Ints
from doppler.planners.tables import Floats, ListTables
from simulator.engine.jit import entry


@entry
def assign_when_ready(
    t: ListTables, priority_V: Ints, run_time: bool, fit: int, versions: int, fully_linked: bool
) -> tuple[Ints, Floats, float, int]:
    """Assigns an op at the moment its last predecessor ends, as dynamic runtimes do.

    The device is the one with the least backlog (work left of what it runs and was assigned, per
    stream) + transfer time of the tensors that it lacks + (if `run_time`) the op's time there; ties
    go to the fewest stored bytes, then to the lower device. A device runs what has arrived by
    priority, without waiting.

    Args:
        t: `ListTables`.
        priority_V: Larger first, among ops assigned at one time and in each device's queue.
        run_time: Look at the op's time.
        fit: As in `place`.
        versions: As in `place`.
        fully_linked: As in `place`.

    Returns:
        (device per unit, start per op, finish of the last op, PLACED or the op at a dead end).
    """
    num_ops, num_devices = t.times_VD.shape
    device_U, domain_UD, free_D, present_TD, readers_T = fresh_state(t, FIT_ALL)
    counted_D = free_D if fit else free_D.copy()  # tensors take room only where they must fit
    first_S = first_streams(t)
    end_S, running_S = np.full(first_S[num_devices], np.inf), np.full(first_S[num_devices], -1)
    start_V, end_V, arrival_V = np.zeros(num_ops), np.zeros(num_ops), np.zeros(num_ops)
    queued_D, stored_D = np.zeros(num_devices), np.zeros(num_devices, np.int64)
    ready, waiting = np.empty(num_ops, np.int64), np.empty(num_ops, np.int64)
    num_ready, num_waiting, left = 0, 0, 0
    arrival_RD = np.empty((1, num_devices))
    missing_V = np.zeros(num_ops, np.int64)
    now = 0.0
    for op in range(num_ops):
        if t.unit_V[op] < 0:
            continue
        left += 1
        missing_V[op] = t.in_ptr[op + 1] - t.in_ptr[op]
        if missing_V[op] == 0:
            ready[num_ready] = op
            num_ready += 1
    while True:
        while num_ready > 0:
            position = 0
            for other in range(1, num_ready):
                if priority_V[ready[other]] > priority_V[ready[position]]:
                    position = other
            op = ready[position]
            num_ready -= 1
            ready[position] = ready[num_ready]
            arrivals(
                t.in_ptr,
                t.in_src,
                t.in_tensor,
                t.unit_V,
                t.bytes_T,
                t.latency_DD,
                t.per_byte_DD,
                op,
                device_U,
                end_V,
                arrival_RD,
                0,
            )
            best, best_cost = -1, np.inf
            for device in range(num_devices):
                if arrival_RD[0, device] == np.inf or not may_place(
                    t, op, device, device_U, domain_UD, free_D, fully_linked
                ):
                    continue
                if fit and not fits(t, op, device, device_U, free_D, present_TD, versions):
                    continue
                cost = queued_D[device]
                for stream in range(first_S[device], first_S[device + 1]):
                    if running_S[stream] >= 0:
                        cost += end_S[stream] - now
                cost = cost / t.streams_D[device] + fetch_time(t, op, device, device_U, present_TD)
                if run_time:
                    cost += t.times_VD[op, device]
                if cost < best_cost or (cost == best_cost and stored_D[device] < stored_D[best]):
                    best, best_cost = device, cost
            if best < 0:
                return device_U, start_V, now, op
            unit = t.unit_V[op]
            if device_U[unit] < 0:
                device_U[unit] = best
                free_D[best] -= t.state_U[unit]
                if not fully_linked:
                    narrow(t, unit, best, domain_UD)
            stored_D[best] += need(t, op, best, present_TD, 1)
            store(t, op, best, counted_D, present_TD, readers_T, fit, versions)
            arrival_V[op] = arrival_RD[0, best]
            queued_D[best] += t.times_VD[op, best]
            waiting[num_waiting] = op
            num_waiting += 1
        for device in range(num_devices):
            for stream in range(first_S[device], first_S[device + 1]):
                if running_S[stream] >= 0:
                    continue
                best = -1
                for position in range(num_waiting):
                    op = waiting[position]
                    if device_U[t.unit_V[op]] != device or arrival_V[op] > now:
                        continue
                    if best < 0 or priority_V[op] > priority_V[waiting[best]]:
                        best = position
                if best < 0:
                    break
                op = waiting[best]
                num_waiting -= 1
                waiting[best] = waiting[num_waiting]
                queued_D[device] -= t.times_VD[op, device]
                start_V[op], end_V[op] = now, now + t.times_VD[op, device]
                running_S[stream], end_S[stream] = op, end_V[op]
        if left == 0:
            return device_U, start_V, now, PLACED
        soon = end_S.min()
        for position in range(num_waiting):
            if now < arrival_V[waiting[position]] < soon:
                soon = arrival_V[waiting[position]]
        now = soon
        for stream in range(running_S.size):
            if running_S[stream] < 0 or end_S[stream] > now:
                continue
            op = running_S[stream]
            running_S[stream], end_S[stream] = -1, np.inf
            left -= 1
            for e in range(t.out_ptr[op], t.out_ptr[op + 1]):
                consumer = t.out_dst[e]
                missing_V[consumer] -= 1
                if missing_V[consumer] == 0:
                    ready[num_ready] = consumer
                    num_ready += 1
