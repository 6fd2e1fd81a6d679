"""Log-totals and entropies of SEL's softmax at every step of a batch, with exact gradients.

SEL draws op v at step t with probability w_v / W_t, w_v = exp(s_v / temperature) and W_t the sum
over the candidates of step t. Op v is a candidate from its arrival to its selection, so with
prefix sums over steps both directions are linear in the number of steps:

    d log W_t / d x_v = w_v / W_t                     for t in [arrival_v, selection_v]
    d H_t / d x_v = -(w_v / W_t) (x_v - log W_t + H_t),   x = s / temperature

Legend: B episodes, N ops (= steps).
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from doppler.policies.assignment import Floats, Ints
from doppler.policies.episodes import MIN_EXPONENT, tree_set
from simulator.machine_code import cached


def sequence_softmax(
    scores_N: Tensor, orders_BN: Ints, arrivals_BN: Ints, temperature: float
) -> tuple[Tensor, Tensor]:
    """Returns (log W, entropy) per step, B x N each, differentiable in the scores (float64)."""
    totals, entropies = _SequenceSoftmax.apply(  # type: ignore[no-untyped-call]
        scores_N / temperature, orders_BN, arrivals_BN
    )
    return totals, entropies


class _SequenceSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, orders: Ints, arrivals: Ints) -> tuple[Tensor, Tensor]:
        logits = x.detach().numpy()
        top = float(logits.max())
        totals, entropies = _forward(logits, top, orders, arrivals)
        ctx.saved = (logits, top, orders, arrivals, totals, entropies)
        return torch.from_numpy(totals), torch.from_numpy(entropies)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        grad = _backward(*ctx.saved, *(g.contiguous().numpy() for g in grads))
        return torch.from_numpy(grad), None, None


@cached()
def _forward(x: Floats, top: float, orders: Ints, arrivals: Ints) -> tuple[Floats, Floats]:
    batch, num_ops = orders.shape
    size = 1
    while size < num_ops:
        size *= 2
    weights = np.exp(np.maximum(x - top, MIN_EXPONENT))
    totals, entropies = np.empty((batch, num_ops)), np.empty((batch, num_ops))
    mass, moment = np.zeros(2 * size), np.zeros(2 * size)
    for row in range(batch):
        by_arrival = np.argsort(arrivals[row], kind="mergesort")
        head = 0
        for step in range(num_ops):
            while head < num_ops and arrivals[row, by_arrival[head]] <= step:
                op = by_arrival[head]
                tree_set(mass, size, op, weights[op])
                tree_set(moment, size, op, weights[op] * (x[op] - top))
                head += 1
            log_total = np.log(mass[1])
            totals[row, step] = log_total + top
            entropies[row, step] = log_total - moment[1] / mass[1]
            op = orders[row, step]
            tree_set(mass, size, op, 0.0)
            tree_set(moment, size, op, 0.0)
    return totals, entropies


@cached()
def _backward(
    x: Floats,
    top: float,
    orders: Ints,
    arrivals: Ints,
    totals: Floats,
    entropies: Floats,
    grad_totals: Floats,
    grad_entropies: Floats,
) -> Floats:
    batch, num_ops = orders.shape
    grad = np.zeros(num_ops)
    weights = np.exp(np.maximum(x - top, MIN_EXPONENT))
    constant, linear = np.zeros(num_ops + 1), np.zeros(num_ops + 1)
    for row in range(batch):
        for step in range(num_ops):
            log_total = totals[row, step] - top
            inverse = np.exp(-log_total)
            slope = grad_entropies[row, step]
            shift = slope * (log_total - entropies[row, step])
            constant[step + 1] = constant[step] + (grad_totals[row, step] + shift) * inverse
            linear[step + 1] = linear[step] + slope * inverse
        for step in range(num_ops):
            op = orders[row, step]
            start = arrivals[row, op]
            part = constant[step + 1] - constant[start]
            part -= (x[op] - top) * (linear[step + 1] - linear[start])
            grad[op] += weights[op] * part
    return grad
