"""The compiled state transitions of one episode: masks, timeline, device columns.

The timeline uses earliest start (EST), not the sum of work: an op starts when its data is on the
device and a stream is free. A tensor is sent once per device, and transfers that hold the same wire
follow one another in the order in which their consumers are placed, those of one consumer by the
end of their producers.

Source: DOPPLER section 3 (EST) and trap 8.
"""

import numba
import numpy as np

from doppler.policies.columns import NUM_PAPER, DeviceColumn
from doppler.policies.tables import Tables, Workspace

WORK = int(DeviceColumn.WORK)
PRED_WORK = int(DeviceColumn.PRED_WORK)
PRED_FIRST_START = int(DeviceColumn.PRED_FIRST_START)
PRED_LAST_END = int(DeviceColumn.PRED_LAST_END)
EARLIEST_START = int(DeviceColumn.EARLIEST_START)
FINISH_GAP = int(DeviceColumn.FINISH_GAP)
LOG_FINISH_GAP = int(DeviceColumn.LOG_FINISH_GAP)
LOG_START_GAP = int(DeviceColumn.LOG_START_GAP)
LOG_IDLE = int(DeviceColumn.LOG_IDLE)
WORK_GAP = int(DeviceColumn.WORK_GAP)
LOG_OP_RATIO = int(DeviceColumn.LOG_OP_RATIO)
PRED_SHARE = int(DeviceColumn.PRED_SHARE)
LOG_IN_COST = int(DeviceColumn.LOG_IN_COST)
LOG_OUT_COST = int(DeviceColumn.LOG_OUT_COST)
LOOP_SHARE = int(DeviceColumn.LOOP_SHARE)
SIBLING_SHARE = int(DeviceColumn.SIBLING_SHARE)
SIBLING_LOAD = int(DeviceColumn.SIBLING_LOAD)
COUSIN_SHARE = int(DeviceColumn.COUSIN_SHARE)
PARTNER_SHARE = int(DeviceColumn.PARTNER_SHARE)
NO_PREDECESSOR = int(DeviceColumn.NO_PREDECESSOR)
PROGRESS = int(DeviceColumn.PROGRESS)
MEMORY_SHARE = int(DeviceColumn.MEMORY_SHARE)
LOOKAHEAD_GAP = int(DeviceColumn.LOOKAHEAD_GAP)
PARTNER_GAP = int(DeviceColumn.PARTNER_GAP)
LOG_LOOKAHEAD_GAP = int(DeviceColumn.LOG_LOOKAHEAD_GAP)
LOG_PARTNER_GAP = int(DeviceColumn.LOG_PARTNER_GAP)
SPAN_GAP = int(DeviceColumn.SPAN_GAP)

READY, START, FINISH, P_WORK, P_START, P_END, PREDS, IN_COST, OUT_COST, LOOPS, BILL = range(11)
MAX_GAP = 20.0

