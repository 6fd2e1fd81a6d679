"""What each kind of tensor op computes, on torch tensors that lie in shared memory."""

from collections.abc import Callable, Sequence

import torch

Operands = Sequence[torch.Tensor]
TensorOp = Callable[[Operands, torch.Tensor], object]


def _sum(operands: Operands, out: torch.Tensor) -> None:
    """Adds in operand order, so that the result does not depend on where the operands came from."""
    out.copy_(operands[0])
    for operand in operands[1:]:
        out.add_(operand)


TENSOR_OPS: dict[str, TensorOp] = {
    "matmul": lambda x, out: torch.matmul(x[0], x[1], out=out),
    "sum": _sum,
    "add": _sum,
    "relu": lambda x, out: torch.clamp_min(x[0], 0, out=out),
    "exp": lambda x, out: torch.exp(x[0], out=out),
    "row_max": lambda x, out: torch.amax(x[0], dim=1, keepdim=True, out=out),
    "row_sum": lambda x, out: torch.sum(x[0], dim=1, keepdim=True, out=out),
    "subtract": lambda x, out: torch.sub(x[0], x[1], out=out),
    "divide": lambda x, out: torch.div(x[0], x[1], out=out),
}
"""Op kind -> function that writes the result of its operands into `out`."""
