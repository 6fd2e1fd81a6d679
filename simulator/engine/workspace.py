"""Scratch memory of the compiled engine: allocated once per thread, reset by every run.

Legend as in `tables.py`; N iterations, B buses, Q = B + D queues (one per bus, then one per device
for copies that wait for a stream), X transfer records.
"""

import math
from typing import NamedTuple

import numpy as np

from simulator.engine.tables import Bytes, Int32, Int64, Tables

NUM_SCALARS = 30
PADDING = 16  # words before and behind every array


class Workspace(NamedTuple):
    """Mutable state of one run; what each array holds is told where the kernel changes it."""

    scalars: Int64
    place: Int64  # [V] device of each op
    holds: Int64  # [H, 3] before, after, 1 if the pair needs a credit of its own
    rank: Int32  # [V] position by (priority descending, op id)
    order: Int32  # [V] ops in that order
    scratch: Int32  # [V]
    priority: Int64  # [V] priorities that `rank` belongs to
    histogram: Int64  # [257]
    durations: Int64  # [N, V] where they are given from outside
    position: Int32  # [V] bit of the op in the ready sets of its device
    op_at: Int32  # op of each bit
    word_start: Int64  # [D + 1] first word of each device's ready set
    requirements: Int32  # [V] of iterations past the first window, holds included
    missing: Int32  # [slots, V] requirements that are not yet met
    done: Int64  # [V] iterations done
    ready_words: np.ndarray  # uint64 [N, words]
    ready_count: Int64  # [N, D]
    ready_hint: Int64  # [N, D] no word below it has a bit
    first_iteration: Int64  # [D] no iteration below it has a ready op
    num_ready: Int64  # [D]
    is_dirty: Bytes  # [D]
    dirty: Int64  # [D]
    free_streams: Int64  # [D]
    running: Int64  # [D] ops that run
    busy: Int64  # [D] by domain: devices that run an op
    stream_op: Int64  # [S] op, FREE or COPYING
    stream_iteration: Int64  # [S]
    stream_record: Int64  # [S] transfer record of a copy
    active_end: Int64  # [S + B] outstanding completions, compact
    active_slot: Int64  # [S + B] stream, or S + first bus of a transfer
    started: Int64  # [S] streams whose ops were started in this round
    bus_record: Int64  # [B] transfer that holds the bus, or -1
    is_touched: Bytes  # [B]
    touched: Int64  # [B] buses whose queue or holder changed in this round
    queue_head: Int64  # [Q] nodes
    queue_tail: Int64  # [Q]
    node_record: Int64  # [max_buses * X] record of each node
    node_next: Int64  # [max_buses, X] node = k * X + record: k-th bus of the record's link
    node_previous: Int64
    record_tensor: Int64  # [X]
    record_iteration: Int64
    record_src: Int64
    record_dst: Int64
    record_round: Int64  # first queue key: request time on buses, round number on streams
    record_key: Int64  # second queue key: (iteration, rank, output, destination)
    record_request: Int64
    record_start: Int64
    record_release: Int64
    record_arrival: Int64
    record_next: Int64  # free list, or the next delivery of the same latency
    class_head: Int64  # [C] deliveries on their way, by latency
    class_tail: Int64  # [C]
    class_time: Int64  # [C] arrival of the head, or IDLE
    credit_op: Int64  # credits that arrive in the next round
    credit_iteration: Int64
    sent_tensor: Int64  # zero-copy sends that are reported in the next round
    sent_device: Int64
    sent_iteration: Int64
    served: Int64  # [D] stamps
    iteration_left: Int64  # [N] ops that have not ended
    ends: Int64  # [N] E_i
    used: Int64  # [D] bytes
    peak: Int64  # [D]
    readers: Int64  # [T, D, slots] readers left of a version
    newest: Int64  # [T, D] newest version of tensors with `latest` edges
    reading: Int64  # [E] version that a `latest` in-edge reads now
    hold_by_before: Int64  # [V] first hold, -1 = none
    hold_by_after: Int64  # [V]
    hold_next_before: Int64
    hold_next_after: Int64
    tail_ns: Int64  # [V] least time from the op's end to the end of the pass
    path_ns: Int64  # [V] the same from its dispatch
    saved: Int64  # [rows, words] states of a run, see `saved.py`
    history: Int64  # relative states, one after the other
    history_start: Int64  # [N + 2]
    history_hash: Int64  # [N + 1]
    history_time: Int64  # [N + 1]
    history_iteration: Int64  # [N + 1]


class Log(NamedTuple):
    """What a traced run writes down; empty arrays where nothing is traced."""

    op_ready: Int64  # [N, V]
    op_start: Int64
    op_end: Int64
    op_stream: Int64
    versions: Int64  # [N, E] by in-edge
    transfers: Int64  # [count, 8]: tensor, iteration, src, dst, request, start, release, arrival


def make_log(tables: Tables, iterations: int) -> Log:
    """Returns an empty log; with 0 iterations one that traces nothing."""
    shape = (iterations, tables.num_ops)
    return Log(
        op_ready=np.zeros(shape, np.int64),
        op_start=np.zeros(shape, np.int64),
        op_end=np.zeros(shape, np.int64),
        op_stream=np.zeros(shape, np.int64),
        versions=np.zeros((iterations, len(tables.in_tensor)), np.int64),
        transfers=np.zeros((iterations * tables.num_pairs, 8), np.int64),
    )


