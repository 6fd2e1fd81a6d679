"""The compiled state transitions of one episode: masks and timeline.

The timeline uses earliest start (EST), not the sum of work: an op starts when its data is on the
device and a stream is free. A tensor is sent once per device, and transfers that hold the same wire
follow one another in the order in which their consumers are placed, those of one consumer by the
end of their producers.

Source: DOPPLER section 3 (EST) and trap 8.
"""

from doppler.policies.tables import Tables, Workspace
from simulator.machine_code import cached, inlined

READY, START, FINISH, P_WORK, P_START, P_END, PREDS, IN_COST, OUT_COST, LOOPS, BILL = range(11)

# No "ninf" and "nnan": infinity stands for "no device yet".
FAST = {"reassoc", "contract", "arcp", "nsz"}


@cached(error_model="numpy", fastmath=FAST)
def reset(t: Tables, s: Workspace) -> None:
    """Empties the state; groups that can only be on one device are there from the start."""
    s.device[:] = -1
    s.arrivals[:] = -1.0
    s.bus_free[:] = 0.0
    s.streams[:] = 0.0
    s.num_gaps[:] = 0
    s.last_gap[:] = 0.0
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


@inlined(error_model="numpy", fastmath=FAST)
def known_device(t: Tables, s: Workspace, op: int) -> int:
    """Returns where `op` is or must go, -1 if that is open."""
    if s.device[op] >= 0:
        return int(s.device[op])
    if t.group[op] >= 0:
        return int(s.group_device[t.group[op]])
    return int(t.initial_device[op])


@inlined(error_model="numpy", fastmath=FAST)
def _mask_links(t: Tables, s: Workspace, op: int) -> None:
    for slot in range(t.near_ptr[op], t.near_ptr[op + 1]):
        home = known_device(t, s, t.near_op[slot])
        if home < 0:
            continue
        for device in range(len(s.mask)):
            out = t.near_out[slot]
            if not (t.linked[device, home] if out else t.linked[home, device]):
                s.mask[device] = False


@inlined(error_model="numpy", fastmath=FAST)
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


@inlined(error_model="numpy", fastmath=FAST)
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


@inlined(error_model="numpy", fastmath=FAST)
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


@inlined(error_model="numpy", fastmath=FAST)
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
        # Most ops are ready after the last gap, and need not look at any.
        fits = ready + t.work[op, device] <= s.last_gap[device]
        for gap in range(s.num_gaps[device] if fits else 0):
            begin = max(ready, s.gap_start[device, gap])
            if begin < start and begin + t.work[op, device] <= s.gap_end[device, gap]:
                start = begin
                s.taken_gap[device] = gap
        s.scratch[READY, device] = ready
        s.scratch[START, device] = start
        s.scratch[FINISH, device] = start + t.work[op, device]
        s.logits[device] = free


@inlined(error_model="numpy", fastmath=FAST)
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


@inlined(error_model="numpy", fastmath=FAST)
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
    s.last_gap[device] = max(s.last_gap[device], end)


@inlined(error_model="numpy", fastmath=FAST)
def _split_gap(s: Workspace, device: int, gap: int, start: float, end: float) -> None:
    """Takes [start, end] out of a gap; what is left before and after stays."""
    before, after = s.gap_start[device, gap], s.gap_end[device, gap]
    last = s.num_gaps[device] - 1
    s.gap_start[device, gap] = s.gap_start[device, last]
    s.gap_end[device, gap] = s.gap_end[device, last]
    s.num_gaps[device] = last
    _add_gap(s, device, before, start)
    _add_gap(s, device, end, after)


@inlined(error_model="numpy", fastmath=FAST)
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
