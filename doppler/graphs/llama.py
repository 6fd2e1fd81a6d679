"""LLAMA-BLOCK and LLAMA-LAYER: one LLaMA transformer block, with or without the vocabulary head.

Norms, residuals and formations of full width work on row blocks (tokens); products, attention and
the gated feed-forward part work on shards (heads, columns). A product over columns reads the rows
gathered per shard; a product over the inner dimension gives partial results whose row blocks are
formed. Every reduction is followed by its formation, as in the other graphs of this table.

Source: facts of DOPPLER (arXiv 2505.23131), built from first principles on LLaMA-7B's sizes
(Touvron et al. 2023; RMSNorm, rotary embedding as complex numbers, SiLU gate). The published
element-wise breakdown is unknown, so counts are near the published ones, not equal
(`doppler.graphs.published` prints both).
"""

from dataclasses import dataclass

from doppler.core.errors import GraphError
from doppler.graphs.tensor_builder import Array, TensorBuilder, split
from doppler.graphs.tensor_program import TensorProgram

Blocks = list[Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """Sizes and cuts.

    Attributes:
        tokens: Sequence length (batch 1).
        hidden: Width of the residual stream.
        heads: Attention heads; the width of a head is hidden / heads.
        feed_forward: Inner width of the gated part.
        vocabulary: Columns of the head (LAYER only).
        shards: Parts of heads, feed-forward columns and vocabulary.
        row_blocks: Parts of the tokens.
    """

    tokens: int = 4096
    hidden: int = 4096
    heads: int = 32
    feed_forward: int = 11008
    vocabulary: int = 32000
    shards: int = 4
    row_blocks: int = 4

    def __post_init__(self) -> None:
        for name, total, parts in (
            ("heads", self.hidden, self.heads),
            ("shards", self.heads, self.shards),
            ("row_blocks", self.tokens, self.row_blocks),
        ):
            if parts < 1 or total % parts:
                raise GraphError(f"{name} is a divisor of {total}, and it is {parts}")
        if (self.hidden // self.heads) % 2:
            raise GraphError(
                f"a head has an even width (pairs are complex numbers), and it has "
                f"{self.hidden // self.heads}"
            )

    @property
    def head_width(self) -> int:
        """Columns of one head."""
        return self.hidden // self.heads


DEFAULT_SHAPE = LlamaShape()


def llama_block(shape: LlamaShape = DEFAULT_SHAPE, dtype: str = "float32") -> TensorProgram:
    """Returns one transformer block; its rows are gathered at the end.

    Raises:
        GraphError: If a dimension is cut into more parts than it has.
    """
    builder = _Llama(TensorBuilder("llama_block", dtype), shape)
    rows = builder.block()
    builder.op("output", "concat_rows", rows, "output")
    return builder.tensors.build()


def llama_layer(shape: LlamaShape = DEFAULT_SHAPE, dtype: str = "float32") -> TensorProgram:
    """Returns a block, the final norm, the last token and its vocabulary logits.

    Raises:
        GraphError: If a dimension is cut into more parts than it has.
    """
    builder = _Llama(TensorBuilder("llama_layer", dtype), shape)
    builder.head(builder.block())
    return builder.tensors.build()


class _Llama:
    """Adds the parts of one block to a tensor builder."""

    def __init__(self, tensors: TensorBuilder, shape: LlamaShape) -> None:
        self.tensors = tensors
        self._shape = shape

    def op(self, name: str, kind: str, operands: Blocks, meta_op: str) -> Array:
        return self.tensors.op(name, kind, operands, meta_op)

    def block(self) -> Blocks:
        """Returns the row blocks of the block's output."""
        shape = self._shape
        height = shape.tokens // shape.row_blocks
        x = [self.tensors.input(f"x[{i}]", (height, shape.hidden)) for i in range(shape.row_blocks)]
        attended = self._attention(self._norm("norm1", x))
        x = self._each("residual1", "add", x, attended)
        fed = self._feed_forward(self._norm("norm2", x))
        return self._each("residual2", "add", x, fed)

    def head(self, x: Blocks) -> None:
        """Final norm, last token, logits."""
        shape = self._shape
        normed = self._norm("norm3", x)
        last = self.op("last_token", "select_last", normed[-1:], "last_token")
        widths = split(shape.vocabulary, shape.shards)
        weights = self._weights("Wvocab", [(shape.hidden, width) for width in widths])
        logits = self._each("logits", "matmul", [last] * shape.shards, weights)
        self.op("output", "concat_cols", logits, "output")

    def _attention(self, x: Blocks) -> Blocks:
        shape = self._shape
        width = shape.hidden // shape.shards
        heads = shape.heads // shape.shards
        gathered = self._gather("gather1", x)
        table = self.tensors.input("rotations", (shape.tokens, shape.head_width))
        mask = self.tensors.input("mask", (shape.tokens, shape.tokens))
        factor = self.tensors.input("score_scale", (1, 1))
        parts: dict[str, Blocks] = {}
        for name in ("Q", "K", "V"):
            weights = self._weights(f"W{name}", [(shape.hidden, width)] * shape.shards)
            parts[name] = self._each(name, "matmul", gathered, weights)
        for name in ("Q", "K"):
            pairs = self._each(f"{name}_complex", "to_complex", parts[name])
            turned = self._each(f"{name}_rotate", "rotate", pairs, [table] * shape.shards)
            parts[name] = self._each(f"{name}_real", "to_real", turned)
        scores = [
            self.tensors.op(f"QK[{j}]", "head_scores", [q, k], "QK", heads=heads)
            for j, (q, k) in enumerate(zip(parts["Q"], parts["K"], strict=True))
        ]
        scores = self._each("scale", "multiply", scores, [factor] * shape.shards)
        scores = self._each("add_mask", "add_mask", scores, [mask] * shape.shards)
        mixed = self._each("AV", "head_mix", self._softmax(scores), parts["V"])
        weights = self._weights("WO", [(width, shape.hidden)] * shape.shards)
        return self._partial_product("O", mixed, weights)

    def _softmax(self, scores: Blocks) -> Blocks:
        largest = self._formed("softmax_max", "row_max", scores)
        powers = self._each(
            "softmax_exp", "exp", self._each("softmax_subtract", "subtract", scores, largest)
        )
        totals = self._formed("softmax_sum", "row_sum", powers)
        return self._each("softmax_divide", "divide", powers, totals)

    def _feed_forward(self, x: Blocks) -> Blocks:
        shape = self._shape
        gathered = self._gather("gather2", x)
        widths = split(shape.feed_forward, shape.shards)
        columns = [(shape.hidden, width) for width in widths]
        gate = self._each("gate", "matmul", gathered, self._weights("Wgate", columns))
        up = self._each("up", "matmul", gathered, self._weights("Wup", columns))
        active = self._each("silu", "multiply", gate, self._each("gate_sigmoid", "sigmoid", gate))
        gated = self._each("gated", "multiply", active, up)
        weights = self._weights("Wdown", [(width, shape.hidden) for width in widths])
        return self._partial_product("down", gated, weights)

    def _norm(self, name: str, x: Blocks) -> Blocks:
        """RMSNorm per row block: x / sqrt(mean(x^2) + eps) * weight."""
        weight = self.tensors.input(f"{name}_weight", (1, self._shape.hidden))
        means = self._formed(f"{name}_mean", "row_mean", self._each(f"{name}_square", "square", x))
        scaled = self._each(
            f"{name}_scale", "multiply", x, self._each(f"{name}_rsqrt", "rsqrt", means)
        )
        return self._each(f"{name}_weigh", "multiply", scaled, [weight] * len(x))

    def _formed(self, name: str, kind: str, x: Blocks) -> Blocks:
        return self._each(f"form_{name}", "sum", self._each(name, kind, x))

    def _gather(self, name: str, x: Blocks) -> Blocks:
        """All rows, once per shard."""
        return [self.op(f"{name}[{j}]", "concat_rows", x, name) for j in range(self._shape.shards)]

    def _partial_product(self, name: str, x: Blocks, weights: Blocks) -> Blocks:
        """Products over parts of the inner dimension, their row blocks summed."""
        blocks = self._shape.row_blocks
        partials = [
            self.tensors.blocks(f"{name}[{j}]", "matmul", [left, right], name, blocks)
            for j, (left, right) in enumerate(zip(x, weights, strict=True))
        ]
        return [
            self.op(f"form_{name}[{i}]", "sum", [part[i] for part in partials], f"form_{name}")
            for i in range(blocks)
        ]

    def _weights(self, name: str, shapes: list[tuple[int, int]]) -> Blocks:
        return [self.tensors.input(f"{name}[{j}]", shape) for j, shape in enumerate(shapes)]

    def _each(self, name: str, kind: str, *operands: Blocks) -> Blocks:
        return [
            self.op(f"{name}[{j}]", kind, list(row), name)
            for j, row in enumerate(zip(*operands, strict=True))
        ]
