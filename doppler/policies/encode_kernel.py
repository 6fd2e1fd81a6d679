"""The graph encoder without gradients: the same numbers as `GraphEncoder`, several times as fast.

Products of matrices are torch's, the rest is compiled: messages are gathered op by op, and the
gates of the recurrent cell are worked out in one pass over the rows. Two matrices that follow one
another without anything between them (`upper` and the cell's input weights) are multiplied first.

Legend: N placed ops, A edges seen from both ends, H hidden, R rank.
"""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from doppler.policies.assignment import Ints
from doppler.policies.features import NUM_RELATIONS, GraphTensors
from doppler.policies.tables import Singles
from simulator.machine_code import cached, inlined

ONE, HALF, TWO = np.float32(1.0), np.float32(0.5), np.float32(2.0)
LOG2_E, LN_2_HIGH, LN_2_LOW = (
    np.float32(1.44269504),
    np.float32(0.693359375),
    np.float32(-2.12194440e-4),
)
MOST = np.float32(80.0)
BLOCK = 2048
"""Ops that are worked on at a time, so that their terms stay in the cache."""
Z_EPSILON = np.float32(1e-3)


class Conv(Protocol):
    """The weights of `DirectedConv`."""

    rank: int
    lower: nn.Linear
    gate: nn.Sequential
    upper: nn.Linear


def compiled_rounds(
    start_NH: Tensor, conv: Conv, cell: nn.GRUCell, rounds: int, graph: GraphTensors
) -> Tensor:
    """Returns tanh of `start` after `rounds` rounds of messages, N x H; `start` is overwritten."""
    num_ops, width = start_NH.shape
    hidden = start_NH.contiguous()
    _tanh(hidden.numpy())
    into = (cell.weight_ih @ conv.upper.weight).t()
    into_bias = cell.bias_ih + cell.weight_ih @ conv.upper.bias
    gates = _scaled_gates(conv, graph).numpy()
    sources, targets = graph.edge_index.numpy()
    starts = range(0, num_ops, BLOCK)
    cuts = np.searchsorted(targets, [*starts, num_ops])
    lowered = start_NH.new_empty(num_ops, NUM_RELATIONS * conv.rank)
    summed = start_NH.new_empty(min(BLOCK, num_ops), NUM_RELATIONS * conv.rank)
    old = start_NH.new_empty(min(BLOCK, num_ops), 3 * width)
    new = torch.empty_like(old)
    for _ in range(rounds):
        torch.mm(hidden, conv.lower.weight.t(), out=lowered)
        for index, first in enumerate(starts):
            rows = hidden[first : first + BLOCK]
            size, edges = len(rows), slice(cuts[index], cuts[index + 1])
            _sum_messages(
                lowered.numpy(),
                sources[edges],
                targets[edges],
                graph.relation.numpy()[edges],
                gates[edges],
                first,
                summed[:size].numpy(),
            )
            torch.addmm(cell.bias_hh, rows, cell.weight_hh.t(), out=old[:size])
            torch.addmm(into_bias, summed[:size], into, out=new[:size])
            _update(old.numpy(), new.numpy(), rows.numpy())
    return hidden


def _scaled_gates(conv: Conv, graph: GraphTensors) -> Tensor:
    """Returns `DirectedConv.gates` times the scale of the op that gets the message, A x R."""
    into, activation, out = conv.gate
    assert isinstance(into, nn.Linear)
    assert isinstance(out, nn.Linear)
    size = graph.edges.shape[1]
    hidden = torch.addmm(into.bias, graph.edges, into.weight[:, :size].t())
    hidden += into.weight[:, size:].t().index_select(0, graph.relation)
    gates = torch.addmm(1.0 + out.bias, activation(hidden), out.weight.t())
    rows = graph.edge_index[1] * NUM_RELATIONS + graph.relation
    return gates.mul_(graph.scale.flatten().index_select(0, rows)[:, None])


def compiled_path_sums(embeddings_NH: Tensor, jumps: Tensor) -> Tensor:
    """Returns `path_sums` without gradients: a walk that adds each op once."""
    values = embeddings_NH.contiguous().numpy()
    following = jumps[0].numpy() if len(jumps) else np.full(len(values), len(values))
    return torch.from_numpy(_path_sums(values, following))


