"""Means of what the placed ops give to a device's summary, with gradients, compiled.

Running sums over the steps of an episode forward, and over the same steps backward.

Legend: B episodes, N placed ops (= steps), D devices, P summary width.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from doppler.policies.assignment import Ints
from doppler.policies.tables import Singles
from simulator.machine_code import cached


def placed_means(placed_NP: Tensor, orders: Tensor, devices: Tensor, num_devices: int) -> Tensor:
    """Returns the mean of `placed` over the ops on each device before a step, B x N x D x P.

    Args:
        placed_NP: What each op adds.
        orders: Op selected at each step, B x N.
        devices: Its device, B x N.
        num_devices: Devices.
    """
    means: Tensor = _PlacedMeans.apply(  # type: ignore[no-untyped-call]
        placed_NP, orders, devices, num_devices
    )
    return means


class _PlacedMeans(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, placed: Tensor, orders: Tensor, devices: Tensor, num_devices: int
    ) -> Tensor:
        ctx.orders, ctx.devices, ctx.num_ops = orders.numpy(), devices.numpy(), len(placed)
        terms = np.ascontiguousarray(placed.detach().numpy())
        return torch.from_numpy(_forward(terms, ctx.orders, ctx.devices, num_devices))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        grad = _backward(grads[0].contiguous().numpy(), ctx.orders, ctx.devices, ctx.num_ops)
        return torch.from_numpy(grad), None, None, None


@cached()
def _forward(placed: Singles, orders: Ints, devices: Ints, num_devices: int) -> Singles:
    batch, steps = orders.shape
    width = placed.shape[1]
    means = np.empty((batch, steps, num_devices, width), np.float32)
    sums, counts = np.empty((num_devices, width), np.float32), np.empty(num_devices, np.int64)
    for row in range(batch):
        sums[:] = 0.0
        counts[:] = 0
        for step in range(steps):
            for d in range(num_devices):
                share = np.float32(1.0 / max(1, counts[d]))
                for k in range(width):
                    means[row, step, d, k] = sums[d, k] * share
            op, device = orders[row, step], devices[row, step]
            counts[device] += 1
            for k in range(width):
                sums[device, k] += placed[op, k]
    return means


@cached()
def _backward(grad: Singles, orders: Ints, devices: Ints, num_ops: int) -> Singles:
    """An op's gradient is the sum, over later steps, of its device's divided by the count."""
    batch, steps, num_devices, width = grad.shape
    out = np.zeros((num_ops, width), np.float32)
    later, counts = np.empty((num_devices, width), np.float32), np.empty(num_devices, np.int64)
    for row in range(batch):
        later[:] = 0.0
        counts[:] = 0
        for step in range(steps):
            counts[devices[row, step]] += 1
        for step in range(steps - 1, -1, -1):
            op, device = orders[row, step], devices[row, step]
            for k in range(width):
                out[op, k] += later[device, k]
            counts[device] -= 1
            for d in range(num_devices):
                share = np.float32(1.0 / max(1, counts[d]))
                for k in range(width):
                    later[d, k] += grad[row, step, d, k] * share
    return out