def make_workspace(
    tables: Tables,
    iterations: int,
    num_holds: int,
    memory: bool,
    recurrence: bool,
    noise: bool,
    marks: int = 0,
) -> Workspace:
    """Returns scratch memory for runs of at most `iterations` iterations.

    Args:
        tables: What is run.
        iterations: Iterations of one run.
        num_holds: Most holds of a plan.
        memory: True if the runs count bytes.
        recurrence: True if the runs look for a recurring state.
        noise: True if durations are given from outside.
        marks: States that are saved of a run; there is room for those of two runs.
    """
    ops, devices, buses = tables.num_ops, tables.num_devices, tables.num_buses
    streams, classes = len(tables.stream_device), tables.num_classes
    tensors, records = len(tables.tensor_op), tables.num_pairs * min(iterations, tables.slots) + 1
    words = ops // 64 + devices + 1
    state = ops + 8 * streams + 4 * (buses + records) + 2 * devices + classes + 64
    if memory:
        state += tensors * devices + len(tables.in_tensor)
    history = (iterations + 1) * state if recurrence else 0

    def i64(*shape: int) -> Int64:
        # Two threads never write to one cache line (two, where lines are fetched in pairs).
        size = math.prod(shape)
        return np.zeros(size + 2 * PADDING, np.int64)[PADDING : PADDING + size].reshape(shape)

    return Workspace(
        scalars=i64(NUM_SCALARS),
        place=i64(ops),
        holds=i64(num_holds, 3),
        rank=np.zeros(ops, np.int32),
        order=np.zeros(ops, np.int32),
        scratch=np.zeros(ops, np.int32),
        priority=i64(ops),
        histogram=i64(257),
        durations=i64(iterations if noise else 0, ops),
        position=np.zeros(ops, np.int32),
        op_at=np.zeros(words * 64, np.int32),
        word_start=i64(devices + 1),
        requirements=np.zeros(ops, np.int32),
        missing=np.zeros((tables.slots, ops), np.int32),
        done=i64(ops),
        ready_words=np.zeros((iterations, words), np.uint64),
        ready_count=i64(iterations, devices),
        ready_hint=i64(iterations, devices),
        first_iteration=i64(devices),
        num_ready=i64(devices),
        is_dirty=np.zeros(devices, np.uint8),
        dirty=i64(devices),
        free_streams=i64(devices),
        running=i64(devices),
        busy=i64(devices),
        stream_op=i64(streams),
        stream_iteration=i64(streams),
        stream_record=i64(streams),
        active_end=i64(streams + buses),
        active_slot=i64(streams + buses),
        started=i64(streams),
        bus_record=i64(buses),
        is_touched=np.zeros(buses, np.uint8),
        touched=i64(buses),
        queue_head=i64(buses + devices),
        queue_tail=i64(buses + devices),
        node_record=np.tile(np.arange(records), tables.max_buses),
        node_next=i64(tables.max_buses * records),
        node_previous=i64(tables.max_buses * records),
        record_tensor=i64(records),
        record_iteration=i64(records),
        record_src=i64(records),
        record_dst=i64(records),
        record_round=i64(records),
        record_key=i64(records),
        record_request=i64(records),
        record_start=i64(records),
        record_release=i64(records),
        record_arrival=i64(records),
        record_next=i64(records),
        class_head=i64(classes),
        class_tail=i64(classes),
        class_time=i64(classes),
        credit_op=i64(len(tables.credit_op) + 1),
        credit_iteration=i64(len(tables.credit_op) + 1),
        sent_tensor=i64(tables.num_pairs + 1),
        sent_device=i64(tables.num_pairs + 1),
        sent_iteration=i64(tables.num_pairs + 1),
        served=i64(devices),
        iteration_left=i64(iterations),
        ends=i64(iterations),
        used=i64(devices),
        peak=i64(devices),
        readers=i64(tensors * devices * tables.slots if memory else 0),
        newest=i64(tensors * devices if memory else 0),
        reading=i64(len(tables.in_tensor)),
        hold_by_before=i64(ops if num_holds else 0),
        hold_by_after=i64(ops if num_holds else 0),
        hold_next_before=i64(num_holds),
        hold_next_after=i64(num_holds),
        tail_ns=i64(ops),
        path_ns=i64(ops),
        saved=i64(2 * marks, _state_words(tables, records) if marks else 0),
        history=i64(history),
        history_start=i64(iterations + 2),
        history_hash=i64(iterations + 1),
        history_time=i64(iterations + 1),
        history_iteration=i64(iterations + 1),
    )


def _state_words(tables: Tables, records: int) -> int:
    """Words of a saved state at most (see `saved.py`)."""
    ops, devices, buses = tables.num_ops, tables.num_devices, tables.num_buses
    words = NUM_SCALARS + 1 + 2 * ops + 3 * devices + 4 * len(tables.stream_device) + 3 * buses
    words += 2 * (buses + devices) + 3 * tables.num_classes
    return words + (10 + 2 * tables.max_buses) * records
