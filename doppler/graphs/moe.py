"""A mixture-of-experts block: router, top-k dispatch, experts, combine.

Tokens are cut into row blocks; every expert takes up to its capacity from each block, so all shapes
are static: capacity(block) = ceil(capacity_factor * top_k * tokens of the block / experts). A block
sends one tensor to every expert, and an expert one to every block: both all-to-alls are edges.

The graph can be placed and simulated; its data-dependent gather has no kernel in the executor.

Sources: Lepikhin et al. 2021 (GShard: capacity, dispatch and combine); Fedus et al. 2022 (Switch).
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from doppler.core.errors import GraphError
from doppler.core.graph import DataflowGraph
from doppler.graphs.builder import BuiltOp, GraphBuilder, Tensor
from doppler.graphs.tensor_builder import split

INDEX_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEShape:
    """Sizes and cuts.

    Attributes:
        tokens, hidden, feed_forward: Rows of x, its columns, inner width of an expert.
        experts: Number of experts; each is one chain of ops.
        top_k: Experts that a token goes to.
        capacity_factor: Room of an expert relative to an even spread, as a decimal.
        row_blocks: Parts of the tokens.
    """

    tokens: int = 4096
    hidden: int = 4096
    feed_forward: int = 14336
    experts: int = 8
    top_k: int = 2
    capacity_factor: str = "1.25"
    row_blocks: int = 4

    def __post_init__(self) -> None:
        for name in ("tokens", "hidden", "feed_forward", "experts"):
            if getattr(self, name) < 1:
                raise GraphError(f"{name} is at least 1, and it is {getattr(self, name)}")
        if not 1 <= self.top_k <= self.experts:
            raise GraphError(f"top_k is from 1 to {self.experts}, and it is {self.top_k}")
        try:
            positive = Fraction(self.capacity_factor) > 0
        except ValueError:
            positive = False
        if not positive:
            raise GraphError(
                f"capacity_factor is a positive decimal, and it is {self.capacity_factor!r}"
            )
        split(self.tokens, self.row_blocks)

    def capacity(self, tokens: int) -> int:
        """Tokens that one expert takes from a block of `tokens`, never more than there are."""
        share = Fraction(self.capacity_factor) * self.top_k * tokens / self.experts
        return min(tokens, -(-share.numerator // share.denominator))


DEFAULT_SHAPE = MoEShape()


def moe_block(shape: MoEShape = DEFAULT_SHAPE, dtype: str = "float32") -> DataflowGraph:
    """Returns the block: y = x + sum over the top-k experts of gate * expert(x).

    Raises:
        GraphError: If the tokens are cut into more parts than there are.
    """
    size = np.dtype(dtype).itemsize
    builder = GraphBuilder("moe_block")
    heights = split(shape.tokens, shape.row_blocks)
    capacities = [shape.capacity(height) for height in heights]
    row_bytes = shape.hidden * size
    router = builder.input("Wrouter", shape.hidden * shape.experts * size)
    x = [builder.input(f"x[{i}]", height * row_bytes) for i, height in enumerate(heights)]
    routes, sent = [], []
    for i, height in enumerate(heights):
        routes.append(_route(builder, shape, i, height, x[i], router, size))
        sent.append(
            builder.op(
                f"dispatch[{i}]",
                "dispatch",
                [x[i], routes[i][1]],
                [capacities[i] * row_bytes] * shape.experts,
                meta_op="dispatch",
            )
        )
    results = [
        _expert(builder, shape, e, [block[e] for block in sent], capacities, size)
        for e in range(shape.experts)
    ]
    for i, height in enumerate(heights):
        builder.op(
            f"combine[{i}]",
            "combine",
            [x[i], routes[i][0], routes[i][1], *(result[i] for result in results)],
            [height * row_bytes],
            flop=2 * shape.top_k * height * shape.hidden,
            meta_op="combine",
        )
    return builder.build()


def _route(
    builder: GraphBuilder,
    shape: MoEShape,
    i: int,
    height: int,
    x: Tensor,
    router: Tensor,
    size: int,
) -> BuiltOp:
    """Gates (output 0) and expert numbers (output 1) of the top-k experts per token."""
    logits = builder.op(
        f"router[{i}]",
        "matmul",
        [x, router],
        [height * shape.experts * size],
        flop=2 * height * shape.hidden * shape.experts,
        meta_op="router",
    )
    chosen = height * shape.top_k
    return builder.op(
        f"top_k[{i}]",
        "top_k",
        [logits],
        [chosen * size, chosen * INDEX_BYTES],
        flop=height * shape.experts * (2 + shape.top_k),
        meta_op="top_k",
    )


def _expert(
    builder: GraphBuilder,
    shape: MoEShape,
    e: int,
    parts: list[Tensor],
    capacities: list[int],
    size: int,
) -> BuiltOp:
    """Two products with a SiLU between; one output per row block."""
    rows = sum(capacities)
    inner, row_bytes = rows * shape.feed_forward, shape.hidden * size
    weight_bytes = shape.hidden * shape.feed_forward * size
    up = builder.input(f"Wup[{e}]", weight_bytes)
    down = builder.input(f"Wdown[{e}]", weight_bytes)
    gathered = builder.op(
        f"gather[{e}]", "concat_rows", parts, [rows * row_bytes], meta_op="gather"
    )
    product = builder.op(
        f"up[{e}]",
        "matmul",
        [gathered, up],
        [inner * size],
        flop=2 * inner * shape.hidden,
        meta_op="up",
    )
    active = builder.op(
        f"silu[{e}]", "silu", [product], [inner * size], flop=4 * inner, meta_op="silu"
    )
    return builder.op(
        f"down[{e}]",
        "matmul",
        [active, down],
        [capacity * row_bytes for capacity in capacities],
        flop=2 * inner * shape.hidden,
        meta_op="down",
    )
