"""Moves on the critical path: what a run waited for, read from its log, and moves that may end it.

A makespan falls only if the chain of ops, transfers and waits that ends with the last op gets
shorter. So the chain is followed back through the log of an accepted run: an op waited for the op
before it on its device, or for the last of its inputs, and a transfer for the one before it on its
wire. Each link of the chain gives moves: an op elsewhere, consumer to producer or producer to
consumer, both in the order of the queue exchanged.

Arrays: `V` ops, `U` units, `N` moves, each a row (kind, unit or op, device or op).

Source: Nowicki and Smutnicki 1996 (moves on the critical path of a job shop), with transfers.
"""

from typing import Any

import numpy as np

from doppler.planners.anneal_core import MoveTables, below, is_legal, uniform
from doppler.planners.anneal_moves import move_cluster, move_with_followers, swap_units
from doppler.planners.mask import Ints
from simulator.engine.jit import jit

SHARE = 0.8
"""Part of the moves that are critical, once a chain knows its critical path."""

ANYWHERE, THERE, EXCHANGE_KEYS = 0, 1, 2
MOVES_PER_OP = 4
MAX_TRIES = 8
MOST_WAITS = 64

# Each constant is where the share of its way to move a unit ends; the rest are swaps of two units.
ALONE, CLUSTER = 0.53, 0.94


def room(num_ops: int) -> int:
    """Returns how many moves of a path are kept at most."""
    return MOVES_PER_OP * num_ops + 8


@jit
def find_path(
    tab: Any, log: Any, num_transfers: int, t: MoveTables, devices_U: Ints, moves_N3: Ints
) -> int:
    """Fills `moves_N3` with what the last run's critical path suggests; returns how many.

    Args:
        tab: Tables of the engine.
        log: Log of a run of one iteration, not stopped early.
        num_transfers: Rows of the log's transfers.
        t: Moves.
        devices_U: Device of each unit in that run.
        moves_N3: Filled.
    """
    num_ops = t.unit_V.size
    ends_H, releases_H = new_table(num_ops), new_table(num_transfers)
    for other in range(num_ops):
        if tab.runs[other]:
            put(ends_H, log.op_end[0, other], other)
    rows_TD = np.empty(tab.tensor_op.size * tab.num_devices, np.int64)
    for row in range(num_transfers):
        put(releases_H, log.transfers[row, 6], row)
        rows_TD[log.transfers[row, 0] * tab.num_devices + log.transfers[row, 3]] = row
    op, count, last = -1, 0, -1
    for other in range(t.unit_V.size):
        if t.unit_V[other] >= 0 and tab.runs[other] and log.op_end[0, other] > last:
            op, last = other, log.op_end[0, other]
    for _ in range(2 * t.unit_V.size):
        if op < 0 or t.unit_V[op] < 0 or count + 4 > moves_N3.shape[0]:
            break
        unit = t.unit_V[op]
        device = devices_U[unit]
        count = _add(moves_N3, count, ANYWHERE, unit, 0)
        now, ready = log.op_start[0, op] - tab.dispatch_ns[device], log.op_ready[0, op]
        before = -1
        if ready < now:
            before = _before_on_stream(log, t, devices_U, op, device, now, ends_H)
        if before >= 0:
            # It was dispatched while this op was ready: their order is a choice.
            if log.op_start[0, before] - tab.dispatch_ns[device] >= ready:
                count = _add(moves_N3, count, EXCHANGE_KEYS, op, before)
            op = before
            continue
        op, row = _last_input(tab, log, num_transfers, t, devices_U, op, ready, rows_TD)
        if row >= 0:
            count = _add(moves_N3, count, THERE, unit, log.transfers[row, 2])
            if t.unit_V[op] >= 0:
                count = _add(moves_N3, count, THERE, t.unit_V[op], device)
            row, count = _before_on_wire(tab, log, releases_H, t, devices_U, row, moves_N3, count)
            op = tab.tensor_op[log.transfers[row, 0]]
    return count


@jit
def propose_critical(
    t: MoveTables, state: np.uint64, moves_N3: Ints, count: int, devices_U: Ints, keys_V: Ints
) -> tuple[np.uint64, bool]:
    """Makes one legal critical move in place; returns the next state, and False if none was found.

    A unit goes with its neighbours of the same device in half of the cases (53 %), with a connected
    cluster (41 %), or changes places with a random unit (6 %); two keys are exchanged.
    """
    before_U = devices_U.copy()
    for _ in range(MAX_TRIES):
        state, row = below(state, count)
        kind, unit, target = moves_N3[row, 0], moves_N3[row, 1], moves_N3[row, 2]
        if kind == EXCHANGE_KEYS:
            keys_V[unit], keys_V[target] = keys_V[target], keys_V[unit]
            return state, keys_V[unit] != keys_V[target]
        state, u = uniform(state)
        if t.movable.size == 0:
            continue
        if u >= CLUSTER:
            state, index = below(state, t.movable.size)
            moved = swap_units(t, devices_U, unit, t.movable[index])
        else:
            if kind == ANYWHERE:
                state, target = _some_device(t, state, unit, devices_U)
            if u < ALONE:
                state, moved = move_with_followers(t, state, unit, target, devices_U)
            else:
                state, moved = move_cluster(t, state, unit, target, devices_U)
        if moved and is_legal(t, devices_U):
            return state, True
        devices_U[:] = before_U
    return state, False


