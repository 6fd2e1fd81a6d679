"""The compiled device columns of the selected op; see `DeviceColumn` for what each one means."""

import numpy as np

from doppler.policies.columns import NUM_PAPER, DeviceColumn
from doppler.policies.tables import NUM_LOGS, Tables, Workspace
from doppler.policies.timeline import (
    BILL,
    FAST,
    FINISH,
    IN_COST,
    LOOPS,
    OUT_COST,
    P_END,
    P_START,
    P_WORK,
    PREDS,
    START,
    known_device,
    set_times,
)
from simulator.machine_code import inlined

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

MAX_GAP = 20.0

# Rows of values that go through the logarithm together.
L_FINISH, L_LOOKAHEAD, L_PARTNER, L_START, L_IDLE, L_IN, L_OUT, L_SPAN = range(NUM_LOGS)
ZERO, ONE, ROOT_HALF, LN_2 = (np.float32(value) for value in (0.0, 1.0, 0.70710678, 0.69314718))


@inlined(error_model="numpy", fastmath=FAST)
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


@inlined(error_model="numpy", fastmath=FAST)
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
        total = s.scratch[FINISH, device] + t.lookahead[op, device]
        total_gap = max(0.0, total - first_total)
        bill_gap = max(0.0, s.scratch[BILL, device] - first_bill)
        y[device, LOOKAHEAD_GAP] = min(MAX_GAP, total_gap * per_scale)
        y[device, PARTNER_GAP] = min(MAX_GAP, bill_gap * per_scale)
        y[device, FINISH_GAP] = min(MAX_GAP, finish_gap * per_scale)
        y[device, WORK_GAP] = (s.load[device] - mean_load) * per_load
        y[device, LOG_OP_RATIO] = t.log_ratio[op, device]
        y[device, PRED_SHARE] = s.scratch[PREDS, device] * per_pred
        y[device, LOOP_SHARE] = s.scratch[LOOPS, device] * per_loop
        y[device, NO_PREDECESSOR] = 1.0 if s.scratch[PREDS, device] == 0 else 0.0
        y[device, PROGRESS] = progress
        y[device, MEMORY_SHARE] = s.memory[device] / max(1.0, t.memory_bytes[device])
        s.logs[device, L_FINISH] = finish_gap
        s.logs[device, L_LOOKAHEAD] = total_gap
        s.logs[device, L_PARTNER] = bill_gap
        s.logs[device, L_START] = s.scratch[START, device] - first_start
        s.logs[device, L_IDLE] = s.scratch[START, device] - s.logits[device]
        s.logs[device, L_IN] = s.scratch[IN_COST, device]
        s.logs[device, L_OUT] = s.scratch[OUT_COST, device]
        s.logs[device, L_SPAN] = abs(s.scratch[FINISH, device] - span)
    _log1p_all(s.logs)
    for device in range(num_devices):
        y[device, LOG_FINISH_GAP] = s.logs[device, L_FINISH]
        y[device, LOG_LOOKAHEAD_GAP] = s.logs[device, L_LOOKAHEAD]
        y[device, LOG_PARTNER_GAP] = s.logs[device, L_PARTNER]
        y[device, LOG_START_GAP] = s.logs[device, L_START]
        y[device, LOG_IDLE] = s.logs[device, L_IDLE]
        y[device, LOG_IN_COST] = s.logs[device, L_IN]
        y[device, LOG_OUT_COST] = s.logs[device, L_OUT]
        early = s.scratch[FINISH, device] < span
        y[device, SPAN_GAP] = -s.logs[device, L_SPAN] if early else s.logs[device, L_SPAN]
    _set_relatives(t, s, op)


@inlined(error_model="numpy", fastmath=FAST)
def _log1p_all(values: np.ndarray) -> None:  # type: ignore[type-arg]
    """Replaces every value by log(1 + value), those up to 0 by 0, to 2e-7 of 1 + the result.

    Mantissa and exponent apart, then a polynomial, without branches: the loop vectorises, which
    calls of the library's logarithm do not. Source: Cephes, logf.
    """
    for row in range(len(values)):
        for column in range(NUM_LOGS):
            values[row, column] = _log1p(values[row, column])


@inlined(error_model="numpy", fastmath=FAST)
def _log1p(above: float) -> np.float32:
    value = np.float32(1.0 + max(0.0, above))
    bits = value.view(np.int32)
    exponent = np.float32((bits >> 23) - 126)
    m = np.int32((bits & 0x7FFFFF) | 0x3F000000).view(np.float32)
    low = m < ROOT_HALF
    exponent -= ONE if low else ZERO
    m = (m + m - ONE) if low else (m - ONE)
    p = np.float32(7.0376836292e-2) * m - np.float32(1.1514610310e-1)
    p = p * m + np.float32(1.1676998740e-1)
    p = p * m - np.float32(1.2420140846e-1)
    p = p * m + np.float32(1.4249322787e-1)
    p = p * m - np.float32(1.6668057665e-1)
    p = p * m + np.float32(2.0000714765e-1)
    p = p * m - np.float32(2.4999993993e-1)
    p = p * m + np.float32(3.3333331174e-1)
    z = m * m
    p = p * m * z - np.float32(0.5) * z
    return m + p + exponent * LN_2


@inlined(error_model="numpy", fastmath=FAST)
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


@inlined(error_model="numpy", fastmath=FAST)
def _per_placed(s: Workspace, meta: int) -> float:
    """1 / placed ops of a meta-op, 1 where there are none."""
    placed = 0
    for device in range(len(s.mask)):
        placed += s.meta_count[meta, device]
    return 1.0 / max(1, placed)


@inlined(error_model="numpy", fastmath=FAST)
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


@inlined(error_model="numpy", fastmath=FAST)
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
