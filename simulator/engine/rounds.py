"""The three phases of a round: completions, dispatch, durations (transfers are next door).

Outstanding completions are at most one per stream and one per bus, so the next time is a minimum
over a short compact array; there is no event heap.
"""

from simulator.engine.jit import (
    ACTIVE,
    COPYING,
    CREDITS,
    DIRTY,
    DONE,
    FINDS_PERIOD,
    FIRST_START,
    FREE,
    HOLDS,
    IDLE,
    ITERATIONS,
    LAST_END,
    LIMITED,
    MEMORY,
    NO_LINK_FOR_PAIR,
    NOISE,
    NOW,
    REMAINING,
    ROUND,
    SENT,
    STAMP,
    STARTED,
    TRACED,
    inlined,
    jit,
)
from simulator.engine.ready_sets import mark_dirty, pop_ready, satisfy
from simulator.engine.tables import Tables
from simulator.engine.transfers import (
    add_active,
    deliver,
    left_sender,
    pop_queue,
    send,
    start_record,
    touch,
)
from simulator.engine.versions import place_version, release
from simulator.engine.workspace import Log, Workspace


@jit
def op_ended(tab: Tables, ws: Workspace, log: Log, stream: int) -> bool:
    """Frees the stream, tells local consumers and producers, asks for sends."""
    op, iteration = ws.stream_op[stream], ws.stream_iteration[stream]
    device, memory = ws.place[op], ws.scalars[MEMORY]
    ws.stream_op[stream] = FREE
    ws.free_streams[device] += 1
    ws.running[device] -= 1
    if ws.running[device] == 0:
        ws.busy[tab.domain[device]] -= 1
    mark_dirty(ws, device)
    if ws.scalars[FINDS_PERIOD]:
        ws.done[op] = iteration + 1
    ws.scalars[REMAINING] -= 1
    ws.scalars[LAST_END] = ws.scalars[NOW]
    if iteration + 1 == ws.scalars[ITERATIONS]:
        ws.scalars[LIMITED] = 1
    ws.iteration_left[iteration] -= 1
    satisfy(tab, ws, log, op, iteration + 1)
    for tensor in range(tab.tensor_start[op], tab.tensor_start[op + 1]):
        if memory:
            place_version(tab, ws, tensor, device, iteration)
        ws.scalars[STAMP] += 1
        stamp = ws.scalars[STAMP]
        for edge in range(tab.tensor_ptr[tensor], tab.tensor_ptr[tensor + 1]):
            consumer = tab.out_dst[edge]
            target = ws.place[consumer]
            if target == device:
                satisfy(tab, ws, log, consumer, iteration + tab.out_distance[edge])
            elif ws.served[target] != stamp:
                ws.served[target] = stamp
                if not send(tab, ws, tensor, iteration, device, target):
                    return False
    if ws.scalars[ITERATIONS] > 1:
        return_credits(tab, ws, log, op, iteration)
    if ws.scalars[HOLDS]:
        hold = ws.hold_by_before[op]
        while hold >= 0:
            satisfy(tab, ws, log, ws.holds[hold, 1], iteration)
            hold = ws.hold_next_before[hold]
        hold = ws.hold_by_after[op]
        while hold >= 0:
            if ws.holds[hold, 2]:
                satisfy(tab, ws, log, ws.holds[hold, 0], iteration + tab.window)
            hold = ws.hold_next_after[hold]
    if memory:
        for edge in range(tab.in_ptr[op], tab.in_ptr[op + 1]):
            version = iteration - tab.in_distance[edge]
            if tab.in_latest[edge]:
                version = ws.reading[edge]
            release(tab, ws, tab.in_tensor[edge], device, version)
    return True


@jit
def return_credits(tab: Tables, ws: Workspace, log: Log, op: int, iteration: int) -> None:
    """Local producers get their credit now, those on other devices in the next round."""
    device = ws.place[op]
    for row in range(tab.credit_ptr[op], tab.credit_ptr[op + 1]):
        producer, target = tab.credit_op[row], iteration + tab.credit_distance[row]
        if ws.place[producer] == device:
            satisfy(tab, ws, log, producer, target)
        elif target < ws.scalars[ITERATIONS]:
            count = ws.scalars[CREDITS]
            ws.credit_op[count], ws.credit_iteration[count] = producer, target
            ws.scalars[CREDITS] = count + 1


@jit
def first_free_stream(tab: Tables, ws: Workspace, device: int) -> int:
    """Takes the lowest free stream of a device that has one."""
    stream: int = tab.stream_start[device]
    while ws.stream_op[stream] != FREE:
        stream += 1
    ws.free_streams[device] -= 1
    return stream


@jit
def start_op(tab: Tables, ws: Workspace, log: Log, stream: int, op: int, iteration: int) -> None:
    """Occupies a stream; the end is fixed when all devices have dispatched."""
    device = ws.place[op]
    ws.stream_op[stream], ws.stream_iteration[stream] = op, iteration
    if ws.running[device] == 0:
        ws.busy[tab.domain[device]] += 1
    ws.running[device] += 1
    ws.started[ws.scalars[STARTED]] = stream
    ws.scalars[STARTED] += 1
    if ws.scalars[ITERATIONS] > 1:
        ws.missing[iteration & (tab.slots - 1), op] = ws.requirements[op]
    if ws.scalars[MEMORY]:
        for tensor in range(tab.tensor_start[op], tab.tensor_start[op + 1]):
            ws.used[device] += tab.tensor_bytes[tensor]
        for edge in range(tab.in_ptr[op], tab.in_ptr[op + 1]):
            if tab.in_latest[edge]:
                cell = tab.in_tensor[edge] * tab.num_devices + device
                version = ws.newest[cell]
                ws.readers[cell * tab.slots + (version & (tab.slots - 1))] += 1
                ws.reading[edge] = version
                if ws.scalars[TRACED]:
                    log.versions[iteration, edge] = version