# No "ninf" and "nnan": infinity stands for "no device yet".
FAST = {"reassoc", "contract", "arcp", "nsz"}


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)  # type: ignore[untyped-decorator]
def reset(t: Tables, s: Workspace) -> None:
    """Empties the state; groups that can only be on one device are there from the start."""
    s.device[:] = -1
    s.arrivals[:] = -1.0
    s.bus_free[:] = 0.0
    s.streams[:] = 0.0
    s.num_gaps[:] = 0
    s.load[:] = 0.0
    s.num_placed[:] = 0
    s.memory[:] = 0.0
    s.meta_count[:] = 0
    s.partner_count[:] = 0
    s.partner_comm[:] = 0.0
    s.sums[:] = 0.0
    for op in range(len(s.missing)):
        s.missing[op] = t.in_ptr[op + 1] - t.in_ptr[op]
    for group in range(len(s.group_device)):
        s.group_device[group] = t.initial_group_device[group]
        if s.group_device[group] >= 0:
            s.memory[s.group_device[group]] += t.group_bytes[group]


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)  # type: ignore[untyped-decorator]
def known_device(t: Tables, s: Workspace, op: int) -> int:
    """Returns where `op` is or must go, -1 if that is open."""
    if s.device[op] >= 0:
        return int(s.device[op])
    if t.group[op] >= 0:
        return int(s.group_device[t.group[op]])
    return int(t.initial_device[op])


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)  # type: ignore[untyped-decorator]
def _mask_links(t: Tables, s: Workspace, op: int) -> None:
    for slot in range(t.near_ptr[op], t.near_ptr[op + 1]):
        home = known_device(t, s, t.near_op[slot])
        if home < 0:
            continue
        for device in range(len(s.mask)):
            out = t.near_out[slot]
            if not (t.linked[device, home] if out else t.linked[home, device]):
                s.mask[device] = False


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)  # type: ignore[untyped-decorator]
def set_mask(t: Tables, s: Workspace, op: int) -> int:
    """Fills the mask of devices for `op`; returns how many there are.

    The first placement of a group fixes the rest. A device without room for the group's state is
    left out, and one without a link to a known neighbour; if none is left all allowed devices are
    in, and whoever scores the plan finds it infeasible.
    """
    num_devices = len(s.mask)
    home = known_device(t, s, op)
    if home >= 0:
        for device in range(num_devices):
            s.mask[device] = device == home
        return 1
    group = t.group[op]
    count = 0
    for device in range(num_devices):
        fits = group < 0 or s.memory[device] + t.group_bytes[group] <= t.memory_bytes[device]
        s.mask[device] = t.allowed[op, device] and fits
    if not t.fully_linked:
        _mask_links(t, s, op)
    for device in range(num_devices):
        count += s.mask[device]
    if count == 0:
        for device in range(num_devices):
            s.mask[device] = t.allowed[op, device]
            count += s.mask[device]
    return count


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)  # type: ignore[untyped-decorator]
def _order_inputs(t: Tables, s: Workspace, op: int) -> None:
    """Sorts the inputs by the end of their producers: a wire serves requests as they come."""
    order = s.input_order
    for edge in range(t.in_ptr[op], t.in_ptr[op + 1]):
        slot = edge - t.in_ptr[op]
        end = s.end[t.in_src[edge]]
        while slot > 0 and s.end[t.in_src[order[slot - 1]]] > end:
            order[slot] = order[slot - 1]
            slot -= 1
        order[slot] = edge


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)  # type: ignore[untyped-decorator]
def _send_inputs(t: Tables, s: Workspace, op: int, device: int) -> float:
    """Returns when all inputs are on `device`; moves `trial_free` on by the transfers."""
    ready = 0.0
    for index in range(t.in_ptr[op + 1] - t.in_ptr[op]):
        edge = s.input_order[index]
        home = s.device[t.in_src[edge]]
        time = s.end[t.in_src[edge]]
        if home != device:
            sent = s.arrivals[t.in_tensor[edge], device]
            if sent >= 0.0:
                time = sent
            else:
                row = home * len(s.mask) + device
                for slot in range(t.bus_ptr[row], t.bus_ptr[row + 1]):
                    time = max(time, s.trial_free[t.bus[slot]])
                time += t.in_bytes[edge] * t.per_byte[home, device]
                for slot in range(t.bus_ptr[row], t.bus_ptr[row + 1]):
                    s.trial_free[t.bus[slot]] = time
                time += t.latency[home, device]
        ready = max(ready, time)
    return ready


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)  # type: ignore[untyped-decorator]
def set_times(t: Tables, s: Workspace, op: int, first: int, last: int) -> None:
    """Fills ready, start and finish of `op` on devices `first` to `last` - 1.

    An op fills the first known idle gap that holds it: the runtime never waits, so what is placed
    later runs earlier where it can.
    """
    _order_inputs(t, s, op)
    for device in range(first, last):
        for wire in range(len(s.bus_free)):
            s.trial_free[wire] = s.bus_free[wire]
        ready = max(t.input_ready[op, device], _send_inputs(t, s, op, device))
        free = s.streams[device, 0]
        for stream in range(1, t.num_streams[device]):
            free = min(free, s.streams[device, stream])
        start = max(ready, free)
        s.taken_gap[device] = -1
        for gap in range(s.num_gaps[device]):
            begin = max(ready, s.gap_start[device, gap])
            if begin < start and begin + t.work[op, device] <= s.gap_end[device, gap]:
                start = begin
                s.taken_gap[device] = gap
        s.scratch[READY, device] = ready
        s.scratch[START, device] = start
        s.scratch[FINISH, device] = start + t.work[op, device]
        s.logits[device] = free


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)  # type: ignore[untyped-decorator]
def _set_neighbours(t: Tables, s: Workspace, op: int) -> None:
    num_devices = len(s.mask)
    for row in range(P_WORK, LOOPS + 1):
        for device in range(num_devices):
            s.scratch[row, device] = 0.0
    for edge in range(t.in_ptr[op], t.in_ptr[op + 1]):
        src = t.in_src[edge]
        home = s.device[src]
        first = s.scratch[PREDS, home] == 0.0
        s.scratch[PREDS, home] += 1.0
        s.scratch[P_WORK, home] += t.work[src, home]
        if first or s.start[src] < s.scratch[P_START, home]:
            s.scratch[P_START, home] = s.start[src]
        s.scratch[P_END, home] = max(s.scratch[P_END, home], s.end[src])
    for slot in range(t.near_ptr[op], t.near_ptr[op + 1]):
        home = known_device(t, s, t.near_op[slot])
        if home < 0:
            continue
        size = t.near_bytes[slot]
        if t.near_loop[slot]:
            s.scratch[LOOPS, home] += 1.0
        if t.near_out[slot]:
            for device in range(num_devices):
                cost = t.latency[device, home] + size * t.per_byte[device, home]
                s.scratch[OUT_COST, device] += cost
        else:
            for device in range(num_devices):
                cost = t.latency[home, device] + size * t.per_byte[home, device]
                s.scratch[IN_COST, device] += cost


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)  # type: ignore[untyped-decorator]
def set_columns(t: Tables, s: Workspace, op: int, step: int, num_columns: int) -> None:
    """Fills the device columns of `op`; the mask is set."""
    num_devices = len(s.mask)
    y = s.columns
    _set_neighbours(t, s, op)
    first_start, first_finish, mean_load = np.inf, np.inf, 0.0
    first_total, first_bill, span = np.inf, np.inf, 0.0
    set_times(t, s, op, 0, num_devices)
    _set_bills(t, s, op)
    for device in range(num_devices):
        mean_load += s.load[device] / num_devices
        span = max(span, s.logits[device])
        if s.mask[device]:
            total = s.scratch[FINISH, device] + t.lookahead[op, device]
            first_total = min(first_total, total)
            first_bill = min(first_bill, s.scratch[BILL, device])
            first_start = min(first_start, s.scratch[START, device])
            first_finish = min(first_finish, s.scratch[FINISH, device])
    for device in range(num_devices):
        y[device, WORK] = s.load[device]
        y[device, PRED_WORK] = s.scratch[P_WORK, device]
        y[device, PRED_FIRST_START] = s.scratch[P_START, device]
        y[device, PRED_LAST_END] = s.scratch[P_END, device]
        y[device, EARLIEST_START] = s.scratch[START, device]
    _z_scores(y, num_devices)
    if num_columns == NUM_PAPER:
        return
    per_pred = 1.0 / max(1, t.in_ptr[op + 1] - t.in_ptr[op])
    loops = 0.0
    for device in range(num_devices):
        loops += s.scratch[LOOPS, device]
    per_loop = 1.0 / max(1.0, loops)
    per_scale = 1.0 / (t.mean_work[op] + 0.25)
    per_load = 1.0 / (mean_load + 1.0)
    progress = step / len(s.device)
    for device in range(num_devices):
        finish_gap = max(0.0, s.scratch[FINISH, device] - first_finish)
        idle = s.scratch[START, device] - s.logits[device]
        total = s.scratch[FINISH, device] + t.lookahead[op, device]
        total_gap = max(0.0, total - first_total)
        bill_gap = max(0.0, s.scratch[BILL, device] - first_bill)
        y[device, LOOKAHEAD_GAP] = min(MAX_GAP, total_gap * per_scale)
        y[device, PARTNER_GAP] = min(MAX_GAP, bill_gap * per_scale)
        y[device, LOG_LOOKAHEAD_GAP] = _log1p(total_gap)
        y[device, LOG_PARTNER_GAP] = _log1p(bill_gap)
        y[device, SPAN_GAP] = _signed_log(s.scratch[FINISH, device] - span)
        y[device, FINISH_GAP] = min(MAX_GAP, finish_gap * per_scale)
        y[device, LOG_FINISH_GAP] = _log1p(finish_gap)
        y[device, LOG_START_GAP] = _log1p(s.scratch[START, device] - first_start)
        y[device, LOG_IDLE] = _log1p(idle)
        y[device, WORK_GAP] = (s.load[device] - mean_load) * per_load
        y[device, LOG_OP_RATIO] = t.log_ratio[op, device]
        y[device, PRED_SHARE] = s.scratch[PREDS, device] * per_pred
        y[device, LOG_IN_COST] = _log1p(s.scratch[IN_COST, device])
        y[device, LOG_OUT_COST] = _log1p(s.scratch[OUT_COST, device])
        y[device, LOOP_SHARE] = s.scratch[LOOPS, device] * per_loop
        y[device, NO_PREDECESSOR] = 1.0 if s.scratch[PREDS, device] == 0 else 0.0
        y[device, PROGRESS] = progress
        y[device, MEMORY_SHARE] = s.memory[device] / max(1.0, t.memory_bytes[device])
    _set_relatives(t, s, op)


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)  # type: ignore[untyped-decorator]
def _log1p(value: float) -> float:
    """log(1 + value), 0 for values up to 0."""
    return float(np.log(1.0 + value)) if value > 0.0 else 0.0


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)  # type: ignore[untyped-decorator]
def _signed_log(value: float) -> float:
    """log(1 + |value|) with the sign of the value."""
    return _log1p(value) if value >= 0.0 else -_log1p(-value)


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)  # type: ignore[untyped-decorator]
def _set_bills(t: Tables, s: Workspace, op: int) -> None:
    """Transfers that a device makes unavoidable: producers of the same consumers are elsewhere.

    Of a consumer's inputs on two devices, at least the cheaper side has to travel.
    """
    num_devices = len(s.mask)
    for device in range(num_devices):
        s.scratch[BILL, device] = 0.0
    for slot in range(t.out_ptr[op], t.out_ptr[op + 1]):
        consumer = t.out_dst[slot]
        everywhere = 0.0
        for device in range(num_devices):
            everywhere += s.partner_comm[consumer, device]
        if everywhere > 0.0:
            for device in range(num_devices):
                elsewhere = everywhere - s.partner_comm[consumer, device]
                s.scratch[BILL, device] += min(t.out_comm[slot], elsewhere)


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)  # type: ignore[untyped-decorator]
def _per_placed(s: Workspace, meta: int) -> float:
    """1 / placed ops of a meta-op, 1 where there are none."""
    placed = 0
    for device in range(len(s.mask)):
        placed += s.meta_count[meta, device]
    return 1.0 / max(1, placed)


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)  # type: ignore[untyped-decorator]
def _set_relatives(t: Tables, s: Workspace, op: int) -> None:
    """Shares of siblings, parents' siblings, and producers of the same consumers per device."""
    num_devices = len(s.mask)
    y = s.columns
    for device in range(num_devices):
        for column in range(SIBLING_SHARE, PARTNER_SHARE + 1):
            y[device, column] = 0.0
    meta = t.meta[op]
    if meta >= 0:
        per_placed = _per_placed(s, meta)
        per_member = num_devices / t.meta_size[meta]
        for device in range(num_devices):
            here = s.meta_count[meta, device]
            y[device, SIBLING_SHARE] = here * per_placed
            y[device, SIBLING_LOAD] = here * per_member
    parents = t.parent_meta_ptr[op + 1] - t.parent_meta_ptr[op]
    for slot in range(t.parent_meta_ptr[op], t.parent_meta_ptr[op + 1]):
        meta = t.parent_meta[slot]
        per_placed = _per_placed(s, meta) / parents
        for device in range(num_devices):
            y[device, COUSIN_SHARE] += s.meta_count[meta, device] * per_placed
    consumers = t.out_ptr[op + 1] - t.out_ptr[op]
    for slot in range(t.out_ptr[op], t.out_ptr[op + 1]):
        consumer = t.out_dst[slot]
        share = 1.0 / ((t.in_ptr[consumer + 1] - t.in_ptr[consumer]) * consumers)
        for device in range(num_devices):
            y[device, PARTNER_SHARE] += s.partner_count[consumer, device] * share


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)  # type: ignore[untyped-decorator]
def _z_scores(y: np.ndarray, num_devices: int) -> None:  # type: ignore[type-arg]
    for column in range(NUM_PAPER):
        mean, square = 0.0, 0.0
        for device in range(num_devices):
            mean += y[device, column]
        mean /= num_devices
        for device in range(num_devices):
            y[device, column] -= mean
            square += y[device, column] ** 2
        scale = 1.0 / (np.sqrt(square / num_devices) + 1e-6)
        for device in range(num_devices):
            y[device, column] *= scale


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)  # type: ignore[untyped-decorator]
def _commit_inputs(t: Tables, s: Workspace, op: int, device: int) -> None:
    """Sends the inputs of `op` to `device` for good."""
    for index in range(t.in_ptr[op + 1] - t.in_ptr[op]):
        edge = s.input_order[index]
        home = s.device[t.in_src[edge]]
        tensor = t.in_tensor[edge]
        if home == device or s.arrivals[tensor, device] >= 0.0:
            continue
        time = s.end[t.in_src[edge]]
        row = home * len(s.mask) + device
        for slot in range(t.bus_ptr[row], t.bus_ptr[row + 1]):
            time = max(time, s.bus_free[t.bus[slot]])
        time += t.in_bytes[edge] * t.per_byte[home, device]
        for slot in range(t.bus_ptr[row], t.bus_ptr[row + 1]):
            s.bus_free[t.bus[slot]] = time
        s.arrivals[tensor, device] = time + t.latency[home, device]


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)  # type: ignore[untyped-decorator]
def _add_gap(s: Workspace, device: int, start: float, end: float) -> None:
    """Remembers an idle gap; where there is no room the shortest one is forgotten."""
    most = s.gap_start.shape[1]
    if end <= start or most == 0:
        return
    slot = s.num_gaps[device]
    if slot < most:
        s.num_gaps[device] += 1
    else:
        slot = 0
        for other in range(1, most):
            length = s.gap_end[device, other] - s.gap_start[device, other]
            if length < s.gap_end[device, slot] - s.gap_start[device, slot]:
                slot = other
        if end - start <= s.gap_end[device, slot] - s.gap_start[device, slot]:
            return
    s.gap_start[device, slot] = start
    s.gap_end[device, slot] = end


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)  # type: ignore[untyped-decorator]
def _split_gap(s: Workspace, device: int, gap: int, start: float, end: float) -> None:
    """Takes [start, end] out of a gap; what is left before and after stays."""
    before, after = s.gap_start[device, gap], s.gap_end[device, gap]
    last = s.num_gaps[device] - 1
    s.gap_start[device, gap] = s.gap_start[device, last]
    s.gap_end[device, gap] = s.gap_end[device, last]
    s.num_gaps[device] = last
    _add_gap(s, device, before, start)
    _add_gap(s, device, end, after)


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)  # type: ignore[untyped-decorator]
def place(t: Tables, s: Workspace, op: int, device: int) -> None:
    """Puts `op` on `device`: timeline, memory, counts; `set_times` for the pair has been called."""
    _commit_inputs(t, s, op, device)
    s.start[op] = s.scratch[START, device]
    s.end[op] = s.scratch[FINISH, device]
    if s.taken_gap[device] >= 0:
        _split_gap(s, device, s.taken_gap[device], s.start[op], s.end[op])
    else:
        stream = 0
        for other in range(1, t.num_streams[device]):
            if s.streams[device, other] < s.streams[device, stream]:
                stream = other
        _add_gap(s, device, s.streams[device, stream], s.start[op])
        s.streams[device, stream] = s.end[op]
    s.device[op] = device
    s.load[device] += t.work[op, device]
    s.num_placed[device] += 1
    group = t.group[op]
    if group >= 0 and s.group_device[group] < 0:
        s.group_device[group] = device
        s.memory[device] += t.group_bytes[group]
    if t.meta[op] >= 0:
        s.meta_count[t.meta[op], device] += 1
    for slot in range(t.out_ptr[op], t.out_ptr[op + 1]):
        s.partner_count[t.out_dst[slot], device] += 1
        s.partner_comm[t.out_dst[slot], device] += t.out_comm[slot]
