"""PLC's logits of many decisions with their gradients, in blocks that stay in the cache.

The forward pass is `place_logits`; the backward pass works the hidden layer out again, which is
cheaper than storing R x D x K numbers. Products of matrices are torch's, the rest is compiled.

Legend: R decisions, D devices, C = F + P input columns, K head width.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from doppler.policies.assignment import Ints
from doppler.policies.place import PlaceHead, prior_penalty
from doppler.policies.tables import SLOPE, Singles
from simulator.machine_code import cached

BLOCK_NUMBERS = 1 << 16
"""Numbers of the hidden layer that are worked on at a time: 256 KiB."""


def compiled_logits(
    head: PlaceHead, ops_R: Tensor, columns_RDF: Tensor, means_RDP: Tensor
) -> Tensor:
    """Returns logits, R x D; the columns are data and get no gradient."""
    weights_CK = torch.cat([head.dynamic, head.lift])
    logits: Tensor = _CompiledLogits.apply(  # type: ignore[no-untyped-call]
        columns_RDF, means_RDP, weights_CK, head.own, head.device, head.output, ops_R
    )
    return logits - prior_penalty(head, columns_RDF)


class _CompiledLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, columns: Tensor, means: Tensor, *arguments: Tensor) -> Tensor:
        w, own, device, output, ops = (value.detach().contiguous() for value in arguments)
        x = torch.cat([columns, means], dim=2)
        ctx.num_fixed, ctx.tensors = columns.shape[2], (x, w, own, device, output, ops)
        logits = np.empty(x.shape[:2], np.float32)
        for rows, hidden in _blocks(x, w):
            terms = (own.numpy(), device.numpy(), output.numpy(), ops[rows].numpy())
            _set_logits(hidden.numpy(), *terms, logits[rows])
        return torch.from_numpy(logits)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, w, own, device, output, ops = ctx.tensors
        grad = grads[0].contiguous().numpy()
        free = w[ctx.num_fixed :].t()
        grad_w = torch.zeros_like(w)
        grad_means = x.new_empty(*x.shape[:2], len(w) - ctx.num_fixed)
        parts = (torch.zeros_like(own), torch.zeros_like(device), torch.zeros_like(output))
        sums = tuple(part.numpy() for part in parts)
        for rows, hidden in _blocks(x, w):
            terms = (own.numpy(), device.numpy(), output.numpy(), ops[rows].numpy())
            _set_slopes(hidden.numpy(), *terms, grad[rows], *sums)
            slopes = hidden.flatten(0, 1)
            grad_w.addmm_(x[rows].flatten(0, 1).t(), slopes)
            torch.mm(slopes, free, out=grad_means[rows].flatten(0, 1))
        return (None, grad_means, grad_w, *parts, None)


def _blocks(x: Tensor, w: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yields rows and their x w, rows x D x K, in a buffer that the next block overwrites."""
    num_devices, width = x.shape[1], w.shape[1]
    most = max(1, BLOCK_NUMBERS // (num_devices * width))
    buffer = x.new_empty(min(most, len(x)) * num_devices, width)
    for first in range(0, len(x), most):
        part = x[first : first + most]
        product = buffer[: len(part) * num_devices]
        torch.mm(part.flatten(0, 1), w, out=product)
        yield slice(first, first + len(part)), product.view(len(part), num_devices, width)


@cached(fastmath=True)
def _set_logits(
    hidden: Singles, own: Singles, device: Singles, output: Singles, ops: Ints, logits: Singles
) -> None:
    rows, num_devices, width = hidden.shape
    for r in range(rows):
        op = ops[r]
        for d in range(num_devices):
            total = np.float32(0.0)
            for k in range(width):
                value = hidden[r, d, k] + own[op, k] + device[d, k]
                total += max(value, SLOPE * value) * output[k]
            logits[r, d] = total


@cached(fastmath=True)
def _set_slopes(
    hidden: Singles,
    own: Singles,
    device: Singles,
    output: Singles,
    ops: Ints,
    grad: Singles,
    grad_own: Singles,
    grad_device: Singles,
    grad_output: Singles,
) -> None:
    """Overwrites `hidden` with the gradient that it gets, and adds up those of the terms."""
    rows, num_devices, width = hidden.shape
    for r in range(rows):
        op = ops[r]
        for d in range(num_devices):
            g = grad[r, d]
            for k in range(width):
                value = hidden[r, d, k] + own[op, k] + device[d, k]
                active = np.float32(1.0) if value > 0.0 else SLOPE
                grad_output[k] += g * active * value
                slope = g * active * output[k]
                hidden[r, d, k] = slope
                grad_own[op, k] += slope
                grad_device[d, k] += slope
