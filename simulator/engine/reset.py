"""What a run begins with: the plan in the workspace, empty sets, initial versions in memory."""

from simulator.engine.jit import (
    FINDS_PERIOD,
    FIRST_START,
    FREE,
    HOLDS,
    IDLE,
    LIMITED,
    MEMORY,
    NUM_RESET,
    REMAINING,
    STAMP,
    jit,
)
from simulator.engine.ready_sets import rank_ops
from simulator.engine.tables import Int64, Tables
from simulator.engine.versions import place_version
from simulator.engine.workspace import Workspace


@jit
def illegal_op(tab: Tables, ws: Workspace) -> int:
    """First op whose device is out of range, not allowed or not that of its group, or -1."""
    for op in range(tab.num_ops):
        device = ws.place[op]
        if not tab.runs[op]:
            continue
        if device < 0 or device >= tab.num_devices or not tab.allowed[op, device]:
            return op
        if ws.place[tab.leader[op]] != device:
            return op
    return -1


@jit
def load_plan(
    tab: Tables,
    ws: Workspace,
    places: Int64,
    priorities: Int64,
    holds: Int64,
    first_hold: int,
    last_hold: int,
    plan: int,
) -> None:
    """Copies placement, holds and ranks of one plan into the workspace."""
    for op in range(tab.num_ops):
        ws.place[op] = places[plan, op]
    ws.scalars[HOLDS] = last_hold - first_hold
    for hold in range(ws.scalars[HOLDS]):
        for column in range(3):
            ws.holds[hold, column] = holds[first_hold + hold, column]
    rank_ops(ws, priorities, plan)


@jit
def load_durations(tab: Tables, ws: Workspace, durations: Int64, iterations: int, row: int) -> None:
    """Copies the durations of one replica into the workspace; one row stands for all iterations."""
    for iteration in range(iterations):
        given = min(iteration, durations.shape[1] - 1)
        for op in range(tab.num_ops):
            ws.durations[iteration, op] = durations[row, given, op]


@jit
def reset(tab: Tables, ws: Workspace, iterations: int) -> None:
    """Everything as it is before the first round, initial versions in memory."""
    for index in range(NUM_RESET):
        ws.scalars[index] = 0
    ws.scalars[FIRST_START] = IDLE
    ws.scalars[LIMITED] = 0 if ws.scalars[FINDS_PERIOD] else 1
    for record in range(ws.record_next.size):
        ws.record_next[record] = record + 1
    for latency in range(tab.num_classes):
        ws.class_time[latency] = IDLE
    for queue in range(ws.queue_head.size):
        ws.queue_head[queue], ws.queue_tail[queue] = -1, -1
    for bus in range(tab.num_buses):
        ws.bus_record[bus], ws.is_touched[bus] = -1, 0
    for stream in range(ws.stream_op.size):
        ws.stream_op[stream] = FREE
    if iterations > 1:
        for op in range(tab.num_ops):
            ws.done[op], ws.requirements[op] = 0, tab.requirements[op]
    for slot in range(min(tab.slots, iterations)):
        for op in range(tab.num_ops):
            ws.missing[slot, op] = tab.initial[slot, op]
    if ws.scalars[HOLDS]:
        reset_holds(tab, ws)
    for device in range(tab.num_devices):
        ws.free_streams[device] = tab.stream_start[device + 1] - tab.stream_start[device]
        ws.served[device], ws.running[device], ws.busy[device] = 0, 0, 0
        ws.is_dirty[device] = 0
    reset_ready(tab, ws, iterations)
    if ws.scalars[MEMORY]:
        reset_memory(tab, ws)


@jit
def reset_holds(tab: Tables, ws: Workspace) -> None:
    """Lists the holds by op and counts them as requirements."""
    for op in range(tab.num_ops):
        ws.hold_by_before[op], ws.hold_by_after[op] = -1, -1
    for hold in range(ws.scalars[HOLDS]):
        before, after = ws.holds[hold, 0], ws.holds[hold, 1]
        ws.hold_next_before[hold] = ws.hold_by_before[before]
        ws.hold_by_before[before] = hold
        ws.hold_next_after[hold] = ws.hold_by_after[after]
        ws.hold_by_after[after] = hold
        ws.requirements[after] += 1
        for slot in range(tab.slots):
            ws.missing[slot, after] += 1
        if ws.holds[hold, 2]:
            ws.requirements[before] += 1
            for slot in range(tab.window, tab.slots):
                ws.missing[slot, before] += 1


@jit
def reset_ready(tab: Tables, ws: Workspace, iterations: int) -> None:
    """Gives each op its bit, by device and rank, and empties the ready sets."""
    devices = tab.num_devices
    num_run = 0
    for device in range(devices):
        ws.num_ready[device] = 0
    for op in range(tab.num_ops):
        if tab.runs[op]:
            ws.num_ready[ws.place[op]] += 1
            num_run += 1
    ws.word_start[0] = 0
    for device in range(devices):
        ws.word_start[device + 1] = ws.word_start[device] + (ws.num_ready[device] + 63) // 64
    for device in range(devices):
        ws.num_ready[device] = ws.word_start[device] * 64
    for index in range(tab.num_ops):
        op = ws.order[index]
        if tab.runs[op]:
            position = ws.num_ready[ws.place[op]]
            ws.num_ready[ws.place[op]] += 1
            ws.position[op] = position
            ws.op_at[position] = op
    words = ws.word_start[devices]
    for device in range(devices):
        ws.num_ready[device], ws.first_iteration[device] = 0, iterations
    for iteration in range(iterations):
        ws.iteration_left[iteration] = num_run
        for word in range(words):
            ws.ready_words[iteration, word] = 0
        for device in range(devices):
            ws.ready_count[iteration, device], ws.ready_hint[iteration, device] = 0, words
    ws.scalars[REMAINING] = num_run * iterations


@jit
def fill_lasting(tab: Tables, ws: Workspace) -> None:
    """Sets the used bytes of each device to group state and resident inputs, which never go."""
    for device in range(tab.num_devices):
        ws.used[device] = 0
    for group in range(tab.group_leader.size):
        ws.used[ws.place[tab.group_leader[group]]] += tab.group_state[group]
    for tensor in range(tab.resident_bytes.size):
        ws.scalars[STAMP] += 1
        for index in range(tab.resident_ptr[tensor], tab.resident_ptr[tensor + 1]):
            device = ws.place[tab.resident_dst[index]]
            if ws.served[device] != ws.scalars[STAMP]:
                ws.served[device] = ws.scalars[STAMP]
                ws.used[device] += tab.resident_bytes[tensor]


@jit
def reset_memory(tab: Tables, ws: Workspace) -> None:
    """Group state, resident inputs and initial versions lie in memory at t = 0."""
    fill_lasting(tab, ws)
    for device in range(tab.num_devices):
        ws.peak[device] = 0
    for cell in range(ws.newest.size):
        ws.newest[cell] = -tab.window
    for tensor in range(tab.tensor_op.size):
        if tab.tensor_distance[tensor] == 0:
            continue
        for device in range(tab.num_devices):
            count = 0
            for edge in range(tab.tensor_ptr[tensor], tab.tensor_ptr[tensor + 1]):
                if ws.place[tab.out_dst[edge]] == device:
                    count = max(count, tab.out_distance[edge])
            for version in range(-count, 0):
                ws.used[device] += tab.tensor_bytes[tensor]
                place_version(tab, ws, tensor, device, version)
