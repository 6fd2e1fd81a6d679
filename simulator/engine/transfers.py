"""Transfers: sorted queues of buses and streams, departures and deliveries.

Deliveries of one latency arrive in the order in which they leave, so each latency has one list.
"""

from simulator.engine.jit import (
    ACTIVE,
    FREE_RECORD,
    IDLE,
    MEMORY,
    NOW,
    RECORDS,
    ROUND,
    SENT,
    TOUCHED,
    TRACED,
    TRANSFERS,
    inlined,
    jit,
)
from simulator.engine.ready_sets import mark_dirty, satisfy
from simulator.engine.tables import Tables
from simulator.engine.versions import place_version, release
from simulator.engine.workspace import Log, Workspace


@jit
def insert(ws: Workspace, queue: int, node: int, record: int) -> None:
    """Puts a node into a queue that is sorted by (record_round, record_key), from the tail."""
    at = ws.queue_tail[queue]
    while at >= 0:
        other = ws.node_record[at]
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


@jit
def pop_queue(ws: Workspace, queue: int) -> None:
    """Removes the head of a queue."""
    after = ws.node_next[ws.queue_head[queue]]
    ws.queue_head[queue] = after
    if after >= 0:
        ws.node_previous[after] = -1
    else:
        ws.queue_tail[queue] = -1


@jit
def touch(ws: Workspace, bus: int) -> None:
    """The bus has a new head or is free: phase (c) has to look at it."""
    if not ws.is_touched[bus]:
        ws.is_touched[bus] = 1
        ws.touched[ws.scalars[TOUCHED]] = bus
        ws.scalars[TOUCHED] += 1


@jit
def add_active(ws: Workspace, end: int, slot: int) -> None:
    """Adds an outstanding completion."""
    active = ws.scalars[ACTIVE]
    ws.active_end[active] = end
    ws.active_slot[active] = slot
    ws.scalars[ACTIVE] = active + 1


@jit
def start_record(tab: Tables, ws: Workspace, record: int) -> None:
    """The transfer takes memory at its destination from now on."""
    ws.record_start[record] = ws.scalars[NOW]
    if ws.scalars[MEMORY]:
        ws.used[ws.record_dst[record]] += tab.tensor_bytes[ws.record_tensor[record]]


@jit
def depart(tab: Tables, ws: Workspace, record: int, pair: int) -> None:
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


@jit
def deliver(tab: Tables, ws: Workspace, log: Log, record: int) -> None:
    """A tensor is there: its readers are counted, its consumers told, its record is free."""
    tensor, iteration = ws.record_tensor[record], ws.record_iteration[record]
    device = ws.record_dst[record]
    if ws.scalars[MEMORY]:
        place_version(tab, ws, tensor, device, iteration)
    for edge in range(tab.tensor_ptr[tensor], tab.tensor_ptr[tensor + 1]):
        consumer = tab.out_dst[edge]
        if ws.place[consumer] == device:
            satisfy(tab, ws, log, consumer, iteration + tab.out_distance[edge])
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


@inlined
def left_sender(tab: Tables, ws: Workspace, log: Log, record: int) -> None:
    """Buses or stream of a transfer are free again; what has no latency is there at once."""
    src = ws.record_src[record]
    pair = src * tab.num_devices + ws.record_dst[record]
    ws.record_release[record] = ws.scalars[NOW]
    if ws.scalars[MEMORY]:
        release(tab, ws, ws.record_tensor[record], src, ws.record_iteration[record])
    if tab.link_latency[pair] == 0:
        deliver(tab, ws, log, record)
    else:
        depart(tab, ws, record, pair)


@jit
def send(tab: Tables, ws: Workspace, tensor: int, iteration: int, src: int, dst: int) -> bool:
    """Asks for a transfer; returns False if the pair has no link."""
    pair = src * tab.num_devices + dst
    kind = tab.link_kind[pair]
    if kind == -1:
        return False
    record = ws.scalars[FREE_RECORD]
    ws.scalars[FREE_RECORD] = ws.record_next[record]
    ws.scalars[RECORDS] = max(ws.scalars[RECORDS], record + 1)
    op = tab.tensor_op[tensor]
    ws.record_tensor[record], ws.record_iteration[record] = tensor, iteration
    ws.record_src[record], ws.record_dst[record] = src, dst
    ws.record_request[record] = ws.scalars[NOW]
    if kind == 0:
        start_record(tab, ws, record)
        ws.record_release[record] = ws.scalars[NOW]
        depart(tab, ws, record, pair)
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
        insert(ws, tab.num_buses + src, record, record)
        mark_dirty(ws, src)
        return True
    ws.record_round[record] = ws.scalars[NOW]
    node, records = record, ws.record_next.size
    for index in range(tab.link_bus_ptr[pair], tab.link_bus_ptr[pair + 1]):
        bus = tab.link_bus[index]
        insert(ws, bus, node, record)
        touch(ws, bus)
        node += records
    return True


@inlined
def start_transfers(tab: Tables, ws: Workspace) -> None:
    """Phase (c): starts what is first in all its queues and finds all its buses free."""
    for index in range(ws.scalars[TOUCHED]):
        bus = ws.touched[index]
        ws.is_touched[bus] = 0
        node = ws.queue_head[bus]
        if node < 0 or ws.bus_record[bus] >= 0:
            continue
        record = ws.node_record[node]
        pair = ws.record_src[record] * tab.num_devices + ws.record_dst[record]
        first, last = tab.link_bus_ptr[pair], tab.link_bus_ptr[pair + 1]
        can_start = True
        for at in range(first, last):
            wire = tab.link_bus[at]
            head = ws.queue_head[wire]
            if ws.node_record[head] != record or ws.bus_record[wire] >= 0:
                can_start = False
                break
        if not can_start:
            continue
        for at in range(first, last):
            wire = tab.link_bus[at]
            pop_queue(ws, wire)
            ws.bus_record[wire] = record
        start_record(tab, ws, record)
        occupancy = tab.occupancy_ns[ws.record_tensor[record], tab.link_rate[pair]]
        slot = tab.stream_device.size + tab.link_bus[first]
        add_active(ws, ws.scalars[NOW] + occupancy, slot)
    ws.scalars[TOUCHED] = 0
