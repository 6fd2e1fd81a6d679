"""Kinds of tensor ops: the shape of a result and the work, from the shapes of the operands.

All tensors have two dimensions. Attention keeps its heads stacked: `H` heads over `S` tokens are
`[H * S, S]` scores, and `[S, H * d]` queries, keys and values. Complex numbers are pairs of
neighbours in a row.
"""

from collections.abc import Sequence

from doppler.core.errors import GraphError
from doppler.graphs.tensor_program import Shape

SAME_SHAPE = ("relu", "exp", "square", "rsqrt", "sigmoid", "to_complex", "to_real")
ROW_RESULTS = ("row_max", "row_sum", "row_mean")


def result_shape(kind: str, shapes: Sequence[Shape], name: str, heads: int = 1) -> Shape:
    """Returns the shape of an op's result.

    Args:
        kind: Op kind, see `doppler.graphs.tensor_program.Instruction`.
        shapes: Shapes of the operands.
        name: Name of the op, for messages.
        heads: Heads that `head_scores` compares; nothing else reads it.

    Raises:
        GraphError: If the kind is unknown or the operands do not fit it.
    """
    found = _result_shape(kind, shapes, heads) if shapes else None
    if found is None:
        raise GraphError(
            f"op {name!r} of kind {kind!r} does not take operands of shapes {list(shapes)}"
        )
    return found


def work_flop(kind: str, shapes: Sequence[Shape]) -> int:
    """Returns the floating-point operations of an op.

    1 multiply-add = 2; exp and rsqrt count as 1, sigmoid as 3; moving data counts as 0.
    """
    rows, cols = shapes[0]
    if kind == "matmul":
        return 2 * rows * cols * shapes[1][1]
    if kind == "head_scores":
        return 2 * rows * rows * cols
    if kind == "head_mix":
        return 2 * cols * cols * shapes[1][1]
    if kind in ("sum", "add"):
        return (len(shapes) - 1) * rows * cols
    if kind in ROW_RESULTS:
        return rows * (cols - 1)
    if kind in ("to_complex", "to_real", "concat_rows", "concat_cols", "select_last"):
        return 0
    # a complex product is 6 for 2 numbers
    return rows * cols * {"rotate": 3, "sigmoid": 3}.get(kind, 1)


def _result_shape(kind: str, shapes: Sequence[Shape], heads: int) -> Shape | None:
    first, second, count = shapes[0], shapes[-1], len(shapes)
    if kind in ("sum", "add") and all(shape == first for shape in shapes):
        return first
    if kind in ("concat_rows", "concat_cols"):
        along = 0 if kind == "concat_rows" else 1
        if any(shape[1 - along] != first[1 - along] for shape in shapes):
            return None
        total = sum(shape[along] for shape in shapes)
        return (total, first[1]) if along == 0 else (first[0], total)
    if count == 1:
        if kind in ROW_RESULTS:
            return (first[0], 1)
        if kind == "select_last":
            return (1, first[1])
        return first if kind in SAME_SHAPE else None
    if count == 2:
        return _of_two(kind, first, second, heads)
    return None


def _of_two(kind: str, first: Shape, second: Shape, heads: int) -> Shape | None:
    (rows, cols), (other_rows, other_cols) = first, second
    fits = {
        "matmul": cols == other_rows,
        "subtract": second == (rows, 1),
        "divide": second == (rows, 1),
        "multiply": other_rows in (1, rows) and other_cols in (1, cols),
        "rotate": other_rows == rows and cols % other_cols == 0 and other_cols % 2 == 0,
        "head_scores": first == second and cols % heads == 0,
        "add_mask": rows % other_rows == 0 and cols == other_cols,
        "head_mix": cols == other_rows and rows % cols == 0 and other_cols % (rows // cols) == 0,
    }
    if not fits.get(kind, False):
        return None
    special = {
        "matmul": (rows, other_cols),
        "head_scores": (heads * rows, rows),
        "head_mix": (cols, other_cols),
    }
    return special.get(kind, first)
