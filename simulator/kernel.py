"""The compiled engine: the same model as `runtime.py`, with flat arrays and no event heap.

Outstanding completions are at most one per stream and one per bus, so the next time is a minimum
over a short compact array. Priorities are fixed during a run, so a ready set is a bitset over ranks
with a hint to its first word. Deliveries of one latency arrive in the order in which they leave, so
each latency has one list. Nothing is allocated during a run.

All functions of the engine are in this file, because numba's cache on disk looks at the file of a
compiled function and at no other.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from doppler.core.runtime import INFEASIBLE_NS

IDLE = np.int64((1 << 63) - 1)
INFEASIBLE = np.int64(INFEASIBLE_NS)
BLOCKED_PLAN = -IDLE
FREE, COPYING = -1, -2

# What a run ends with.
DONE, ABOVE_BOUND, NO_MEMORY, NO_LINK_FOR_PAIR, BLOCKED = 0, 1, 2, 3, 4

# What a run does beside simulating.
COUNT_BYTES, WRITE_LOG, FIND_PERIOD, GIVE_PERIOD = 1, 2, 4, 8

# Indices of Workspace.scalars; the first NUM_RESET are zeroed before each run.
NOW, ROUND, ACTIVE, REMAINING, CREDITS, SENT, TOUCHED, STARTED, DIRTY, FREE_RECORD = range(10)
FRONTIER, FIRST_START, LAST_END, STAMP, TRANSFERS, LIMITED = range(10, 16)
PERIOD_NS, PERIOD_ITERATIONS, STATES, NUM_RESET = range(16, 20)
ITERATIONS, MEMORY, TRACED, HOLDS, NOISE, FINDS_PERIOD, SEEN, CODE = range(20, 28)

_entry: Callable[[Any], Any] = njit(cache=True, nogil=True, error_model="numpy")
_jit: Callable[[Any], Any] = njit(
    nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
)


@intrinsic  # type: ignore[untyped-decorator]
def _trailing_zeros(_typing: Any, _word: Any) -> Any:  # noqa: D103
    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), codegen


@_jit
def _rank_ops(ws, priorities, plan):
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
            op = ws.order[position]
            key = np.uint64(largest) - np.uint64(ws.priority[op])
            digit = np.int64((key >> shift) & np.uint64(255))
            ws.scratch[ws.histogram[digit]] = op
            ws.histogram[digit] += 1
        for position in range(count):
            ws.order[position] = ws.scratch[position]
        shift += np.uint64(8)
    for position in range(count):
        ws.rank[ws.order[position]] = position


@_jit
def _mark_dirty(ws, device):
    if not ws.is_dirty[device]:
        ws.is_dirty[device] = 1
        ws.dirty[ws.scalars[DIRTY]] = device
        ws.scalars[DIRTY] += 1


@_jit
def _push_ready(ws, log, op, iteration):
    device, position = ws.place[op], ws.position[op]
    word = position >> 6
    ws.ready_words[iteration, word] |= np.uint64(1) << np.uint64(position & 63)
    ws.ready_hint[iteration, device] = min(ws.ready_hint[iteration, device], word)
    ws.ready_count[iteration, device] += 1
    ws.first_iteration[device] = min(ws.first_iteration[device], iteration)
    ws.num_ready[device] += 1
    _mark_dirty(ws, device)
    if ws.scalars[TRACED]:
        log.op_ready[iteration, op] = ws.scalars[NOW]


@_jit
def _pop_ready(ws, device):
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
    return ws.op_at[(word << 6) + np.int64(_trailing_zeros(bits))], iteration


@_jit
def _satisfy(tab, ws, log, op, iteration):
    if iteration >= ws.scalars[ITERATIONS]:
        return
    slot = iteration & (tab.slots - 1)
    ws.missing[op, slot] -= 1
    if ws.missing[op, slot] == 0:
        _push_ready(ws, log, op, iteration)


@_jit
def _release(tab, ws, tensor, device, version):
    """One reader less of a version; the last one frees its bytes."""
    index = (tensor * tab.num_devices + device) * tab.slots + (version & (tab.slots - 1))
    ws.readers[index] -= 1
    if ws.readers[index] == 0:
        ws.used[device] -= tab.tensor_bytes[tensor]


@_jit
def _place_version(tab, ws, tensor, device, version):
    """Counts the readers of a version that is now in memory (its bytes are counted already)."""
    producer = ws.place[tab.tensor_op[tensor]]
    ws.scalars[STAMP] += 1
    stamp = ws.scalars[STAMP]
    count, is_latest = 0, False
    for edge in range(tab.tensor_ptr[tensor], tab.tensor_ptr[tensor + 1]):
        target = ws.place[tab.out_dst[edge]]
        if target == device:
            if tab.out_latest[edge]:
                is_latest = True
            elif version >= 0 or tab.out_distance[edge] >= -version:
                count += 1
        elif version >= 0 and device == producer and ws.served[target] != stamp:
            ws.served[target] = stamp
            count += 1
    index = (tensor * tab.num_devices + device) * tab.slots + (version & (tab.slots - 1))
    cell = tensor * tab.num_devices + device
    older = ws.newest[cell]
    newer = is_latest and version > older
    ws.readers[index] = count + (1 if newer else 0)
    if ws.readers[index] == 0:
        ws.used[device] -= tab.tensor_bytes[tensor]
    if newer:
        ws.newest[cell] = version
        if older > -tab.window:
            _release(tab, ws, tensor, device, older)


@_jit
def _insert(ws, queue, node, record):
    """Puts a node into a queue that is sorted by (record_round, record_key), from the tail."""
    records = ws.record_next.size
    at = ws.queue_tail[queue]
    while at >= 0:
        other = at % records
        if ws.record_round[other] < ws.record_round[record] or (
            ws.record_round[other] == ws.record_round[record]
            and ws.record_key[other] < ws.record_key[record]
        ):
            break
        at = ws.node_previous[at]
    ws.node_previous[node] = at
    if at >= 0:
        after = ws.node_next[at]
        ws.node_next[at] = node
    else:
        after = ws.queue_head[queue]
        ws.queue_head[queue] = node
    ws.node_next[node] = after
    if after >= 0:
        ws.node_previous[after] = node
    else:
        ws.queue_tail[queue] = node


@_jit
def _pop_queue(ws, queue):
    after = ws.node_next[ws.queue_head[queue]]
    ws.queue_head[queue] = after
    if after >= 0:
        ws.node_previous[after] = -1
    else:
        ws.queue_tail[queue] = -1


@_jit
def _touch(ws, bus):
    if not ws.is_touched[bus]:
        ws.is_touched[bus] = 1
        ws.touched[ws.scalars[TOUCHED]] = bus
        ws.scalars[TOUCHED] += 1


@_jit
def _add_active(ws, end, slot):
    active = ws.scalars[ACTIVE]
    ws.active_end[active] = end
    ws.active_slot[active] = slot
    ws.scalars[ACTIVE] = active + 1


@_jit
def _start_record(tab, ws, record):
    ws.record_start[record] = ws.scalars[NOW]
    if ws.scalars[MEMORY]:
        ws.used[ws.record_dst[record]] += tab.tensor_bytes[ws.record_tensor[record]]


@_jit
def _depart(tab, ws, record, pair):
    """The record is on its way: it arrives after the latency, in the order of departures."""
    arrival = ws.scalars[NOW] + tab.link_latency[pair]
    ws.record_arrival[record] = arrival
    ws.record_next[record] = -1
    latency = tab.link_class[pair]
    if ws.class_time[latency] == IDLE:
        ws.class_head[latency] = record
        ws.class_time[latency] = arrival
    else:
        ws.record_next[ws.class_tail[latency]] = record
    ws.class_tail[latency] = record


@_jit
def _deliver(tab, ws, log, record):
    tensor, iteration = ws.record_tensor[record], ws.record_iteration[record]
    device = ws.record_dst[record]
    if ws.scalars[MEMORY]:
        _place_version(tab, ws, tensor, device, iteration)
    for edge in range(tab.tensor_ptr[tensor], tab.tensor_ptr[tensor + 1]):
        consumer = tab.out_dst[edge]
        if ws.place[consumer] == device:
            _satisfy(tab, ws, log, consumer, iteration + tab.out_distance[edge])
    if ws.scalars[TRACED]:
        row = ws.scalars[TRANSFERS]
        ws.scalars[TRANSFERS] = row + 1
        log.transfers[row, 0], log.transfers[row, 1] = tensor, iteration
        log.transfers[row, 2], log.transfers[row, 3] = ws.record_src[record], device
        log.transfers[row, 4] = ws.record_request[record]
        log.transfers[row, 5] = ws.record_start[record]
        log.transfers[row, 6] = ws.record_release[record]
        log.transfers[row, 7] = ws.scalars[NOW]
    ws.record_next[record] = ws.scalars[FREE_RECORD]
    ws.scalars[FREE_RECORD] = record


@_jit
def _left_sender(tab, ws, log, record):
    """Buses or stream of a transfer are free again; what has no latency is there at once."""
    src = ws.record_src[record]
    pair = src * tab.num_devices + ws.record_dst[record]
    ws.record_release[record] = ws.scalars[NOW]
    if ws.scalars[MEMORY]:
        _release(tab, ws, ws.record_tensor[record], src, ws.record_iteration[record])
    if tab.link_latency[pair] == 0:
        _deliver(tab, ws, log, record)
    else:
        _depart(tab, ws, record, pair)


@_jit
def _send(tab, ws, tensor, iteration, src, dst):
    """Asks for a transfer; returns False if the pair has no link."""
    pair = src * tab.num_devices + dst
    kind = tab.link_kind[pair]
    if kind == -1:
        return False
    record = ws.scalars[FREE_RECORD]
    ws.scalars[FREE_RECORD] = ws.record_next[record]
    op = tab.tensor_op[tensor]
    ws.record_tensor[record], ws.record_iteration[record] = tensor, iteration
    ws.record_src[record], ws.record_dst[record] = src, dst
    ws.record_request[record] = ws.scalars[NOW]
    if kind == 0:
        _start_record(tab, ws, record)
        ws.record_release[record] = ws.scalars[NOW]
        _depart(tab, ws, record, pair)
        if ws.scalars[MEMORY]:
            sent = ws.scalars[SENT]
            ws.sent_tensor[sent], ws.sent_device[sent] = tensor, src
            ws.sent_iteration[sent] = iteration
            ws.scalars[SENT] = sent + 1
        return True
    rank = iteration * tab.num_ops + ws.rank[op]
    num_tensors = tab.tensor_op.size
    key = rank * num_tensors + (tensor - tab.tensor_start[op])
    ws.record_key[record] = key * tab.num_devices + dst
    if kind == 2:
        ws.record_round[record] = ws.scalars[ROUND]
        _insert(ws, tab.num_buses + src, record, record)
        _mark_dirty(ws, src)
        return True
    ws.record_round[record] = ws.scalars[NOW]
    node, records = record, ws.record_next.size
    for index in range(tab.link_bus_ptr[pair], tab.link_bus_ptr[pair + 1]):
        bus = tab.link_bus[index]
        _insert(ws, bus, node, record)
        _touch(ws, bus)
        node += records
    return True


@_jit
def _op_ended(tab, ws, log, stream):
    """Frees the stream, tells local consumers and producers, asks for sends."""
    op, iteration = ws.stream_op[stream], ws.stream_iteration[stream]
    device, memory = ws.place[op], ws.scalars[MEMORY]
    ws.stream_op[stream] = FREE
    ws.free_streams[device] += 1
    ws.running[device] -= 1
    if ws.running[device] == 0:
        ws.busy[tab.parent[device]] -= 1
    _mark_dirty(ws, device)
    ws.done[op] = iteration + 1
    ws.scalars[REMAINING] -= 1
    ws.scalars[LAST_END] = ws.scalars[NOW]
    if iteration + 1 == ws.scalars[ITERATIONS]:
        ws.scalars[LIMITED] = 1
    ws.iteration_left[iteration] -= 1
    _satisfy(tab, ws, log, op, iteration + 1)
    for tensor in range(tab.tensor_start[op], tab.tensor_start[op + 1]):
        if memory:
            _place_version(tab, ws, tensor, device, iteration)
        ws.scalars[STAMP] += 1
        stamp = ws.scalars[STAMP]
        for edge in range(tab.tensor_ptr[tensor], tab.tensor_ptr[tensor + 1]):
            consumer = tab.out_dst[edge]
            target = ws.place[consumer]
            if target == device:
                _satisfy(tab, ws, log, consumer, iteration + tab.out_distance[edge])
            elif ws.served[target] != stamp:
                ws.served[target] = stamp
                if not _send(tab, ws, tensor, iteration, device, target):
                    return False
    if ws.scalars[ITERATIONS] > 1:
        _return_credits(tab, ws, log, op, iteration)
    if ws.scalars[HOLDS]:
        hold = ws.hold_by_before[op]
        while hold >= 0:
            _satisfy(tab, ws, log, ws.holds[hold, 1], iteration)
            hold = ws.hold_next_before[hold]
        hold = ws.hold_by_after[op]
        while hold >= 0:
            if ws.holds[hold, 2]:
                _satisfy(tab, ws, log, ws.holds[hold, 0], iteration + tab.window)
            hold = ws.hold_next_after[hold]
    if memory:
        for edge in range(tab.in_ptr[op], tab.in_ptr[op + 1]):
            version = iteration - tab.in_distance[edge]
            if tab.in_latest[edge]:
                version = ws.reading[edge]
            _release(tab, ws, tab.in_tensor[edge], device, version)
    return True


@_jit
def _return_credits(tab, ws, log, op, iteration):
    """Local producers get their credit now, those on other devices in the next round."""
    device = ws.place[op]
    for row in range(tab.credit_ptr[op], tab.credit_ptr[op + 1]):
        producer, target = tab.credit_op[row], iteration + tab.credit_distance[row]
        if ws.place[producer] == device:
            _satisfy(tab, ws, log, producer, target)
        elif target < ws.scalars[ITERATIONS]:
            count = ws.scalars[CREDITS]
            ws.credit_op[count], ws.credit_iteration[count] = producer, target
            ws.scalars[CREDITS] = count + 1


@_jit
def _first_free_stream(tab, ws, device):
    stream = tab.stream_start[device]
    while ws.stream_op[stream] != FREE:
        stream += 1
    ws.free_streams[device] -= 1
    return stream


@_jit
def _start_op(tab, ws, log, stream, op, iteration):
    device = ws.place[op]
    ws.stream_op[stream], ws.stream_iteration[stream] = op, iteration
    if ws.running[device] == 0:
        ws.busy[tab.parent[device]] += 1
    ws.running[device] += 1
    ws.started[ws.scalars[STARTED]] = stream
    ws.scalars[STARTED] += 1
    if ws.scalars[ITERATIONS] > 1:
        ws.missing[op, iteration & (tab.slots - 1)] = ws.requirements[op]
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


@_jit
def _dispatch(tab, ws, log):
    """Phase (b): copies that wait for a stream first, then ops by (iteration, rank)."""
    for index in range(ws.scalars[DIRTY]):
        device = ws.dirty[index]
        ws.is_dirty[device] = 0
        queue = tab.num_buses + device
        while ws.queue_head[queue] >= 0 and ws.free_streams[device] > 0:
            record = ws.queue_head[queue]
            _pop_queue(ws, queue)
            stream = _first_free_stream(tab, ws, device)
            ws.stream_op[stream], ws.stream_record[stream] = COPYING, record
            _start_record(tab, ws, record)
            rate = tab.link_rate[device * tab.num_devices + ws.record_dst[record]]
            occupancy = tab.occupancy_ns[ws.record_tensor[record], rate]
            _add_active(ws, ws.scalars[NOW] + occupancy, stream)
        while ws.num_ready[device] > 0 and ws.free_streams[device] > 0:
            op, iteration = _pop_ready(ws, device)
            stream = _first_free_stream(tab, ws, device)
            _start_op(tab, ws, log, stream, op, iteration)
    ws.scalars[DIRTY] = 0


@_jit
def _fix_durations(tab, ws, log, bound):
    """Ends of the ops started in this round; returns a lower bound above `bound`, or -1."""
    for index in range(ws.scalars[STARTED]):
        stream = ws.started[index]
        op, iteration = ws.stream_op[stream], ws.stream_iteration[stream]
        device = ws.place[op]
        duration = tab.op_ns[op, device]
        if ws.scalars[NOISE]:
            duration = ws.durations[iteration, op]
        if tab.slowdown[op] > 0:
            busy = ws.busy[tab.parent[device]] - 1
            duration = duration * (1000 + busy * tab.slowdown[op]) // 1000
        start = ws.scalars[NOW] + tab.dispatch_ns[device]
        end = start + duration
        ws.scalars[FIRST_START] = min(ws.scalars[FIRST_START], start)
        _add_active(ws, end, stream)
        if ws.scalars[TRACED]:
            log.op_start[iteration, op] = start
            log.op_end[iteration, op] = end
            log.op_stream[iteration, op] = stream - tab.stream_start[device]
        least = end + tab.tail_ns[op] - ws.scalars[FIRST_START]
        if least > bound:
            return least
    ws.scalars[STARTED] = 0
    return -1


@_jit
def _start_transfers(tab, ws):
    """Phase (c): a transfer starts when it is first in all its queues and all its buses are free."""
    records = ws.record_next.size
    for index in range(ws.scalars[TOUCHED]):
        bus = ws.touched[index]
        ws.is_touched[bus] = 0
        node = ws.queue_head[bus]
        if node < 0 or ws.bus_record[bus] >= 0:
            continue
        record = node % records
        pair = ws.record_src[record] * tab.num_devices + ws.record_dst[record]
        first, last = tab.link_bus_ptr[pair], tab.link_bus_ptr[pair + 1]
        can_start = True
        for at in range(first, last):
            wire = tab.link_bus[at]
            head = ws.queue_head[wire]
            if head % records != record or ws.bus_record[wire] >= 0:
                can_start = False
                break
        if not can_start:
            continue
        for at in range(first, last):
            wire = tab.link_bus[at]
            _pop_queue(ws, wire)
            ws.bus_record[wire] = record
        _start_record(tab, ws, record)
        occupancy = tab.occupancy_ns[ws.record_tensor[record], tab.link_rate[pair]]
        slot = tab.stream_device.size + tab.link_bus[first]
        _add_active(ws, ws.scalars[NOW] + occupancy, slot)
    ws.scalars[TOUCHED] = 0


@_jit
def _complete_slot(tab, ws, log, slot):
    """A stream or the buses of a transfer are done; returns False if a pair has no link."""
    streams = tab.stream_device.size
    if slot >= streams:
        record = ws.bus_record[slot - streams]
        pair = ws.record_src[record] * tab.num_devices + ws.record_dst[record]
        for at in range(tab.link_bus_ptr[pair], tab.link_bus_ptr[pair + 1]):
            bus = tab.link_bus[at]
            ws.bus_record[bus] = -1
            _touch(ws, bus)
        _left_sender(tab, ws, log, record)
        return True
    if ws.stream_op[slot] == COPYING:
        device = tab.stream_device[slot]
        ws.stream_op[slot] = FREE
        ws.free_streams[device] += 1
        _mark_dirty(ws, device)
        _left_sender(tab, ws, log, ws.stream_record[slot])
        return True
    return _op_ended(tab, ws, log, slot)


@_jit
def _complete(tab, ws, log):
    """Phase (a) at the next time; returns DONE if nothing is in flight, -1 to go on."""
    now = ws.scalars[NOW]
    credits, sent = ws.scalars[CREDITS], ws.scalars[SENT]
    if credits == 0 and sent == 0:
        now = IDLE
        for index in range(ws.scalars[ACTIVE]):
            now = min(now, ws.active_end[index])
        for latency in range(tab.num_classes):
            now = min(now, ws.class_time[latency])
        if now == IDLE:
            return DONE
    ws.scalars[NOW] = now
    ws.scalars[ROUND] += 1
    ws.scalars[CREDITS], ws.scalars[SENT] = 0, 0
    for index in range(credits):
        _satisfy(tab, ws, log, ws.credit_op[index], ws.credit_iteration[index])
    for index in range(sent):
        tensor, device = ws.sent_tensor[index], ws.sent_device[index]
        _release(tab, ws, tensor, device, ws.sent_iteration[index])
    for latency in range(tab.num_classes):
        while ws.class_time[latency] == now:
            record = ws.class_head[latency]
            after = ws.record_next[record]
            ws.class_head[latency] = after
            ws.class_time[latency] = ws.record_arrival[after] if after >= 0 else IDLE
            _deliver(tab, ws, log, record)
    index = 0
    while index < ws.scalars[ACTIVE]:
        if ws.active_end[index] != now:
            index += 1
            continue
        slot = ws.active_slot[index]
        last = ws.scalars[ACTIVE] - 1
        ws.active_end[index], ws.active_slot[index] = ws.active_end[last], ws.active_slot[last]
        ws.scalars[ACTIVE] = last
        if not _complete_slot(tab, ws, log, slot):
            return NO_LINK_FOR_PAIR
    return -1


@_jit
def _reset(tab, ws, iterations):
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
    for op in range(tab.num_ops):
        ws.done[op], ws.requirements[op] = 0, tab.requirements[op]
        for slot in range(min(tab.slots, iterations)):
            ws.missing[op, slot] = tab.initial[op, slot]
    if ws.scalars[HOLDS]:
        _reset_holds(tab, ws)
    for device in range(tab.num_devices):
        ws.free_streams[device] = tab.stream_start[device + 1] - tab.stream_start[device]
        ws.served[device], ws.running[device], ws.busy[device] = 0, 0, 0
        ws.is_dirty[device] = 0
    _reset_ready(tab, ws, iterations)
    if ws.scalars[MEMORY]:
        _reset_memory(tab, ws)


@_jit
def _reset_holds(tab, ws):
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
            ws.missing[after, slot] += 1
        if ws.holds[hold, 2]:
            ws.requirements[before] += 1
            for slot in range(tab.window, tab.slots):
                ws.missing[before, slot] += 1


@_jit
def _reset_ready(tab, ws, iterations):
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


@_jit
def _reset_memory(tab, ws):
    """Group state, resident inputs and initial versions lie in memory at t = 0."""
    for device in range(tab.num_devices):
        ws.used[device], ws.peak[device] = 0, 0
    for group in range(tab.group_leader.size):
        ws.used[ws.place[tab.group_leader[group]]] += tab.group_state[group]
    for tensor in range(tab.resident_bytes.size):
        ws.scalars[STAMP] += 1
        for index in range(tab.resident_ptr[tensor], tab.resident_ptr[tensor + 1]):
            device = ws.place[tab.resident_dst[index]]
            if ws.served[device] != ws.scalars[STAMP]:
                ws.served[device] = ws.scalars[STAMP]
                ws.used[device] += tab.resident_bytes[tensor]
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
                _place_version(tab, ws, tensor, device, version)


@_jit
def _measure_memory(tab, ws):
    """Takes the peaks after a round; returns False if a device overflows."""
    fits = True
    for device in range(tab.num_devices):
        if ws.used[device] > ws.peak[device]:
            ws.peak[device] = ws.used[device]
            if ws.used[device] > tab.memory_limit[device]:
                fits = False
    return fits


@_jit
def _advance_frontier(ws):
    """Records E_i for every iteration that is complete with all before it; returns how many."""
    advanced = 0
    iterations = ws.scalars[ITERATIONS]
    while ws.scalars[FRONTIER] < iterations and ws.iteration_left[ws.scalars[FRONTIER]] == 0:
        ws.ends[ws.scalars[FRONTIER]] = ws.scalars[LAST_END]
        ws.scalars[FRONTIER] += 1
        advanced += 1
    return advanced


@_jit
def _simulate(tab, ws, log, iterations, bound):
    """Runs the plan that lies in the workspace; returns how it ended."""
    memory = ws.scalars[MEMORY]
    _reset(tab, ws, iterations)
    for op in range(tab.num_ops):
        if tab.runs[op] and ws.missing[op, 0] == 0:
            _push_ready(ws, log, op, 0)
    while True:
        _dispatch(tab, ws, log)
        if ws.scalars[STARTED] > 0:
            least = _fix_durations(tab, ws, log, bound)
            if least >= 0:
                ws.scalars[LAST_END] = least + ws.scalars[FIRST_START]
                return ABOVE_BOUND
        if ws.scalars[TOUCHED] > 0:
            _start_transfers(tab, ws)
        if memory and not _measure_memory(tab, ws) and not ws.scalars[TRACED]:
            return NO_MEMORY
        if _advance_frontier(ws) > 0 and ws.scalars[LIMITED] == 0 and _state_recurs(tab, ws):
            return DONE
        if ws.scalars[REMAINING] == 0 and not memory:
            return DONE
        code = _complete(tab, ws, log)
        if code == DONE:
            return DONE if ws.scalars[REMAINING] == 0 else BLOCKED
        if code > 0:
            return code


@_jit
def _put(ws, at, value):
    """Appends to the history if there is room; returns the next position, or -1."""
    if at < 0 or at >= ws.history.size:
        return -1
    ws.history[at] = value
    return at + 1


@_jit
def _put_record(tab, ws, at, record, moment):
    frontier = ws.scalars[FRONTIER]
    tensor = ws.record_tensor[record]
    at = _put(ws, at, tensor * tab.num_devices + ws.record_dst[record])
    at = _put(ws, at, ws.record_iteration[record] - frontier)
    return _put(ws, at, moment)


@_jit
def _put_state(tab, ws, at):
    """Writes all that the future depends on, relative to the time and the frontier."""
    now, frontier = ws.scalars[NOW], ws.scalars[FRONTIER]
    streams = tab.stream_device.size
    for op in range(tab.num_ops):
        if tab.runs[op]:
            at = _put(ws, at, ws.done[op] - frontier)
    for slot in range(streams):
        at = _put(ws, at, ws.stream_op[slot])
    for active in range(ws.scalars[ACTIVE]):
        # The order of the active list is no part of the state; states that differ in it
        # only are found one recurrence later.
        slot = ws.active_slot[active]
        at = _put(ws, at, slot)
        left = ws.active_end[active] - now
        if slot >= streams:
            at = _put_record(tab, ws, at, ws.bus_record[slot - streams], left)
        elif ws.stream_op[slot] == COPYING:
            at = _put_record(tab, ws, at, ws.stream_record[slot], left)
        else:
            at = _put(ws, at, ws.stream_iteration[slot] - frontier)
            at = _put(ws, at, left)
    for queue in range(ws.queue_head.size):
        node = ws.queue_head[queue]
        while node >= 0:
            record = node % ws.record_next.size
            at = _put_record(tab, ws, at, record, ws.record_request[record] == now)
            node = ws.node_next[node]
        at = _put(ws, at, -1)
    for latency in range(tab.num_classes):
        record = ws.class_head[latency] if ws.class_time[latency] != IDLE else -1
        while record >= 0:
            at = _put_record(tab, ws, at, record, ws.record_arrival[record] - now)
            record = ws.record_next[record]
        at = _put(ws, at, -1)
    for index in range(ws.scalars[CREDITS]):
        at = _put(ws, at, ws.credit_op[index])
        at = _put(ws, at, ws.credit_iteration[index] - frontier)
    at = _put(ws, at, -1)
    if ws.scalars[MEMORY]:
        at = _put_memory(tab, ws, at)
    return at


@_jit
def _put_memory(tab, ws, at):
    frontier = ws.scalars[FRONTIER]
    for index in range(ws.scalars[SENT]):
        at = _put(ws, at, ws.sent_tensor[index] * tab.num_devices + ws.sent_device[index])
        at = _put(ws, at, ws.sent_iteration[index] - frontier)
    at = _put(ws, at, -1)
    for device in range(tab.num_devices):
        at = _put(ws, at, ws.used[device])
    if tab.has_latest:
        for cell in range(ws.newest.size):
            at = _put(ws, at, ws.newest[cell] - frontier)
        for stream in range(tab.stream_device.size):
            op = ws.stream_op[stream]
            if op >= 0:
                for edge in range(tab.in_ptr[op], tab.in_ptr[op + 1]):
                    if tab.in_latest[edge]:
                        at = _put(ws, at, ws.reading[edge] - frontier)
    return at


@_jit
def _state_recurs(tab, ws):
    """Saves the state at the moment E_i; True if an earlier moment had the same relative state.

    Requirements that are met follow from the iterations done, the transfers on their way and the
    pending credits, so they are not saved; bytes in memory are.
    """
    count = ws.scalars[STATES]
    start = ws.history_start[count]
    end = _put_state(tab, ws, start)
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


@_jit
def _illegal_op(tab, ws):
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


@_jit
def _load_plan(tab, ws, places, priorities, holds, first_hold, last_hold, plan):
    for op in range(tab.num_ops):
        ws.place[op] = places[plan, op]
    ws.scalars[HOLDS] = last_hold - first_hold
    for hold in range(ws.scalars[HOLDS]):
        for column in range(3):
            ws.holds[hold, column] = holds[first_hold + hold, column]
    _rank_ops(ws, priorities, plan)


@_jit
def _load_durations(tab, ws, durations, row):
    for iteration in range(durations.shape[1]):
        for op in range(tab.num_ops):
            ws.durations[iteration, op] = durations[row, iteration, op]


@_jit
def _period(ws, iterations):
    """Nanoseconds per iteration, rounded up: the recurrence, or the second half of the run."""
    time, count = ws.scalars[PERIOD_NS], ws.scalars[PERIOD_ITERATIONS]
    if count == 0:
        last, first = iterations - 1, (iterations - 1) // 2
        time, count = ws.ends[last] - ws.ends[first], last - first
    return (time + count - 1) // count


@_entry
def run_plans(
    tab, ws, log, places, priorities, holds, hold_start, durations, bounds, iterations, mode, out
):
    """Runs plans one after the other and fills `out`.

    Args:
        tab, ws, log: Tables, workspace, log.
        places, priorities: int64[B, V], or one row for all.
        holds, hold_start: int64[H, 3] and the rows of each plan, int64[B + 1].
        durations: int64[B, N, V] in place of the costs, or an empty array.
        bounds: int64[B]; a run stops when its makespan must exceed its bound (one iteration).
        iterations: Iterations to run.
        mode: Sum of COUNT_BYTES, WRITE_LOG, FIND_PERIOD, GIVE_PERIOD.
        out: int64[B]: makespan or period, INFEASIBLE, BLOCKED_PLAN, or -1 - op for an op on an
            illegal device.
    """
    ws.scalars[ITERATIONS] = iterations
    ws.scalars[MEMORY], ws.scalars[TRACED] = mode & COUNT_BYTES, mode & WRITE_LOG
    ws.scalars[FINDS_PERIOD], ws.scalars[NOISE] = mode & FIND_PERIOD, durations.size
    for row in range(out.size):
        plan = row if places.shape[0] > 1 else 0
        if plan == row:
            _load_plan(
                tab, ws, places, priorities, holds, hold_start[row], hold_start[row + 1], row
            )
            bad = _illegal_op(tab, ws)
        if bad >= 0:
            out[row] = -1 - bad
            continue
        if durations.size:
            _load_durations(tab, ws, durations, row)
        ws.scalars[CODE] = _simulate(tab, ws, log, iterations, bounds[row])
        out[row] = BLOCKED_PLAN if ws.scalars[CODE] == BLOCKED else INFEASIBLE
        if ws.scalars[CODE] == DONE and mode & GIVE_PERIOD:
            out[row] = _period(ws, iterations)
        elif ws.scalars[CODE] == DONE or ws.scalars[CODE] == ABOVE_BOUND:
            out[row] = ws.scalars[LAST_END] - ws.scalars[FIRST_START]