def compiled_z_rows(values_NH: Tensor) -> Tensor:
    """Returns `z_rows` without gradients."""
    return torch.from_numpy(_z_rows(values_NH.contiguous().numpy()))


@inlined(fastmath=True, error_model="numpy")
def _sigmoid(x: np.float32) -> np.float32:
    """1 / (1 + exp(-x)) to 1e-7: exp as 2^n times a polynomial, so that loops vectorise.

    Source: Cephes, expf.
    """
    y = max(-MOST, min(MOST, -x))
    n = np.float32(np.floor(y * LOG2_E + HALF))
    f = y - n * LN_2_HIGH - n * LN_2_LOW
    p = np.float32(1.9875691500e-4)
    p = p * f + np.float32(1.3981999507e-3)
    p = p * f + np.float32(8.3334519073e-3)
    p = p * f + np.float32(4.1665795894e-2)
    p = p * f + np.float32(1.6666665459e-1)
    p = p * f + HALF
    p = p * f * f + f + ONE
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return ONE / (ONE + p * power)


@inlined(fastmath=True, error_model="numpy")
def _squash(x: np.float32) -> np.float32:
    """Tanh to 2e-7."""
    return TWO * _sigmoid(TWO * x) - ONE


@cached(fastmath=True, error_model="numpy")
def _tanh(values: Singles) -> None:
    num_rows, width = values.shape
    for row in range(num_rows):
        for k in range(width):
            values[row, k] = _squash(values[row, k])


@cached(fastmath=True, error_model="numpy")
def _sum_messages(
    lowered: Singles,
    sources: Ints,
    targets: Ints,
    relation: Ints,
    gates: Singles,
    first_op: int,
    summed: Singles,
) -> None:
    """Fills the sums of what each op from `first_op` on gets per relation, rows x (4 R)."""
    rank = gates.shape[1]
    summed[:] = 0.0
    for edge in range(len(relation)):
        source, target = sources[edge], targets[edge] - first_op
        first = relation[edge] * rank
        for k in range(rank):
            summed[target, first + k] += lowered[source, first + k] * gates[edge, k]


@cached(fastmath=True, error_model="numpy")
def _update(old: Singles, new: Singles, hidden: Singles) -> None:
    """The recurrent cell; `old` and `new` are the terms of its three gates, reset first."""
    num_ops, width = hidden.shape
    for op in range(num_ops):
        for k in range(width):
            reset = _sigmoid(new[op, k] + old[op, k])
            keep = _sigmoid(new[op, width + k] + old[op, width + k])
            value = _squash(new[op, 2 * width + k] + reset * old[op, 2 * width + k])
            hidden[op, k] = value + keep * (hidden[op, k] - value)


@cached()
def _path_sums(values: Singles, following: Ints) -> Singles:
    """An op's sum is its own value and the sum of the op that follows; N follows a path's end."""
    num_ops, width = values.shape
    sums = np.empty((num_ops, width), np.float32)
    known, path = np.zeros(num_ops + 1, np.bool_), np.empty(num_ops, np.int64)
    known[num_ops] = True
    for start in range(num_ops):
        length, op = 0, start
        while not known[op]:
            path[length] = op
            length += 1
            op = following[op]
        for index in range(length - 1, -1, -1):
            here = path[index]
            after = following[here]
            for k in range(width):
                sums[here, k] = values[here, k] + (sums[after, k] if after < num_ops else 0.0)
            known[here] = True
    return sums


@cached(fastmath=True, error_model="numpy")
def _z_rows(values: Singles) -> Singles:
    num_ops, width = values.shape
    mean, square = np.zeros(width, np.float32), np.zeros(width, np.float32)
    for op in range(num_ops):
        for k in range(width):
            mean[k] += values[op, k]
    for k in range(width):
        mean[k] /= num_ops
    for op in range(num_ops):
        for k in range(width):
            square[k] += (values[op, k] - mean[k]) ** 2
    for k in range(width):
        square[k] = ONE / (np.sqrt(square[k] / num_ops) + Z_EPSILON)
    scores = np.empty((num_ops, width), np.float32)
    for op in range(num_ops):
        for k in range(width):
            scores[op, k] = (values[op, k] - mean[k]) * square[k]
    return scores