@jit
def _some_device(
    t: MoveTables, state: np.uint64, unit: int, devices_U: Ints
) -> tuple[np.uint64, int]:
    """Any device, or that of a neighbour, half each."""
    near = t.near_ptr[unit + 1] - t.near_ptr[unit]
    state, u = uniform(state)
    if u < 0.5 or near == 0:
        return below(state, t.limit_D.size)
    state, offset = below(state, near)
    return state, int(devices_U[t.near_unit[t.near_ptr[unit] + offset]])


@jit
def _add(moves_N3: Ints, count: int, kind: int, subject: int, target: int) -> int:
    """Writes a move where there is room; returns how many there are."""
    if count == moves_N3.shape[0]:
        return count
    moves_N3[count, 0], moves_N3[count, 1], moves_N3[count, 2] = kind, subject, target
    return count + 1


@jit
def new_table(count: int) -> Ints:
    """Returns an empty hash table with room for so many rows."""
    size = 4
    while size < 2 * count:
        size *= 2
    return np.full(size, -1)


@jit
def place_of(table_H: Ints, key: int) -> int:
    """Where the rows of a key begin (multiplicative hashing, open addresses)."""
    mixed = (np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
    return int(np.int64(mixed) & (table_H.size - 1))


@jit
def put(table_H: Ints, key: int, row: int) -> None:
    """Adds a row under its key; rows of one key are found in the order in which they came."""
    at = place_of(table_H, key)
    while table_H[at] >= 0:
        at = (at + 1) & (table_H.size - 1)
    table_H[at] = row


@jit
def _before_on_stream(
    log: Any, t: MoveTables, devices_U: Ints, op: int, device: int, now: int, ends_H: Ints
) -> int:
    """The op whose end let `op` begin at `now` on its device, or -1."""
    at = place_of(ends_H, now)
    while ends_H[at] >= 0:
        other = ends_H[at]
        if log.op_end[0, other] == now and other != op:
            unit = t.unit_V[other]
            if unit >= 0 and devices_U[unit] == device:
                return int(other)
        at = (at + 1) & (ends_H.size - 1)
    return -1


@jit
def _last_input(
    tab: Any,
    log: Any,
    num_transfers: int,
    t: MoveTables,
    devices_U: Ints,
    op: int,
    ready: int,
    rows_TD: Ints,
) -> tuple[int, int]:
    """(Producer of the input that came when the op got ready, row of its transfer or -1)."""
    device = devices_U[t.unit_V[op]]
    for edge in range(tab.in_ptr[op], tab.in_ptr[op + 1]):
        tensor = tab.in_tensor[edge]
        producer = tab.tensor_op[tensor]
        unit = t.unit_V[producer]
        if unit >= 0 and devices_U[unit] == device:
            if log.op_end[0, producer] == ready:
                return producer, -1
            continue
        row = rows_TD[tensor * tab.num_devices + device]
        if 0 <= row < num_transfers:  # else nothing was sent, and nothing written there
            sent = log.transfers[row, 0] == tensor and log.transfers[row, 3] == device
            if sent and log.transfers[row, 7] == ready:
                return producer, row
    return -1, -1


@jit
def _before_on_wire(
    tab: Any,
    log: Any,
    releases_H: Ints,
    t: MoveTables,
    devices_U: Ints,
    row: int,
    moves_N3: Ints,
    count: int,
) -> tuple[int, int]:
    """Follows waits for wires back; (first transfer of the queue, moves), what waited moves too."""
    for _ in range(MOST_WAITS):
        start = log.transfers[row, 5]
        if start <= log.transfers[row, 4]:
            break
        src, dst, found = log.transfers[row, 2], log.transfers[row, 3], -1
        at = place_of(releases_H, start)
        while releases_H[at] >= 0:
            other = releases_H[at]
            if log.transfers[other, 6] == start and other != row:
                found = other
                if log.transfers[other, 2] == src or log.transfers[other, 3] == dst:
                    break
            at = (at + 1) & (releases_H.size - 1)
        if found < 0:
            break
        row, src, dst = found, log.transfers[found, 2], log.transfers[found, 3]
        tensor = log.transfers[row, 0]
        unit = t.unit_V[tab.tensor_op[tensor]]
        if unit >= 0:
            count = _add(moves_N3, count, THERE, unit, dst)
        for edge in range(tab.tensor_ptr[tensor], tab.tensor_ptr[tensor + 1]):
            unit = t.unit_V[tab.out_dst[edge]]
            if unit >= 0 and devices_U[unit] == dst:
                count = _add(moves_N3, count, THERE, unit, src)
    return row, count
