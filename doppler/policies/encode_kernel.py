"""The graph encoder without gradients: the same numbers as `GraphEncoder`, several times as fast.

All rounds are one compiled walk over the ops, a few at a time, so that everything between an op's
messages and its new embedding stays in the first cache. An op's numbers do not depend on where it
stands among the others.

Legend: N placed ops, A edges seen from both ends, H hidden, R rank; see `EncoderWeights`.
"""

import numpy as np
import torch
from torch import Tensor

from doppler.policies.assignment import Ints
from doppler.policies.encoder_weights import Encoder, EncoderWeights, encoder_weights
from doppler.policies.features import NUM_RELATIONS, GraphTensors
from doppler.policies.matrix_tiles import ROWS, multiply
from doppler.policies.tables import SLOPE, Singles
from simulator.machine_code import cached, inlined

ONE, HALF, TWO = np.float32(1.0), np.float32(0.5), np.float32(2.0)
LOG2_E, LN_2_HIGH, LN_2_LOW = (
    np.float32(1.44269504),
    np.float32(0.693359375),
    np.float32(-2.12194440e-4),
)
MOST = np.float32(80.0)
Z_EPSILON = np.float32(1e-3)


def compiled_embeddings(encoder: Encoder, graph: GraphTensors) -> Tensor:
    """Returns `GraphEncoder`'s embeddings without gradients, N x H."""
    relation = graph.relation.numpy()
    sources, targets = graph.edge_index.numpy()
    weights = encoder_weights(encoder, np.bincount(relation, minlength=NUM_RELATIONS) > 0)
    gates = _gates(graph.edges.numpy(), relation, targets, graph.scale.numpy(), weights)
    embeddings = _embeddings(
        graph.nodes.numpy(), sources, targets, relation, gates, weights, encoder.rounds
    )
    return torch.from_numpy(embeddings)


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


@inlined(fastmath=True, error_model="numpy")
def _fill(rows: Singles, values: Singles) -> None:
    for row in range(ROWS):
        for k in range(len(values)):
            rows[row, k] = values[k]


@cached(fastmath=True, error_model="numpy")
def _gates(
    edges: Singles, relation: Ints, targets: Ints, scale: Singles, w: EncoderWeights
) -> Singles:
    """Returns `DirectedConv.gates` times the scale of the op that gets the message, A x R."""
    num_edges, num_columns = edges.shape
    rank = len(w.gate_bias)
    gates = np.empty((num_edges, rank), np.float32)
    hidden, out = np.zeros((ROWS, rank), np.float32), np.empty((ROWS, rank), np.float32)
    weights, bias, kinds, slopes = w.gate_out, w.gate_bias, w.gate_kind, w.gate_edge
    for first in range(0, num_edges, ROWS):
        rows = min(ROWS, num_edges - first)
        for row in range(rows):
            kind = relation[first + row]
            for k in range(rank):
                hidden[row, k] = kinds[kind, k]
            for column in range(num_columns):
                value = edges[first + row, column]
                for k in range(rank):
                    hidden[row, k] += value * slopes[column, k]
            for k in range(rank):
                hidden[row, k] = max(hidden[row, k], SLOPE * hidden[row, k])
        _fill(out, bias)
        multiply(hidden, weights, out)
        for row in range(rows):
            share = scale[targets[first + row], relation[first + row]]
            for k in range(rank):
                gates[first + row, k] = out[row, k] * share
    return gates


