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


def _rotate(operands: Operands, out: torch.Tensor) -> None:
    x, table = operands
    pairs = torch.view_as_complex(x.view(len(x), -1, table.shape[1] // 2, 2))
    turns = torch.view_as_complex(table.view(len(table), 1, -1, 2))
    torch.mul(pairs, turns, out=torch.view_as_complex(out.view(len(x), -1, turns.shape[2], 2)))


def _head_scores(operands: Operands, out: torch.Tensor) -> None:
    queries, keys = operands
    tokens = len(queries)
    heads = len(out) // tokens
    left = queries.view(tokens, heads, -1).transpose(0, 1)
    right = keys.view(tokens, heads, -1).permute(1, 2, 0)
    torch.matmul(left, right, out=out.view(heads, tokens, tokens))


def _add_mask(operands: Operands, out: torch.Tensor) -> None:
    scores, mask = operands
    torch.add(scores.view(-1, *mask.shape), mask, out=out.view(-1, *mask.shape))


def _head_mix(operands: Operands, out: torch.Tensor) -> None:
    weights, values = operands
    tokens = len(values)
    heads = len(weights) // tokens
    per_head = values.view(tokens, heads, -1).transpose(0, 1)
    mixed = torch.matmul(weights.view(heads, tokens, tokens), per_head)
    out.view(tokens, heads, -1).copy_(mixed.transpose(0, 1))


def _copy(operands: Operands, out: torch.Tensor) -> None:
    out.copy_(operands[0])


RSQRT_EPS = 1e-5

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
    "row_mean": lambda x, out: torch.mean(x[0], dim=1, keepdim=True, out=out),
    "multiply": lambda x, out: torch.mul(x[0], x[1], out=out),
    "square": lambda x, out: torch.square(x[0], out=out),
    "rsqrt": lambda x, out: torch.rsqrt(x[0] + RSQRT_EPS, out=out),
    "sigmoid": lambda x, out: torch.sigmoid(x[0], out=out),
    "concat_rows": lambda x, out: torch.cat(tuple(x), dim=0, out=out),
    "concat_cols": lambda x, out: torch.cat(tuple(x), dim=1, out=out),
    "select_last": lambda x, out: out.copy_(x[0][-1:]),
    "to_complex": _copy,
    "to_real": _copy,
    "rotate": _rotate,
    "head_scores": _head_scores,
    "add_mask": _add_mask,
    "head_mix": _head_mix,
}
"""Op kind -> function that writes the result of its operands into `out`."""
