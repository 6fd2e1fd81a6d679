"""States of a run, saved on its way, and runs of other plans that go on from one of them.

A move changes a run from the moment at which something first asks about what was moved; until then
the run of the plan before is that of the plan after. So a search that walks from plan to plan
saves states of its plan's run, and runs a changed plan from the last state before the change.

Only runs of one iteration that count no bytes are saved (no holds, no durations from outside). A
state is saved between two instants: nothing else happens at its time. Then what waits in queues was
asked for before everything that is asked for later, so ranks may change: keys only decide between
transfers of one instant.

Words of a state: scalars, ops that are ready, requirements, devices, streams, wires, transfers.
"""

import numpy as np

from simulator.engine.jit import (
    ACTIVE,
    FIRST_START,
    IDLE,
    NOW,
    NUM_RESET,
    RECORDS,
    REMAINING,
    STAMP,
    TRANSFERS,
    jit,
    trailing_zeros,
)
from simulator.engine.ready_sets import add_ready
from simulator.engine.tables import Int64, Tables
from simulator.engine.workspace import Log, Workspace


@jit
def next_time(tab: Tables, ws: Workspace) -> int:
    """When the next thing that is in flight ends, IDLE if nothing is."""
    now = IDLE
    for index in range(ws.scalars[ACTIVE]):
        now = min(now, ws.active_end[index])
    for latency in range(tab.num_classes):
        now = min(now, ws.class_time[latency])
    return int(now)


@jit
def save(tab: Tables, ws: Workspace, row: int) -> None:
    """Writes the state between two instants into a row."""
    at = NUM_RESET
    for index in range(NUM_RESET):
        ws.saved[row, index] = ws.scalars[index]
    count, head = 0, at
    at += 1
    for device in range(tab.num_devices):
        if ws.num_ready[device] == 0:
            continue
        for word in range(ws.word_start[device], ws.word_start[device + 1]):
            bits = ws.ready_words[0, word]
            while bits != np.uint64(0):
                op = ws.op_at[(word << 6) + np.int64(trailing_zeros(bits))]
                bits &= bits - np.uint64(1)
                ws.saved[row, at] = op
                at += 1
                count += 1
    ws.saved[row, head] = count
    for op in range(tab.num_ops):
        ws.saved[row, at + op] = ws.missing[0, op]
    at += tab.num_ops
    for device in range(tab.num_devices):
        ws.saved[row, at] = ws.free_streams[device]
        ws.saved[row, at + 1] = ws.running[device]
        ws.saved[row, at + 2] = ws.busy[device]
        at += 3
    for stream in range(ws.stream_op.size):
        ws.saved[row, at] = ws.stream_op[stream]
        ws.saved[row, at + 1] = ws.stream_record[stream]
        at += 2
    for index in range(ws.scalars[ACTIVE]):
        ws.saved[row, at] = ws.active_end[index]
        ws.saved[row, at + 1] = ws.active_slot[index]
        at += 2
    for bus in range(tab.num_buses):
        ws.saved[row, at + bus] = ws.bus_record[bus]
    at += tab.num_buses
    for queue in range(ws.queue_head.size):
        ws.saved[row, at] = ws.queue_head[queue]
        ws.saved[row, at + 1] = ws.queue_tail[queue]
        at += 2
    for latency in range(tab.num_classes):
        ws.saved[row, at] = ws.class_head[latency]
        ws.saved[row, at + 1] = ws.class_tail[latency]
        ws.saved[row, at + 2] = ws.class_time[latency]
        at += 3
    records = ws.scalars[RECORDS]
    for record in range(records):
        ws.saved[row, at] = ws.record_tensor[record]
        ws.saved[row, at + 1] = ws.record_src[record]
        ws.saved[row, at + 2] = ws.record_dst[record]
        ws.saved[row, at + 3] = ws.record_round[record]
        ws.saved[row, at + 4] = ws.record_key[record]
        ws.saved[row, at + 5] = ws.record_request[record]
        ws.saved[row, at + 6] = ws.record_start[record]
        ws.saved[row, at + 7] = ws.record_release[record]
        ws.saved[row, at + 8] = ws.record_arrival[record]
        ws.saved[row, at + 9] = ws.record_next[record]
        at += 10
    for bus in range(tab.max_buses):
        first = bus * ws.record_next.size
        for record in range(records):
            ws.saved[row, at] = ws.node_next[first + record]
            ws.saved[row, at + 1] = ws.node_previous[first + record]
            at += 2


