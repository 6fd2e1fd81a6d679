"""CHAINMM: (A x B) + (C x (D x E)) on square matrices, every product cut into shards.

Source: facts of DOPPLER (arXiv 2505.23131), built from first principles; at the default cut 36
inputs and 76 ops with 80 edges between them.
"""

from dataclasses import dataclass

from doppler.graphs.tensor_builder import Array, TensorBuilder, split
from doppler.graphs.tensor_program import TensorProgram

Blocks = dict[tuple[int, int], Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainShards:
    """How the five matrices are cut.

    Attributes:
        rows: Row blocks of A, C and the result.
        inner: Blocks of the dimension that A x B and C x (D x E) sum over; row blocks of D.
        cols: Column blocks of B, E and the result.
        de_inner: Blocks of the dimension that D x E sums over.
    """

    rows: int = 4
    inner: int = 2
    cols: int = 2
    de_inner: int = 4


DEFAULT_SHARDS = ChainShards()


def matmul_chain(
    size: int = 10_000, shards: ChainShards = DEFAULT_SHARDS, dtype: str = "float32"
) -> TensorProgram:
    """Returns the chain for matrices of `size` x `size`.

    Args:
        size: Rows and columns of every matrix; shards may be uneven by one row or column.
        shards: How the matrices are cut.
        dtype: Element type.

    Raises:
        GraphError: If a dimension is cut into more parts than it has rows.
    """
    builder = TensorBuilder("matmul_chain", dtype)
    rows, inner = split(size, shards.rows), split(size, shards.inner)
    cols, de_inner = split(size, shards.cols), split(size, shards.de_inner)
    a = _inputs(builder, "A", rows, inner)
    b = _inputs(builder, "B", inner, cols)
    c = _inputs(builder, "C", rows, inner)
    d = _inputs(builder, "D", inner, de_inner)
    e = _inputs(builder, "E", de_inner, cols)
    ab = _product(builder, "AB", a, b, (len(rows), len(inner), len(cols)))
    de = _product(builder, "DE", d, e, (len(inner), len(de_inner), len(cols)))
    cde = _product(builder, "CDE", c, de, (len(rows), len(inner), len(cols)))
    for i in range(len(rows)):
        for j in range(len(cols)):
            builder.op(f"result[{i},{j}]", "add", [ab[i, j], cde[i, j]], "result")
    return builder.build()


def _inputs(
    builder: TensorBuilder, name: str, rows: tuple[int, ...], cols: tuple[int, ...]
) -> Blocks:
    return {
        (i, j): builder.input(f"{name}[{i},{j}]", (height, width))
        for i, height in enumerate(rows)
        for j, width in enumerate(cols)
    }


def _product(
    builder: TensorBuilder, name: str, left: Blocks, right: Blocks, cuts: tuple[int, int, int]
) -> Blocks:
    """Rows x inner x cols partial products, then one formation per block of the result."""
    rows, inner, cols = cuts
    partials = {
        (i, k, j): builder.op(f"{name}[{i},{k},{j}]", "matmul", [left[i, k], right[k, j]], name)
        for i in range(rows)
        for k in range(inner)
        for j in range(cols)
    }
    return {
        (i, j): builder.op(
            f"form_{name}[{i},{j}]",
            "sum",
            [partials[i, k, j] for k in range(inner)],
            f"form_{name}",
        )
        for i in range(rows)
        for j in range(cols)
    }