@cached(fastmath=True, error_model="numpy")
def _embeddings(
    nodes: Singles,
    sources: Ints,
    targets: Ints,
    relation: Ints,
    gates: Singles,
    w: EncoderWeights,
    rounds: int,
) -> Singles:
    """Returns the embeddings after all rounds, N x H; `targets` ascend."""
    num_ops, width, rank = len(nodes), len(w.embed_bias), len(w.gate_bias)
    count = w.lower.shape[1] // rank
    hidden = np.empty((num_ops, width), np.float32)
    columns = np.zeros((ROWS, len(w.embed)), np.float32)
    state = np.zeros((ROWS, len(w.lower)), np.float32)
    # Three-dimensional where columns are looked up, flat where they are multiplied.
    lowered = np.empty((2, num_ops, count, rank), np.float32)
    lowered_flat = lowered.reshape(2, num_ops, count * rank)
    summed = np.zeros((ROWS, count, rank), np.float32)
    summed_flat = summed.reshape(ROWS, count * rank)
    old, new = np.empty((ROWS, 3, width), np.float32), np.empty((ROWS, 3, width), np.float32)
    old_flat, new_flat = old.reshape(ROWS, 3 * width), new.reshape(ROWS, 3 * width)
    low, start = np.empty((ROWS, count * rank), np.float32), np.empty((ROWS, width), np.float32)
    embed, embed_bias, lower, slots = w.embed, w.embed_bias, w.lower, w.slots
    from_old, from_new, old_bias, new_bias = w.old, w.new, w.old_bias, w.new_bias
    for first in range(0, num_ops, ROWS):
        rows = min(ROWS, num_ops - first)
        for row in range(rows):
            for column in range(nodes.shape[1]):
                columns[row, column] = nodes[first + row, column]
        _fill(start, embed_bias)
        multiply(columns, embed, start)
        for row in range(ROWS):
            for k in range(width):
                state[row, k] = _squash(start[row, k])
        _lower(state, lower, low)
        _write(state, first, rows, hidden)
        _write(low, first, rows, lowered_flat[0])
    for index in range(rounds):
        edge, before, after = 0, lowered[index & 1], lowered_flat[1 - (index & 1)]
        for first in range(0, num_ops, ROWS):
            rows = min(ROWS, num_ops - first)
            for row in range(ROWS):
                for k in range(count * rank):
                    summed_flat[row, k] = 0.0
            while edge < len(targets) and targets[edge] < first + rows:
                row, source, slot = targets[edge] - first, sources[edge], slots[relation[edge]]
                for k in range(rank):
                    summed[row, slot, k] += before[source, slot, k] * gates[edge, k]
                edge += 1
            for row in range(rows):
                for k in range(width):
                    state[row, k] = hidden[first + row, k]
            _fill(old_flat, old_bias)
            _fill(new_flat, new_bias)
            multiply(state, from_old, old_flat)
            multiply(summed_flat, from_new, new_flat)
            _update(old, new, state)
            _write(state, first, rows, hidden)
            if index + 1 < rounds:
                _lower(state, lower, low)
                _write(low, first, rows, after)
    for op in range(num_ops):
        for k in range(width):
            hidden[op, k] = max(hidden[op, k], SLOPE * hidden[op, k])
    return hidden


@inlined(fastmath=True, error_model="numpy")
def _update(old: Singles, new: Singles, state: Singles) -> None:
    """The recurrent cell; the terms are those of reset, keep and the new value."""
    for row in range(ROWS):
        for k in range(old.shape[2]):
            reset = _sigmoid(new[row, 0, k] + old[row, 0, k])
            keep = _sigmoid(new[row, 1, k] + old[row, 1, k])
            value = _squash(new[row, 2, k] + reset * old[row, 2, k])
            state[row, k] = value + keep * (state[row, k] - value)


@inlined(fastmath=True, error_model="numpy")
def _lower(state: Singles, weights: Singles, low: Singles) -> None:
    for row in range(ROWS):
        for k in range(weights.shape[1]):
            low[row, k] = 0.0
    multiply(state, weights, low)


@inlined(fastmath=True, error_model="numpy")
def _write(rows: Singles, first: int, count: int, table: Singles) -> None:
    """Copies the first `count` rows into the table."""
    for row in range(count):
        for k in range(table.shape[1]):
            table[first + row, k] = rows[row, k]


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