@jit
def restore(tab: Tables, ws: Workspace, row: int) -> None:
    """Brings a state back, after `reset` with the plan that goes on from it."""
    stamp = ws.scalars[STAMP]
    for index in range(NUM_RESET):
        ws.scalars[index] = ws.saved[row, index]
    ws.scalars[STAMP] = stamp
    at = NUM_RESET
    count = ws.saved[row, at]
    at += 1
    for index in range(count):
        add_ready(ws, ws.saved[row, at + index], 0)
    at += count
    for op in range(tab.num_ops):
        ws.missing[0, op] = ws.saved[row, at + op]
    at += tab.num_ops
    for device in range(tab.num_devices):
        ws.free_streams[device] = ws.saved[row, at]
        ws.running[device] = ws.saved[row, at + 1]
        ws.busy[device] = ws.saved[row, at + 2]
        at += 3
    for stream in range(ws.stream_op.size):
        ws.stream_op[stream] = ws.saved[row, at]
        ws.stream_iteration[stream] = 0
        ws.stream_record[stream] = ws.saved[row, at + 1]
        at += 2
    for index in range(ws.scalars[ACTIVE]):
        ws.active_end[index] = ws.saved[row, at]
        ws.active_slot[index] = ws.saved[row, at + 1]
        at += 2
    for bus in range(tab.num_buses):
        ws.bus_record[bus] = ws.saved[row, at + bus]
    at += tab.num_buses
    for queue in range(ws.queue_head.size):
        ws.queue_head[queue] = ws.saved[row, at]
        ws.queue_tail[queue] = ws.saved[row, at + 1]
        at += 2
    for latency in range(tab.num_classes):
        ws.class_head[latency] = ws.saved[row, at]
        ws.class_tail[latency] = ws.saved[row, at + 1]
        ws.class_time[latency] = ws.saved[row, at + 2]
        at += 3
    records = ws.scalars[RECORDS]
    for record in range(records):
        ws.record_tensor[record] = ws.saved[row, at]
        ws.record_src[record] = ws.saved[row, at + 1]
        ws.record_dst[record] = ws.saved[row, at + 2]
        ws.record_round[record] = ws.saved[row, at + 3]
        ws.record_key[record] = ws.saved[row, at + 4]
        ws.record_request[record] = ws.saved[row, at + 5]
        ws.record_start[record] = ws.saved[row, at + 6]
        ws.record_release[record] = ws.saved[row, at + 7]
        ws.record_arrival[record] = ws.saved[row, at + 8]
        ws.record_next[record] = ws.saved[row, at + 9]
        ws.record_iteration[record] = 0
        at += 10
    for bus in range(tab.max_buses):
        first = bus * ws.record_next.size
        for record in range(records):
            ws.node_next[first + record] = ws.saved[row, at]
            ws.node_previous[first + record] = ws.saved[row, at + 1]
            at += 2
    ws.iteration_left[0] = ws.scalars[REMAINING]


@jit
def first_effect(
    tab: Tables,
    log: Log,
    old_places: Int64,
    old_keys: Int64,
    places: Int64,
    keys: Int64,
) -> int:
    """The first instant at which the run of a changed plan may differ from the logged one.

    A device is asked for when a producer ends and when the op is ready (which is no later, but for
    inputs of the iteration before), a priority when the op is ready.
    """
    first = IDLE
    for op in range(tab.num_ops):
        if not tab.runs[op]:
            continue
        if places[op] != old_places[op] or keys[op] != old_keys[op]:
            first = min(first, log.op_ready[0, op])
        if places[op] != old_places[op]:
            for edge in range(tab.in_ptr[op], tab.in_ptr[op + 1]):
                first = min(first, log.op_end[0, tab.tensor_op[tab.in_tensor[edge]]])
    return int(first)


@jit
def least_of_started(tab: Tables, ws: Workspace, base: Log, row: int) -> int:
    """Least makespan of a plan by the ops that have started in the state that it goes on from.

    Args:
        tab: Tables.
        ws: Workspace with the plan and its tails.
        base: Log of the run that saved the state.
        row: The state.
    """
    least, time = np.int64(0), ws.saved[row, NOW]
    for op in range(tab.num_ops):
        if not tab.runs[op] or base.op_ready[0, op] > time:
            continue  # it may lie on another device now, which takes another time to dispatch
        if base.op_start[0, op] - tab.dispatch_ns[ws.place[op]] <= time:
            least = max(least, base.op_end[0, op] + ws.tail_ns[op])
    return int(least - ws.saved[row, FIRST_START])


@jit
def complete_log(tab: Tables, ws: Workspace, base: Log, log: Log, row: int) -> None:
    """Copies from the log of the run that was gone on from what it had written by then."""
    time = ws.saved[row, NOW]
    for op in range(tab.num_ops):
        if tab.runs[op] and base.op_ready[0, op] <= time:
            log.op_ready[0, op] = base.op_ready[0, op]
            if base.op_start[0, op] - tab.dispatch_ns[ws.place[op]] <= time:
                log.op_start[0, op] = base.op_start[0, op]
                log.op_end[0, op] = base.op_end[0, op]
                log.op_stream[0, op] = base.op_stream[0, op]
    for transfer in range(ws.saved[row, TRANSFERS]):
        for column in range(8):
            log.transfers[transfer, column] = base.transfers[transfer, column]
