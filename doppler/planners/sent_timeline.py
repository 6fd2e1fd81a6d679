"""Makespans of plans by a timeline that sends a tensor when it is made, and lets wires fill gaps.

Ops are taken one after the other, by priority. The devices of all consumers are known, so what an
op makes is sent as soon as the op ends, once per device, through the first gap that all wires of
the route have in common; an op takes the first gap of a stream that holds it. The policies' own
timeline (`doppler.planners.predicted`) sends when a consumer is placed and lets wires only append,
for an episode cannot know better. The runtime, other than both, starts whatever is ready.

Source: Sinnen & Sousa 2005 (list schedules whose transfers hold links, with insertion).

Legend: B plans, V ops, N placed ops, D devices, T tensors, L lanes (streams and wires), K busy
intervals.
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from doppler.planners.list_core import ready_order
from doppler.planners.list_schedule import ListScheduler
from doppler.planners.mask import Ints
from doppler.planners.predicted import TimelineScorer
from doppler.planners.tables import Floats, ListTables
from doppler.policies.assignment import Assignment
from doppler.policies.dual import PolicyInputs
from doppler.policies.tables import Tables
from simulator.machine_code import cached, inlined

MAX_BUSY = 256
"""Busy intervals that a lane remembers; where there are more the earliest one is forgotten."""


class Sends(NamedTuple):
    """What each op makes, and which lanes there are.

    Attributes:
        made_ptr, made: Tensors that each placed op makes and another one reads.
        tensor_bytes: T.
        reader_ptr, reader: Placed ops that read each tensor.
        first_lane: First stream of each device among the lanes; the last entry is that of the
            wires; D + 1.
        num_lanes: Streams and wires.
    """

    made_ptr: Ints
    made: Ints
    tensor_bytes: Floats
    reader_ptr: Ints
    reader: Ints
    first_lane: Ints
    num_lanes: int


class Lanes(NamedTuple):
    """Busy intervals per lane, ascending and apart.

    Attributes:
        start, end: L x K.
        num_busy: Intervals per lane; L.
    """

    start: Floats
    end: Floats
    num_busy: Ints


def sent_timeline(inputs: PolicyInputs, lists: ListScheduler) -> TimelineScorer:
    """Returns predictions by a timeline whose tensors are sent when they are made."""
    sends = make_sends(inputs.assignment)
    return TimelineScorer(inputs.assignment, lists, partial(follow_sends, inputs.tables, sends))


def make_sends(assignment: Assignment) -> Sends:
    """Returns the tensors of an MDP by their producers."""
    tensors = assignment.in_tensor
    num_tensors = int(tensors.max(initial=-1)) + 1
    producer, size = np.zeros(num_tensors, np.int64), np.zeros(num_tensors)
    producer[tensors] = assignment.in_src
    size[tensors] = assignment.in_bytes
    readers = np.repeat(np.arange(assignment.num_ops), np.diff(assignment.in_ptr))
    by_tensor = np.argsort(tensors, kind="stable")
    by_producer = np.argsort(producer, kind="stable")
    first_lane = np.concatenate([[0], np.cumsum(assignment.num_streams)])
    num_wires = int(assignment.bus.max(initial=-1)) + 1
    return Sends(
        made_ptr=_starts(producer[by_producer], assignment.num_ops),
        made=by_producer.astype(np.int64),
        tensor_bytes=size,
        reader_ptr=_starts(tensors[by_tensor], num_tensors),
        reader=readers[by_tensor].astype(np.int64),
        first_lane=first_lane.astype(np.int64),
        num_lanes=int(first_lane[-1]) + num_wires,
    )


def _starts(sorted_rows: Ints, count: int) -> Ints:
    return np.searchsorted(sorted_rows, np.arange(count + 1)).astype(np.int64)


@inlined()
def first_gap(lanes: Lanes, lane: int, ready: float, length: float) -> float:
    """Returns the earliest start at or after `ready` where a lane is idle for `length`."""
    at = lanes.num_busy[lane]
    while at > 0 and lanes.end[lane, at - 1] > ready:
        at -= 1
    start = ready
    while at < lanes.num_busy[lane] and lanes.start[lane, at] < start + length:
        start = max(start, lanes.end[lane, at])
        at += 1
    return start


@inlined()
def occupy(lanes: Lanes, lane: int, start: float, end: float) -> None:
    """Makes a lane busy from `start` to `end`, in which it is idle."""
    if end <= start:
        return
    count = lanes.num_busy[lane]
    at = count
    while at > 0 and lanes.start[lane, at - 1] > start:
        at -= 1
    if at > 0 and lanes.end[lane, at - 1] == start:
        lanes.end[lane, at - 1] = end
        return
    if at < count and lanes.start[lane, at] == end:
        lanes.start[lane, at] = start
        return
    if count == lanes.start.shape[1]:
        for slot in range(1, at):
            lanes.start[lane, slot - 1] = lanes.start[lane, slot]
            lanes.end[lane, slot - 1] = lanes.end[lane, slot]
        if at > 0:
            lanes.start[lane, at - 1] = start
            lanes.end[lane, at - 1] = end
        return
    for slot in range(count, at, -1):
        lanes.start[lane, slot] = lanes.start[lane, slot - 1]
        lanes.end[lane, slot] = lanes.end[lane, slot - 1]
    lanes.start[lane, at] = start
    lanes.end[lane, at] = end
    lanes.num_busy[lane] = count + 1


@inlined()
def _send(
    t: Tables, lanes: Lanes, first_wire: int, route: int, ready: float, length: float
) -> float:
    """Returns when a transfer starts that holds all wires of a route at once; holds them."""
    start, before = ready, -1.0
    while start != before:
        before = start
        for slot in range(t.bus_ptr[route], t.bus_ptr[route + 1]):
            start = first_gap(lanes, first_wire + t.bus[slot], start, length)
    for slot in range(t.bus_ptr[route], t.bus_ptr[route + 1]):
        occupy(lanes, first_wire + t.bus[slot], start, start + length)
    return start


@cached()
def follow_sends(
    t: Tables,
    sends: Sends,
    lists: ListTables,
    index_V: Ints,
    ties_V: Floats,
    placements_BV: Ints,
    priorities_BV: Floats,
    spans_B: Floats,
    starts_BV: Floats,
) -> None:
    """Fills makespan per plan and start per op, in the timeline's unit.

    Args:
        t: The MDP's tables, over placed ops.
        sends: Its tensors.
        lists: The same problem over all ops; says which op is ready.
        index_V: Placed op of each op, -1 where a policy does not place it.
        ties_V: Of equal priorities the smaller entry goes first.
        placements_BV: Device per op.
        priorities_BV: Larger goes first, of the ops whose predecessors have gone.
        spans_B: Filled.
        starts_BV: Filled where a policy places the op.
    """
    num_placed, num_devices = t.work.shape
    device_N, end_N = np.zeros(num_placed, np.int64), np.zeros(num_placed)
    arrival_TD = np.zeros((len(sends.tensor_bytes), num_devices))
    reads_D = np.zeros(num_devices, np.bool_)
    first_wire = int(sends.first_lane[num_devices])
    lanes = Lanes(
        np.zeros((sends.num_lanes, MAX_BUSY)),
        np.zeros((sends.num_lanes, MAX_BUSY)),
        np.zeros(sends.num_lanes, np.int64),
    )
    for row in range(priorities_BV.shape[0]):
        lanes.num_busy[:] = 0
        for op in range(len(index_V)):
            if index_V[op] >= 0:
                device_N[index_V[op]] = placements_BV[row, op]
        span = 0.0
        for op in ready_order(lists, priorities_BV[row], ties_V):
            placed = index_V[op]
            if placed < 0:
                continue
            device = device_N[placed]
            ready = t.input_ready[placed, device]
            for edge in range(t.in_ptr[placed], t.in_ptr[placed + 1]):
                producer = t.in_src[edge]
                arrival = end_N[producer]
                if device_N[producer] != device:
                    arrival = arrival_TD[t.in_tensor[edge], device]
                ready = max(ready, arrival)
            work = t.work[placed, device]
            best, start = -1, np.inf
            for lane in range(sends.first_lane[device], sends.first_lane[device + 1]):
                begin = first_gap(lanes, lane, ready, work)
                if begin < start:
                    best, start = lane, begin
            end = start + work
            occupy(lanes, best, start, end)
            end_N[placed] = end
            starts_BV[row, op] = start
            span = max(span, end)
            for slot in range(sends.made_ptr[placed], sends.made_ptr[placed + 1]):
                tensor = sends.made[slot]
                reads_D[:] = False
                for reader in range(sends.reader_ptr[tensor], sends.reader_ptr[tensor + 1]):
                    reads_D[device_N[sends.reader[reader]]] = True
                reads_D[device] = False
                for target in range(num_devices):
                    if reads_D[target]:
                        length = sends.tensor_bytes[tensor] * t.per_byte[device, target]
                        route = device * num_devices + target
                        sent = _send(t, lanes, first_wire, route, end, length)
                        arrival_TD[tensor, target] = sent + length + t.latency[device, target]
        spans_B[row] = span
