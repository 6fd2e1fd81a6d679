"""Ranks and ready sets: what is ready on a device, in the order of rule 1.

Priorities are fixed during a run, so ops are sorted once; a ready set is a bitset over the ranks of
one device and iteration, with a hint to its first word.
"""

import numpy as np

from simulator.engine.jit import DIRTY, ITERATIONS, NOW, SEEN, TRACED, inlined, jit, trailing_zeros
from simulator.engine.tables import Int64, Tables
from simulator.engine.workspace import Log, Workspace


@jit
def rank_ops(ws: Workspace, priorities: Int64, plan: int) -> None:
    """Fills `rank` and `order`: stable radix sort by priority descending, then op id."""
    count = ws.rank.size
    same = ws.scalars[SEEN] == 1
    for op in range(count):
        if ws.priority[op] != priorities[plan, op]:
            same = False
            ws.priority[op] = priorities[plan, op]
    if same:
        return
    ws.scalars[SEEN] = 1
    largest, smallest = ws.priority[0], ws.priority[0]
    for op in range(count):
        largest, smallest = max(largest, ws.priority[op]), min(smallest, ws.priority[op])
    span = np.uint64(largest) - np.uint64(smallest)
    for op in range(count):
        ws.order[op] = op
    shift = np.uint64(0)
    while shift < np.uint64(64) and (span >> shift) > np.uint64(0):
        for digit in range(257):
            ws.histogram[digit] = 0
        for op in range(count):
            key = np.uint64(largest) - np.uint64(ws.priority[op])
            ws.histogram[np.int64((key >> shift) & np.uint64(255)) + 1] += 1
        for digit in range(256):
            ws.histogram[digit + 1] += ws.histogram[digit]
        for position in range(count):
            moved = ws.order[position]
            key = np.uint64(largest) - np.uint64(ws.priority[moved])
            bucket = np.int64((key >> shift) & np.uint64(255))
            ws.scratch[ws.histogram[bucket]] = moved
            ws.histogram[bucket] += 1
        for position in range(count):
            ws.order[position] = ws.scratch[position]
        shift += np.uint64(8)
    for position in range(count):
        ws.rank[ws.order[position]] = position


@jit
def mark_dirty(ws: Workspace, device: int) -> None:
    """The device has to dispatch in this round."""
    if not ws.is_dirty[device]:
        ws.is_dirty[device] = 1
        ws.dirty[ws.scalars[DIRTY]] = device
        ws.scalars[DIRTY] += 1


@jit
def add_ready(ws: Workspace, op: int, iteration: int) -> None:
    """Sets the op's bit in the ready set of its device and iteration."""
    device, position = ws.place[op], ws.position[op]
    word = position >> 6
    ws.ready_words[iteration, word] |= np.uint64(1) << np.uint64(position & 63)
    ws.ready_hint[iteration, device] = min(ws.ready_hint[iteration, device], word)
    ws.ready_count[iteration, device] += 1
    ws.first_iteration[device] = min(ws.first_iteration[device], iteration)
    ws.num_ready[device] += 1


@jit
def push_ready(ws: Workspace, log: Log, op: int, iteration: int) -> None:
    """Makes an op ready."""
    add_ready(ws, op, iteration)
    mark_dirty(ws, ws.place[op])
    if ws.scalars[TRACED]:
        log.op_ready[iteration, op] = ws.scalars[NOW]


@jit
def pop_ready(ws: Workspace, device: int) -> tuple[int, int]:
    """Removes and returns (op, iteration) of the first ready op by (iteration, rank)."""
    iteration = ws.first_iteration[device]
    while ws.ready_count[iteration, device] == 0:
        iteration += 1
    ws.first_iteration[device] = iteration
    word = ws.ready_hint[iteration, device]
    while ws.ready_words[iteration, word] == np.uint64(0):
        word += 1
    ws.ready_hint[iteration, device] = word
    bits = ws.ready_words[iteration, word]
    ws.ready_words[iteration, word] = bits & (bits - np.uint64(1))
    ws.ready_count[iteration, device] -= 1
    ws.num_ready[device] -= 1
    return ws.op_at[(word << 6) + np.int64(trailing_zeros(bits))], iteration


@inlined
def satisfy(tab: Tables, ws: Workspace, log: Log, op: int, iteration: int) -> None:
    """One requirement less of an op in an iteration; the last one makes it ready."""
    if iteration >= ws.scalars[ITERATIONS]:
        return
    slot = iteration & (tab.slots - 1)
    ws.missing[slot, op] -= 1
    if ws.missing[slot, op] == 0:
        push_ready(ws, log, op, iteration)
