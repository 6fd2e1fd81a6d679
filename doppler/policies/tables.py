"""What the compiled episodes read and write: named tuples of arrays that numba takes as they are.

Legend: N placed ops, D devices, E edges of distance 0, G groups, M meta-ops, K head width,
F device columns, S streams.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.policies.assignment import Assignment, Bools, Floats, Ints
from doppler.policies.columns import NUM_PAPER, DeviceColumn
from doppler.policies.config import LEAKY_SLOPE
from simulator.machine_code import cached

Singles = NDArray[np.float32]

SLOPE = np.float32(LEAKY_SLOPE)

MAX_GAPS = 32
NUM_LOGS = 8
NUM_DEVICE_COLUMNS = max(NUM_PAPER, len(DeviceColumn))


class Tables(NamedTuple):
    """The MDP, read only; fields as in `Assignment`.

    Attributes:
        in_comm: Mean transfer time per in-edge; E.
        out_comm: The same in the order of the out-edges; E.
        lookahead: Optimistic time after an op ends on a device; N x D.
        tie_class: Rank of each op's b-level, 0 = largest; N.
        log_ratio: log of the time on a device over the mean time, clipped to 3; N x D.
        fully_linked: True if no pair of devices lacks a link.
    """

    in_ptr: Ints
    in_src: Ints
    in_bytes: Floats
    in_tensor: Ints
    out_ptr: Ints
    out_dst: Ints
    near_ptr: Ints
    near_op: Ints
    near_bytes: Floats
    near_out: Bools
    near_loop: Bools
    work: Floats
    mean_work: Floats
    allowed: Bools
    input_ready: Floats
    initial_device: Ints
    group: Ints
    group_bytes: Floats
    initial_group_device: Ints
    meta: Ints
    meta_size: Ints
    parent_meta_ptr: Ints
    parent_meta: Ints
    latency: Floats
    per_byte: Floats
    num_streams: Ints
    memory_bytes: Floats
    bus_ptr: Ints
    bus: Ints
    linked: Bools
    in_comm: Floats
    out_comm: Floats
    lookahead: Floats
    tie_class: Ints
    log_ratio: Floats
    fully_linked: bool


class Workspace(NamedTuple):
    """The state of one episode, reused by the next.

    Attributes:
        device: Device per op, -1 = not placed; N.
        start, end: Timeline of the placed ops; N.
        input_order: In-edges of the selected op by the end of their producers.
        arrivals: When each tensor is on each device, -1 = not sent there; tensors x D.
        bus_free: When each wire is free.
        trial_free: The same while a device is tried.
        streams: When each stream is free after its last op; D x S.
        gap_start, gap_end: Idle gaps before those last ops, unordered; D x MAX_GAPS, or D x 0 for a
            timeline that only appends.
        num_gaps: Gaps per device.
        last_gap: No gap of a device ends later; D.
        taken_gap: Gap that a device's trial takes, -1 = none; D.
        load, num_placed: Work and ops per device; D.
        memory: Group state per device, bytes; D.
        group_device: Device per group, -1 = open; G.
        meta_count: Placed ops per meta-op and device; M x D.
        partner_count: Placed producers per consumer and device; N x D.
        partner_comm: Their mean transfer times to it; N x D.
        missing: Unplaced producers per op; N.
        sums: Sum of `placed` terms per device; D x K.
        columns: Raw device columns of the selected op; D x F.
        mask: Devices that it may use; D.
        scratch: Per device: ready, start, finish, pred work, first start, last end, preds,
            in cost, out cost, loop neighbours, bill of partners elsewhere; 11 x D.
        logits: Per device; D.
        logs: Values that go through the logarithm together; D x NUM_LOGS.
    """

    device: Ints
    start: Floats
    end: Floats
    input_order: Ints
    arrivals: Floats
    bus_free: Floats
    trial_free: Floats
    streams: Floats
    gap_start: Floats
    gap_end: Floats
    num_gaps: Ints
    last_gap: Floats
    taken_gap: Ints
    load: Floats
    num_placed: Ints
    memory: Floats
    group_device: Ints
    meta_count: Ints
    partner_count: Ints
    partner_comm: Floats
    missing: Ints
    sums: Singles
    columns: Floats
    mask: Bools
    scratch: Floats
    logits: Floats
    logs: Singles


class Heads(NamedTuple):
    """The per-update terms of both policies as arrays; see `PlaceHead`.

    Attributes:
        fixed_select, fixed_place: True where a rule decides, with log-probability 0; see `Learned`.
    """

    scores: Floats
    own: Singles
    placed: Singles
    device: Singles
    dynamic: Singles
    output: Singles
    priors: Floats
    fixed_select: bool
    fixed_place: bool


def make_tables(assignment: Assignment) -> Tables:
    """Returns the kernel's view of the MDP."""
    derived = ("out_comm", "tie_class", "log_ratio", "fully_linked")
    fields = {name: getattr(assignment, name) for name in Tables._fields if name not in derived}
    ratio = (assignment.work + 0.001) / (assignment.mean_work[:, None] + 0.001)
    return Tables(
        **fields,
        out_comm=assignment.in_comm[assignment.out_in],
        tie_class=_tie_classes(assignment.levels.b_level),
        fully_linked=bool(assignment.linked.all()),
        log_ratio=np.clip(np.log(ratio), -3.0, 3.0),
    )


