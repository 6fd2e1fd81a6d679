"""FFNN: softmax(relu(X W1) W2) over a large batch, both products and the tail cut into shards.

Source: facts of DOPPLER (arXiv 2505.23131), built from first principles; at the default cut 12
inputs and 180 ops with 208 edges between them.
"""

from dataclasses import dataclass

from doppler.core.errors import GraphError
from doppler.graphs.tensor_builder import Array, TensorBuilder, split
from doppler.graphs.tensor_program import TensorProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class FFNNShape:
    """Sizes and cuts.

    Attributes:
        batch, features, hidden: Rows of X, columns of X and of the result, hidden width.
        batch_blocks, hidden_blocks: Row blocks of X, column blocks of the hidden layer.
        tail_blocks: Row blocks of the softmax; a multiple of `batch_blocks`.
    """

    batch: int = 1 << 15
    features: int = 1 << 5
    hidden: int = 1 << 16
    batch_blocks: int = 4
    hidden_blocks: int = 4
    tail_blocks: int = 16

    def __post_init__(self) -> None:
        if self.batch % self.tail_blocks or self.tail_blocks % self.batch_blocks:
            raise GraphError(
                f"tail_blocks divides the batch and is a multiple of batch_blocks, and they are "
                f"{self.tail_blocks}, {self.batch} and {self.batch_blocks}"
            )


DEFAULT_SHAPE = FFNNShape()


def ffnn(shape: FFNNShape = DEFAULT_SHAPE, dtype: str = "float32") -> TensorProgram:
    """Returns the network's forward pass.

    Args:
        shape: Sizes and cuts; the columns of the hidden layer may be uneven by one.
        dtype: Element type.

    Raises:
        GraphError: If a dimension is cut into more parts than it has.
    """
    builder = TensorBuilder("ffnn", dtype)
    rows = split(shape.batch, shape.batch_blocks)
    widths = split(shape.hidden, shape.hidden_blocks)
    x = [builder.input(f"X[{i}]", (height, shape.features)) for i, height in enumerate(rows)]
    w1 = [builder.input(f"W1[{j}]", (shape.features, width)) for j, width in enumerate(widths)]
    w2 = [builder.input(f"W2[{j}]", (width, shape.features)) for j, width in enumerate(widths)]
    per_batch = shape.tail_blocks // shape.batch_blocks
    for i in range(len(rows)):
        partials = [_hidden(builder, i, j, x[i], w1[j], w2[j]) for j in range(len(widths))]
        blocks = builder.blocks(f"form_XW1W2[{i}]", "sum", partials, "form_XW1W2", per_batch)
        for index, block in enumerate(blocks):
            _softmax(builder, i * per_batch + index, block)
    return builder.build()


def _hidden(builder: TensorBuilder, i: int, j: int, x: Array, w1: Array, w2: Array) -> Array:
    product = builder.op(f"XW1[{i},{j}]", "matmul", [x, w1], "XW1")
    formed = builder.op(f"form_XW1[{i},{j}]", "sum", [product], "form_XW1")
    active = builder.op(f"relu[{i},{j}]", "relu", [formed], "relu")
    return builder.op(f"XW1W2[{i},{j}]", "matmul", [active, w2], "XW1W2")


def _softmax(builder: TensorBuilder, r: int, block: Array) -> None:
    largest = builder.op(f"max[{r}]", "row_max", [block], "max")
    largest = builder.op(f"form_max[{r}]", "sum", [largest], "form_max")
    shifted = builder.op(f"subtract[{r}]", "subtract", [block, largest], "subtract")
    powers = builder.op(f"exp[{r}]", "exp", [shifted], "exp")
    total = builder.op(f"sum[{r}]", "row_sum", [powers], "sum")
    total = builder.op(f"form_sum[{r}]", "sum", [total], "form_sum")
    builder.op(f"divide[{r}]", "divide", [powers, total], "divide")
