"""Static features of ops, edges and devices as tensors, made once per problem.

Legend: N placed ops, A edges seen from both ends, D devices, F columns.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from doppler.policies.assignment import Assignment, Bools, Floats, Ints
from doppler.policies.columns import (
    DEVICE_KINDS,
    NUM_PAPER,
    NUM_STATIC,
    EdgeColumn,
    NodeColumn,
    StaticColumn,
    num_edge_columns,
    num_node_columns,
)
from doppler.policies.config import PolicyKind
from doppler.policies.tables import Singles
from simulator.machine_code import cached

NUM_RELATIONS = 4
NUM_NODE = len(NodeColumn)
Z_EPSILON = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphTensors:
    """What the encoders read.

    Attributes:
        nodes: Features per op, N x F.
        edge_index: Row 0 the op that a message comes from, row 1 the op it goes to, in
            ascending order; 2 x A.
        relation: Per edge 0 producer, 1 producer of an earlier iteration, 2 consumer, 3 consumer
            in a later iteration; A. The paper's pair sees no direction: all are 0.
        edges: Features per edge, A x F.
        scale: 1 / sqrt(messages) per op and relation, N x 4.
        down_jumps, up_jumps: Pointer-doubling tables of the longest paths; entry k of row i is the
            op 2^k steps from op i, N where the path has ended.
        b_share: b-level / critical path, N.
        devices: Static features per device, D x F.
    """

    nodes: Tensor
    edge_index: Tensor
    relation: Tensor
    edges: Tensor
    scale: Tensor
    down_jumps: Tensor
    up_jumps: Tensor
    b_share: Tensor
    devices: Tensor


def graph_tensors(assignment: Assignment, kind: PolicyKind) -> GraphTensors:
    """Returns the static features of one problem."""
    levels = assignment.levels
    edge_index, relation, scale = _messages(
        assignment.near_ptr,
        assignment.near_op,
        assignment.near_out,
        assignment.near_loop,
        kind is not PolicyKind.paper,
    )
    return GraphTensors(
        nodes=_tensor(node_features(assignment)[:, : num_node_columns(kind)]),
        edge_index=torch.from_numpy(edge_index),
        relation=torch.from_numpy(relation),
        edges=_tensor(edge_features(assignment)[:, : num_edge_columns(kind)]),
        scale=torch.from_numpy(scale),
        down_jumps=torch.from_numpy(_jumps(levels.next_down)),
        up_jumps=torch.from_numpy(_jumps(levels.next_up)),
        b_share=_tensor(levels.b_level / max(levels.critical_path, Z_EPSILON)),
        devices=_tensor(device_features(assignment)),
    )


@cached()
def _messages(
    near_ptr: Ints, near_op: Ints, near_out: Bools, near_loop: Bools, is_directed: bool
) -> tuple[Ints, Ints, Singles]:
    """Returns edge index, relation and scale; see `GraphTensors`."""
    num_ops, num_edges = len(near_ptr) - 1, len(near_op)
    edge_index, relation = np.empty((2, num_edges), np.int64), np.zeros(num_edges, np.int64)
    scale = np.zeros((num_ops, NUM_RELATIONS), np.float32)
    for op in range(num_ops):
        for slot in range(near_ptr[op], near_ptr[op + 1]):
            edge_index[0, slot], edge_index[1, slot] = near_op[slot], op
            if is_directed:
                relation[slot] = 2 * int(near_out[slot]) + int(near_loop[slot])
            scale[op, relation[slot]] += 1.0
        for kind in range(NUM_RELATIONS):
            scale[op, kind] = max(1.0, scale[op, kind]) ** -0.5
    return edge_index, relation, scale


def z_score(values: Floats) -> Floats:
    """Returns every column with mean 0 and deviation 1 over the rows."""
    scores: Floats = (values - values.mean(axis=0)) / (values.std(axis=0) + Z_EPSILON)
    return scores


def node_features(assignment: Assignment) -> Floats:
    """Returns all `NodeColumn`s, N x F."""
    levels = assignment.levels
    return _node_table(
        assignment.work,
        assignment.allowed,
        assignment.mean_work,
        levels.b_level,
        levels.t_level,
        max(levels.critical_path, Z_EPSILON),
        assignment.lookahead,
        assignment.in_ptr,
        assignment.in_src,
        assignment.in_comm,
        assignment.near_ptr,
        assignment.near_out,
        assignment.near_loop,
        _class_sizes(assignment.group, len(assignment.group_bytes)),
        _class_sizes(assignment.meta, len(assignment.meta_size)),
    )


@cached(error_model="numpy")
def _node_table(
    work_ND: Floats,
    allowed: Bools,
    work: Floats,
    b_level: Floats,
    t_level: Floats,
    path: float,
    lookahead: Floats,
    in_ptr: Ints,
    in_src: Ints,
    in_comm: Floats,
    near_ptr: Ints,
    near_out: Bools,
    near_loop: Bools,
    group_size: Ints,
    meta_size: Ints,
) -> Floats:
    num_ops, num_devices = work_ND.shape
    y = np.zeros((num_ops, NUM_NODE))
    spread, comm, area = 0.0, 0.0, 0.0
    for op in range(num_ops):
        area += work[op]
        for edge in range(in_ptr[op], in_ptr[op + 1]):
            comm += in_comm[edge]
            y[op, NodeColumn.IN_COMM] += in_comm[edge]
            y[in_src[edge], NodeColumn.OUT_COMM] += in_comm[edge]
            y[in_src[edge], NodeColumn.LOG_OUT_DEGREE] += 1.0
        for slot in range(near_ptr[op], near_ptr[op + 1]):
            if near_loop[slot]:
                y[op, NodeColumn.LOOP_OUT if near_out[slot] else NodeColumn.LOOP_IN] += 1.0
        for device in range(num_devices):
            if allowed[op, device]:
                spread += abs(work_ND[op, device] / (work[op] + 0.001) - 1.0)
    comm = np.log(comm / max(1, len(in_src)) + 0.01)
    parallelism = np.log(area / path / num_devices + 0.01)
    spread /= num_ops * num_devices
    log_devices = np.log(num_devices)
    for op in range(num_ops):
        fastest, slowest, follows, count = np.inf, 0.0, 0.0, 0
        for device in range(num_devices):
            follows += lookahead[op, device]
            if allowed[op, device]:
                count += 1
                fastest = min(fastest, work_ND[op, device])
                slowest = max(slowest, work_ND[op, device])
        log_work = np.log(work[op] + 0.01)
        in_sum, out_sum = y[op, NodeColumn.IN_COMM], y[op, NodeColumn.OUT_COMM]
        log_mean = np.log(work[op] + 0.001)
        y[op, NodeColumn.WORK] = work[op]
        y[op, NodeColumn.B_LEVEL] = b_level[op]
        y[op, NodeColumn.T_LEVEL] = t_level[op]
        y[op, NodeColumn.LOG_WORK] = log_work
        y[op, NodeColumn.B_LEVEL_SHARE] = b_level[op] / path
        y[op, NodeColumn.T_LEVEL_SHARE] = t_level[op] / path
        y[op, NodeColumn.LOG_IN_COMM] = np.log1p(in_sum)
        y[op, NodeColumn.LOG_OUT_COMM] = np.log1p(out_sum)
        y[op, NodeColumn.COMM_TO_WORK] = np.log(in_sum + out_sum + 0.01) - log_work
        y[op, NodeColumn.FASTEST_RATIO] = np.log(fastest + 0.001) - log_mean
        y[op, NodeColumn.SLOWEST_RATIO] = np.log(slowest + 0.001) - log_mean
        y[op, NodeColumn.LOG_IN_DEGREE] = np.log1p(in_ptr[op + 1] - in_ptr[op])
        y[op, NodeColumn.LOG_OUT_DEGREE] = np.log1p(y[op, NodeColumn.LOG_OUT_DEGREE])
        y[op, NodeColumn.LOG_GROUP_SIZE] = np.log1p(group_size[op])
        y[op, NodeColumn.LOG_META_SIZE] = np.log1p(meta_size[op])
        y[op, NodeColumn.ALLOWED_SHARE] = count / num_devices
        y[op, NodeColumn.LOOP_IN] = np.log1p(y[op, NodeColumn.LOOP_IN])
        y[op, NodeColumn.LOOP_OUT] = np.log1p(y[op, NodeColumn.LOOP_OUT])
        y[op, NodeColumn.LOOKAHEAD_SHARE] = follows / num_devices / path
        y[op, NodeColumn.SLACK_SHARE] = 1.0 - (b_level[op] + t_level[op] - work[op]) / path
        y[op, NodeColumn.GRAPH_COMM_TO_WORK] = comm
        y[op, NodeColumn.GRAPH_PARALLELISM] = parallelism
        y[op, NodeColumn.GRAPH_SPREAD] = spread
        y[op, NodeColumn.GRAPH_DEVICES] = log_devices
    for column in range(NUM_PAPER):
        mean, square = 0.0, 0.0
        for op in range(num_ops):
            mean += y[op, column] / num_ops
        for op in range(num_ops):
            square += (y[op, column] - mean) ** 2
        scale = np.sqrt(square / num_ops) + Z_EPSILON
        for op in range(num_ops):
            y[op, column] = (y[op, column] - mean) / scale
    return y


def edge_features(assignment: Assignment) -> Floats:
    """Returns all `EdgeColumn`s, A x F."""
    latency, per_byte = assignment.mean_link
    comm = latency + assignment.near_bytes * per_byte
    work = np.repeat(assignment.mean_work, np.diff(assignment.near_ptr))
    columns = {
        EdgeColumn.COMM: z_score(comm[:, None])[:, 0] if len(comm) else comm,
        EdgeColumn.LOG_COMM: np.log1p(comm),
        EdgeColumn.COMM_TO_WORK: np.log((comm + 0.01) / (work + 0.01)),
    }
    return np.stack([columns[column] for column in EdgeColumn], axis=1)


def device_features(assignment: Assignment) -> Floats:
    """Returns all `StaticColumn`s, D x F."""
    total, count = _ratio_sums(assignment.work, assignment.allowed, assignment.mean_work)
    others = np.maximum(1, assignment.linked.sum(axis=1) - 1)
    table = np.zeros((assignment.num_devices, NUM_STATIC))
    seen = count > 0
    table[seen, StaticColumn.LOG_SPEED] = -np.log(total[seen] / count[seen])
    table[:, StaticColumn.LOG_STREAMS] = np.log(assignment.num_streams)
    table[:, StaticColumn.LOG_LATENCY_OUT] = np.log1p(assignment.latency.sum(axis=1) / others)
    mean_bytes = assignment.in_bytes.mean() if len(assignment.in_bytes) else 0.0
    per_byte = assignment.per_byte.sum(axis=1) / others
    table[:, StaticColumn.LOG_PER_BYTE_OUT] = np.log1p(per_byte * mean_bytes)
    for device, entry in enumerate(assignment.problem.cluster.devices):
        known = entry.kind in DEVICE_KINDS
        kind = DEVICE_KINDS.index(entry.kind) if known else len(DEVICE_KINDS)
        table[device, StaticColumn.KIND + kind] = 1.0
    return table


@cached()
def _ratio_sums(work_ND: Floats, allowed: Bools, work: Floats) -> tuple[Floats, Floats]:
    """Returns the sum of an op's time over its mean time, and the number of ops, per device."""
    num_ops, num_devices = work_ND.shape
    total, count = np.zeros(num_devices), np.zeros(num_devices)
    for op in range(num_ops):
        for device in range(num_devices):
            if allowed[op, device]:
                total[device] += (work_ND[op, device] + 0.001) / (work[op] + 0.001)
                count[device] += 1.0
    return total, count


def _tensor(values: Floats) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


def _class_sizes(classes: Ints, count: int) -> Ints:
    """Size of each op's class, 0 for ops without one."""
    if count == 0:
        return np.zeros(len(classes), dtype=np.int64)
    counts = np.bincount(classes[classes >= 0], minlength=1)
    sizes: Ints = np.where(classes >= 0, counts[np.maximum(classes, 0)], 0)
    return sizes


@cached()
def _jumps(next_op: Ints) -> Ints:
    """Pointer doubling: K x N, K such that 2^K exceeds the longest path."""
    size = len(next_op)
    rows, count = np.empty((64, size), np.int64), 0
    is_open = False
    for op in range(size):
        rows[0, op] = size if next_op[op] < 0 else next_op[op]
        is_open |= next_op[op] >= 0
    while is_open:
        count += 1
        is_open = False
        for op in range(size):
            half = rows[count - 1, op]
            rows[count, op] = size if half == size else rows[count - 1, half]
            is_open |= rows[count, op] < size
    return rows[:count].copy()
