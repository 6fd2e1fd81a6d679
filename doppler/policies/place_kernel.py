"""PLC's logits of many decisions with their gradients, compiled: one pass, nothing kept per row.

The forward pass is `place_logits`; the backward pass works the hidden layer out again, which is
cheaper than storing R x D x K numbers.

Legend: R decisions, D devices, C = F + P input columns, K head width.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from doppler.policies.assignment import Ints
from doppler.policies.encoder import LEAKY_SLOPE
from doppler.policies.place import PlaceHead, prior_penalty
from doppler.policies.tables import Singles
from simulator.machine_code import cached

SLOPE = np.float32(LEAKY_SLOPE)


def compiled_logits(head: PlaceHead, ops_R: Tensor, inputs_RDC: Tensor) -> Tensor:
    """Returns logits, R x D; inputs are the dynamic columns followed by the placed ops' means.

    The dynamic columns are data and get no gradient.
    """
    weights_CK = torch.cat([head.dynamic, head.lift])
    logits: Tensor = _CompiledLogits.apply(  # type: ignore[no-untyped-call]
        len(head.dynamic), inputs_RDC, weights_CK, head.own, head.device, head.output, ops_R
    )
    return logits - prior_penalty(head, inputs_RDC.detach())


class _CompiledLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, num_fixed: int, *arguments: Tensor) -> Tensor:
        arrays = tuple(np.ascontiguousarray(value.detach().numpy()) for value in arguments)
        ctx.arrays, ctx.num_fixed = arrays, num_fixed
        return torch.from_numpy(_forward(*arrays))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = np.ascontiguousarray(grads[0].numpy())
        x, w, own, device, output, ops = ctx.arrays
        parts = _backward(x, w, own, device, output, ops, ctx.num_fixed, grad)
        return (None, *(torch.from_numpy(part) for part in parts), None)


@cached(fastmath=True)
def _set_hidden(
    x: Singles, w: Singles, own: Singles, device: Singles, op: int, r: int, d: int, hidden: Singles
) -> None:
    width, columns = w.shape[1], w.shape[0]
    for k in range(width):
        hidden[k] = own[op, k] + device[d, k]
    for c in range(0, columns - 1, 2):
        first, second = x[r, d, c], x[r, d, c + 1]
        for k in range(width):
            hidden[k] += first * w[c, k] + second * w[c + 1, k]
    if columns % 2:
        last = x[r, d, columns - 1]
        for k in range(width):
            hidden[k] += last * w[columns - 1, k]


@cached(fastmath=True)
def _forward(
    x: Singles, w: Singles, own: Singles, device: Singles, output: Singles, ops: Ints
) -> Singles:
    rows, num_devices, _ = x.shape
    logits = np.empty((rows, num_devices), np.float32)
    hidden = np.empty(w.shape[1], np.float32)
    for r in range(rows):
        for d in range(num_devices):
            _set_hidden(x, w, own, device, ops[r], r, d, hidden)
            total = np.float32(0.0)
            for k in range(len(hidden)):
                total += max(hidden[k], SLOPE * hidden[k]) * output[k]
            logits[r, d] = total
    return logits


@cached(fastmath=True)
def _backward(
    x: Singles,
    w: Singles,
    own: Singles,
    device: Singles,
    output: Singles,
    ops: Ints,
    num_fixed: int,
    grad: Singles,
) -> tuple[Singles, Singles, Singles, Singles, Singles]:
    rows, num_devices, columns = x.shape
    width = w.shape[1]
    grad_x, grad_w = np.zeros_like(x), np.zeros_like(w)
    grad_own, grad_device = np.zeros_like(own), np.zeros_like(device)
    grad_output = np.zeros_like(output)
    hidden, slope = np.empty(width, np.float32), np.empty(width, np.float32)
    for r in range(rows):
        op = ops[r]
        for d in range(num_devices):
            g = grad[r, d]
            _set_hidden(x, w, own, device, op, r, d, hidden)
            for k in range(width):
                active = np.float32(1.0) if hidden[k] > 0.0 else SLOPE
                grad_output[k] += g * active * hidden[k]
                slope[k] = g * active * output[k]
                grad_own[op, k] += slope[k]
                grad_device[d, k] += slope[k]
            for c in range(columns):
                value = x[r, d, c]
                for k in range(width):
                    grad_w[c, k] += value * slope[k]
            for c in range(num_fixed, columns):
                total = np.float32(0.0)
                for k in range(width):
                    total += w[c, k] * slope[k]
                grad_x[r, d, c] = total
    return grad_x, grad_w, grad_own, grad_device, grad_output