@inlined
def dispatch(tab: Tables, ws: Workspace, log: Log) -> None:
    """Phase (b): copies that wait for a stream first, then ops by (iteration, rank)."""
    for index in range(ws.scalars[DIRTY]):
        device = ws.dirty[index]
        ws.is_dirty[device] = 0
        queue = tab.num_buses + device
        while ws.queue_head[queue] >= 0 and ws.free_streams[device] > 0:
            record = ws.queue_head[queue]
            pop_queue(ws, queue)
            stream = first_free_stream(tab, ws, device)
            ws.stream_op[stream], ws.stream_record[stream] = COPYING, record
            start_record(tab, ws, record)
            rate = tab.link_rate[device * tab.num_devices + ws.record_dst[record]]
            occupancy = tab.occupancy_ns[ws.record_tensor[record], rate]
            add_active(ws, ws.scalars[NOW] + occupancy, stream)
        while ws.num_ready[device] > 0 and ws.free_streams[device] > 0:
            op, iteration = pop_ready(ws, device)
            stream = first_free_stream(tab, ws, device)
            start_op(tab, ws, log, stream, op, iteration)
    ws.scalars[DIRTY] = 0


@inlined
def fix_durations(tab: Tables, ws: Workspace, log: Log, bound: int) -> int:
    """Ends of the ops started in this round; returns a lower bound above `bound`, or -1."""
    for index in range(ws.scalars[STARTED]):
        stream = ws.started[index]
        op, iteration = ws.stream_op[stream], ws.stream_iteration[stream]
        device = ws.place[op]
        duration = tab.op_ns[op, device]
        if ws.scalars[NOISE]:
            duration = ws.durations[iteration, op]
        if tab.has_slowdown and tab.slowdown[op] > 0:
            busy = ws.busy[tab.domain[device]] - 1
            duration = duration * (1000 + busy * tab.slowdown[op]) // 1000
        start = ws.scalars[NOW] + tab.dispatch_ns[device]
        end = start + duration
        ws.scalars[FIRST_START] = min(ws.scalars[FIRST_START], start)
        add_active(ws, end, stream)
        if ws.scalars[TRACED]:
            log.op_start[iteration, op] = start
            log.op_end[iteration, op] = end
            log.op_stream[iteration, op] = stream - tab.stream_start[device]
        if bound != IDLE:
            least: int = end + ws.tail_ns[op] - ws.scalars[FIRST_START]
            if least > bound:
                return least
    ws.scalars[STARTED] = 0
    return -1


@inlined
def complete_slot(tab: Tables, ws: Workspace, log: Log, slot: int) -> bool:
    """A stream or the buses of a transfer are done; returns False if a pair has no link."""
    streams = tab.stream_device.size
    if slot >= streams:
        record = ws.bus_record[slot - streams]
        pair = ws.record_src[record] * tab.num_devices + ws.record_dst[record]
        for at in range(tab.link_bus_ptr[pair], tab.link_bus_ptr[pair + 1]):
            bus = tab.link_bus[at]
            ws.bus_record[bus] = -1
            touch(ws, bus)
        left_sender(tab, ws, log, record)
        return True
    if ws.stream_op[slot] == COPYING:
        device = tab.stream_device[slot]
        ws.stream_op[slot] = FREE
        ws.free_streams[device] += 1
        mark_dirty(ws, device)
        left_sender(tab, ws, log, ws.stream_record[slot])
        return True
    return op_ended(tab, ws, log, slot)


@jit
def complete(tab: Tables, ws: Workspace, log: Log) -> int:
    """Phase (a) at the next time; returns DONE if nothing is in flight, -1 to go on."""
    now = ws.scalars[NOW]
    credits, sent = ws.scalars[CREDITS], ws.scalars[SENT]
    first, several = 0, True
    if credits == 0 and sent == 0:
        now, several = IDLE, False
        for index in range(ws.scalars[ACTIVE]):
            end = ws.active_end[index]
            several = end == now or (several and end > now)
            if end < now:
                now, first = end, index
        for latency in range(tab.num_classes):
            if ws.class_time[latency] < now:
                now, first = ws.class_time[latency], ws.scalars[ACTIVE]
        if now == IDLE:
            return DONE
    ws.scalars[NOW] = now
    ws.scalars[ROUND] += 1
    ws.scalars[CREDITS], ws.scalars[SENT] = 0, 0
    for index in range(credits):
        satisfy(tab, ws, log, ws.credit_op[index], ws.credit_iteration[index])
    for index in range(sent):
        tensor, device = ws.sent_tensor[index], ws.sent_device[index]
        release(tab, ws, tensor, device, ws.sent_iteration[index])
    for latency in range(tab.num_classes):
        while ws.class_time[latency] == now:
            record = ws.class_head[latency]
            after = ws.record_next[record]
            ws.class_head[latency] = after
            ws.class_time[latency] = ws.record_arrival[after] if after >= 0 else IDLE
            deliver(tab, ws, log, record)
    index = first
    while index < ws.scalars[ACTIVE]:
        if ws.active_end[index] != now:
            index += 1
            continue
        slot = ws.active_slot[index]
        last = ws.scalars[ACTIVE] - 1
        ws.active_end[index], ws.active_slot[index] = ws.active_end[last], ws.active_slot[last]
        ws.scalars[ACTIVE] = last
        if not complete_slot(tab, ws, log, slot):
            return NO_LINK_FOR_PAIR
        if not several:
            break
    return -1
