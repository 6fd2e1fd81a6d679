"""Static features of ops, edges and devices as tensors, made once per problem.

Legend: N placed ops, A edges seen from both ends, D devices, F columns.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from doppler.policies.assignment import Assignment, Floats, Ints
from doppler.policies.columns import (
    DEVICE_KINDS,
    NUM_STATIC,
    EdgeColumn,
    NodeColumn,
    StaticColumn,
    num_edge_columns,
    num_node_columns,
)
from doppler.policies.config import PolicyKind

NUM_RELATIONS = 4
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
    num_ops = assignment.num_ops
    sources = assignment.near_op
    targets = np.repeat(np.arange(num_ops), np.diff(assignment.near_ptr))
    relation = 2 * assignment.near_out.astype(np.int64) + assignment.near_loop
    if kind is PolicyKind.paper:
        relation = np.zeros_like(relation)
    counts = np.bincount(targets * NUM_RELATIONS + relation, minlength=num_ops * NUM_RELATIONS)
    levels = assignment.levels
    return GraphTensors(
        nodes=_tensor(node_features(assignment)[:, : num_node_columns(kind)]),
        edge_index=torch.from_numpy(np.stack([sources, targets])),
        relation=torch.from_numpy(relation),
        edges=_tensor(edge_features(assignment)[:, : num_edge_columns(kind)]),
        scale=_tensor(np.maximum(counts, 1).reshape(num_ops, NUM_RELATIONS) ** -0.5),
        down_jumps=torch.from_numpy(_jumps(levels.next_down)),
        up_jumps=torch.from_numpy(_jumps(levels.next_up)),
        b_share=_tensor(levels.b_level / max(levels.critical_path, Z_EPSILON)),
        devices=_tensor(device_features(assignment)),
    )


def z_score(values: Floats) -> Floats:
    """Returns every column with mean 0 and deviation 1 over the rows."""
    scores: Floats = (values - values.mean(axis=0)) / (values.std(axis=0) + Z_EPSILON)
    return scores


def node_features(assignment: Assignment) -> Floats:
    """Returns all `NodeColumn`s, N x F."""
    work, levels = assignment.mean_work, assignment.levels
    path = max(levels.critical_path, Z_EPSILON)
    in_comm, out_comm = _comm_sums(assignment)
    allowed = assignment.allowed
    fastest = np.where(allowed, assignment.work, np.inf).min(axis=1)
    slowest = np.where(allowed, assignment.work, 0.0).max(axis=1)
    loop_in, loop_out = _loop_counts(assignment)
    size, num_devices = assignment.work.shape
    comm = float(in_comm.sum()) / max(1, len(assignment.in_src))
    ratio = np.where(allowed, assignment.work / (work[:, None] + 0.001), 1.0)
    spread = float(np.abs(ratio - 1.0).mean())
    columns = {
        NodeColumn.WORK: work,
        NodeColumn.B_LEVEL: levels.b_level,
        NodeColumn.T_LEVEL: levels.t_level,
        NodeColumn.IN_COMM: in_comm,
        NodeColumn.OUT_COMM: out_comm,
        NodeColumn.LOG_WORK: np.log(work + 0.01),
        NodeColumn.B_LEVEL_SHARE: levels.b_level / path,
        NodeColumn.T_LEVEL_SHARE: levels.t_level / path,
        NodeColumn.LOG_IN_COMM: np.log1p(in_comm),
        NodeColumn.LOG_OUT_COMM: np.log1p(out_comm),
        NodeColumn.COMM_TO_WORK: np.log((in_comm + out_comm + 0.01) / (work + 0.01)),
        NodeColumn.FASTEST_RATIO: np.log((fastest + 0.001) / (work + 0.001)),
        NodeColumn.SLOWEST_RATIO: np.log((slowest + 0.001) / (work + 0.001)),
        NodeColumn.LOG_IN_DEGREE: np.log1p(np.diff(assignment.in_ptr)),
        NodeColumn.LOG_OUT_DEGREE: np.log1p(np.diff(assignment.out_ptr)),
        NodeColumn.LOG_GROUP_SIZE: np.log1p(_class_sizes(assignment.group)),
        NodeColumn.LOG_META_SIZE: np.log1p(_class_sizes(assignment.meta)),
        NodeColumn.ALLOWED_SHARE: allowed.mean(axis=1),
        NodeColumn.LOOP_IN: np.log1p(loop_in),
        NodeColumn.LOOP_OUT: np.log1p(loop_out),
        NodeColumn.LOOKAHEAD_SHARE: assignment.lookahead.mean(axis=1) / path,
        NodeColumn.SLACK_SHARE: 1.0 - (levels.b_level + levels.t_level - work) / path,
        NodeColumn.GRAPH_COMM_TO_WORK: np.full(size, np.log(comm + 0.01)),
        NodeColumn.GRAPH_PARALLELISM: np.full(size, np.log(work.sum() / path / num_devices + 0.01)),
        NodeColumn.GRAPH_SPREAD: np.full(size, spread),
        NodeColumn.GRAPH_DEVICES: np.full(size, np.log(num_devices)),
    }
    table = np.stack([columns[column] for column in NodeColumn], axis=1)
    table[:, : NodeColumn.LOG_WORK] = z_score(table[:, : NodeColumn.LOG_WORK])
    return table


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
    work = np.where(assignment.allowed, assignment.work, np.nan)
    ratio = (work + 0.001) / (assignment.mean_work[:, None] + 0.001)
    others = np.maximum(1, assignment.linked.sum(axis=1) - 1)
    table = np.zeros((assignment.num_devices, NUM_STATIC))
    seen = assignment.allowed.any(axis=0)
    table[seen, StaticColumn.LOG_SPEED] = -np.log(np.nanmean(ratio[:, seen], axis=0))
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


def _tensor(values: Floats) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


def _comm_sums(assignment: Assignment) -> tuple[Floats, Floats]:
    latency, per_byte = assignment.mean_link
    comm = latency + assignment.in_bytes * per_byte
    targets = np.repeat(np.arange(assignment.num_ops), np.diff(assignment.in_ptr))
    size = assignment.num_ops
    in_comm = np.bincount(targets, weights=comm, minlength=size).astype(np.float64)
    out_comm = np.bincount(assignment.in_src, weights=comm, minlength=size).astype(np.float64)
    return in_comm, out_comm


def _loop_counts(assignment: Assignment) -> tuple[Ints, Ints]:
    targets = np.repeat(np.arange(assignment.num_ops), np.diff(assignment.near_ptr))
    loop, out = assignment.near_loop, assignment.near_out
    size = assignment.num_ops
    loop_in = np.bincount(targets[loop & ~out], minlength=size).astype(np.int64)
    return loop_in, np.bincount(targets[loop & out], minlength=size).astype(np.int64)


def _class_sizes(classes: Ints) -> Ints:
    """Size of each op's class, 0 for ops without one."""
    counts = np.bincount(classes[classes >= 0], minlength=1)
    sizes: Ints = np.where(classes >= 0, counts[np.maximum(classes, 0)], 0)
    return sizes


def _jumps(next_op: Ints) -> Ints:
    """Pointer doubling: K x N, K such that 2^K exceeds the longest path."""
    size = len(next_op)
    step = np.append(np.where(next_op < 0, size, next_op), size)
    rows: list[Ints] = []
    while (step[:-1] < size).any():
        rows.append(step[:-1])
        step = step[step]
    return np.array(rows, dtype=np.int64).reshape(len(rows), size)