def _tie_classes(b_level: Floats) -> Ints:
    """Rank of each op's b-level, 0 = largest; equal levels share a rank."""
    order = np.argsort(-b_level, kind="stable")
    drops = -np.diff(b_level[order]) > 1e-9 * max(1.0, float(b_level.max(initial=0.0)))
    classes = np.empty(len(b_level), dtype=np.int64)
    classes[order] = np.concatenate([[0], np.cumsum(drops)]) if len(order) else []
    return classes


@cached()
def make_workspace(t: Tables, head_width: int, num_columns: int) -> Workspace:
    """Returns the state for episodes of one MDP; the paper's columns come with its timeline.

    What `reset` fills, and what is filled before it is read, is not filled here.
    """
    gaps = MAX_GAPS if num_columns > NUM_PAPER else 0
    num_ops, num_devices = t.work.shape
    num_tensors = t.in_tensor.max() + 1 if len(t.in_tensor) else 0
    most_inputs = (t.in_ptr[1:] - t.in_ptr[:-1]).max()
    num_buses = t.bus.max() + 1 if len(t.bus) else 0
    return Workspace(
        np.empty(num_ops, np.int64),
        np.zeros(num_ops),
        np.zeros(num_ops),
        np.zeros(most_inputs, np.int64),
        np.empty((num_tensors, num_devices)),
        np.empty(num_buses),
        np.zeros(num_buses),
        np.empty((num_devices, t.num_streams.max())),
        np.zeros((num_devices, gaps)),
        np.zeros((num_devices, gaps)),
        np.empty(num_devices, np.int64),
        np.empty(num_devices),
        np.zeros(num_devices, np.int64),
        np.empty(num_devices),
        np.empty(num_devices, np.int64),
        np.empty(num_devices),
        np.empty(len(t.group_bytes), np.int64),
        np.empty((len(t.meta_size), num_devices), np.int64),
        np.empty((num_ops, num_devices), np.int64),
        np.empty((num_ops, num_devices)),
        np.empty(num_ops, np.int64),
        np.empty((num_devices, head_width), np.float32),
        np.zeros((num_devices, max(num_columns, NUM_DEVICE_COLUMNS))),
        np.empty(num_devices, np.bool_),
        np.zeros((11, num_devices)),
        np.zeros(num_devices),
        np.zeros((num_devices, NUM_LOGS), np.float32),
    )
