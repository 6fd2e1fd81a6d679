"""Finds out whether the relative state of a run recurs, so that its period is exact."""

import numpy as np

from simulator.engine.jit import (
    ACTIVE,
    COPYING,
    CREDITS,
    FRONTIER,
    IDLE,
    LIMITED,
    MEMORY,
    NOW,
    PERIOD_ITERATIONS,
    PERIOD_NS,
    SENT,
    STATES,
    jit,
)
from simulator.engine.tables import Tables
from simulator.engine.workspace import Workspace


@jit
def put(ws: Workspace, at: int, value: int) -> int:
    """Appends to the history if there is room; returns the next position, or -1."""
    if at < 0 or at >= ws.history.size:
        return -1
    ws.history[at] = value
    return at + 1


@jit
def put_record(tab: Tables, ws: Workspace, at: int, record: int, moment: int) -> int:
    """Appends tensor, destination, relative iteration and a moment of a transfer."""
    frontier = ws.scalars[FRONTIER]
    tensor = ws.record_tensor[record]
    at = put(ws, at, tensor * tab.num_devices + ws.record_dst[record])
    at = put(ws, at, ws.record_iteration[record] - frontier)
    return put(ws, at, moment)


@jit
def put_memory(tab: Tables, ws: Workspace, at: int) -> int:
    """Appends bytes in use, pending reports of sends, newest versions and versions read."""
    frontier = ws.scalars[FRONTIER]
    for index in range(ws.scalars[SENT]):
        at = put(ws, at, ws.sent_tensor[index] * tab.num_devices + ws.sent_device[index])
        at = put(ws, at, ws.sent_iteration[index] - frontier)
    at = put(ws, at, -1)
    for device in range(tab.num_devices):
        at = put(ws, at, ws.used[device])
    if tab.has_latest:
        for cell in range(ws.newest.size):
            # Where no version has ever lain, -window stands, which does not move with the frontier.
            has_lain = ws.newest[cell] > -tab.window
            at = put(ws, at, ws.newest[cell] - (frontier if has_lain else 0))
        for stream in range(tab.stream_device.size):
            op = ws.stream_op[stream]
            if op >= 0:
                for edge in range(tab.in_ptr[op], tab.in_ptr[op + 1]):
                    if tab.in_latest[edge]:
                        at = put(ws, at, ws.reading[edge] - frontier)
    return at


@jit
def put_state(tab: Tables, ws: Workspace, at: int) -> int:
    """Writes all that the future depends on, relative to the time and the frontier."""
    now, frontier = ws.scalars[NOW], ws.scalars[FRONTIER]
    streams = tab.stream_device.size
    for op in range(tab.num_ops):
        if tab.runs[op]:
            at = put(ws, at, ws.done[op] - frontier)
    for slot in range(streams):
        at = put(ws, at, ws.stream_op[slot])
    for active in range(ws.scalars[ACTIVE]):
        # The order of the active list is no part of the state; states that differ in it
        # only are found one recurrence later.
        slot = ws.active_slot[active]
        at = put(ws, at, slot)
        left = ws.active_end[active] - now
        if slot >= streams:
            at = put_record(tab, ws, at, ws.bus_record[slot - streams], left)
        elif ws.stream_op[slot] == COPYING:
            at = put_record(tab, ws, at, ws.stream_record[slot], left)
        else:
            at = put(ws, at, ws.stream_iteration[slot] - frontier)
            at = put(ws, at, left)
    for queue in range(ws.queue_head.size):
        node = ws.queue_head[queue]
        while node >= 0:
            record = ws.node_record[node]
            at = put_record(tab, ws, at, record, ws.record_request[record] == now)
            node = ws.node_next[node]
        at = put(ws, at, -1)
    for latency in range(tab.num_classes):
        record = ws.class_head[latency] if ws.class_time[latency] != IDLE else -1
        while record >= 0:
            at = put_record(tab, ws, at, record, ws.record_arrival[record] - now)
            record = ws.record_next[record]
        at = put(ws, at, -1)
    for index in range(ws.scalars[CREDITS]):
        at = put(ws, at, ws.credit_op[index])
        at = put(ws, at, ws.credit_iteration[index] - frontier)
    at = put(ws, at, -1)
    if ws.scalars[MEMORY]:
        at = put_memory(tab, ws, at)
    return at


@jit
def state_recurs(tab: Tables, ws: Workspace) -> bool:
    """Saves the state at the moment E_i; True if an earlier moment had the same relative state.

    Requirements that are met follow from the iterations done, the transfers on their way and the
    pending credits, so they are not saved; bytes in memory are.
    """
    count = ws.scalars[STATES]
    start = ws.history_start[count]
    end = put_state(tab, ws, start)
    if end < 0:
        ws.scalars[LIMITED] = 1
        return False
    size, digest = end - start, np.uint64(1469598103934665603)
    for at in range(start, end):
        digest = (digest ^ np.uint64(ws.history[at])) * np.uint64(1099511628211)
    ws.history_hash[count] = np.int64(digest)
    ws.history_time[count] = ws.scalars[NOW]
    ws.history_iteration[count] = ws.scalars[FRONTIER]
    ws.history_start[count + 1] = end
    ws.scalars[STATES] = count + 1
    for state in range(count - 1, -1, -1):
        if ws.history_hash[state] != ws.history_hash[count]:
            continue
        other = ws.history_start[state]
        if ws.history_start[state + 1] - other != size:
            continue
        equal = True
        for offset in range(size):
            if ws.history[other + offset] != ws.history[start + offset]:
                equal = False
                break
        if equal:
            ws.scalars[PERIOD_NS] = ws.scalars[NOW] - ws.history_time[state]
            ws.scalars[PERIOD_ITERATIONS] = ws.scalars[FRONTIER] - ws.history_iteration[state]
            return True
    return False
