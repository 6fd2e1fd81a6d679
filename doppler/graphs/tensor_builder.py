"""Builder of tensor programs: bytes, work and edges follow from kinds and shapes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from doppler.core.errors import GraphError
from doppler.graphs.builder import GraphBuilder, Tensor
from doppler.graphs.tensor_program import Instruction, Shape, TensorProgram


@dataclass(frozen=True, slots=True)
class Array:
    """A tensor with its shape."""

    tensor: Tensor
    shape: Shape


class TensorBuilder:
    """Adds ops by kind and operands.

    Args:
        name: Name of the graph.
        dtype: numpy name of the element type.
    """

    def __init__(self, name: str, dtype: str) -> None:
        self._builder = GraphBuilder(name)
        self._instructions: dict[str, Instruction] = {}
        self._dtype = np.dtype(dtype)

    def input(self, name: str, shape: Shape) -> Array:
        """Adds a graph input."""
        self._instructions[name] = Instruction(kind="input", in_shapes=(), out_shapes=(shape,))
        return Array(self._builder.input(name, self._bytes(shape)), shape)

    def op(self, name: str, kind: str, operands: Sequence[Array], meta_op: str) -> Array:
        """Adds an op with one output.

        Raises:
            GraphError: If the kind is unknown or the shapes do not fit it.
        """
        return self.blocks(name, kind, operands, meta_op, 1)[0]

    def blocks(
        self, name: str, kind: str, operands: Sequence[Array], meta_op: str, num_blocks: int
    ) -> tuple[Array, ...]:
        """Adds an op whose result is cut into equal row blocks, one output each.

        Raises:
            GraphError: If the kind is unknown, the shapes do not fit it, or the blocks do not
                divide the rows.
        """
        shapes = tuple(operand.shape for operand in operands)
        result = result_shape(kind, shapes, name)
        if result[0] % num_blocks:
            raise GraphError(
                f"{num_blocks} row blocks divide the rows, and op {name!r} has {result[0]}"
            )
        out = (result[0] // num_blocks, *result[1:])
        built = self._builder.op(
            name,
            kind,
            [operand.tensor for operand in operands],
            [self._bytes(out)] * num_blocks,
            flop=work_flop(kind, shapes),
            meta_op=meta_op,
        )
        self._instructions[name] = Instruction(
            kind=kind, in_shapes=shapes, out_shapes=(out,) * num_blocks
        )
        return tuple(Array(tensor, out) for tensor in built.outputs)

    def build(self) -> TensorProgram:
        """Returns the program."""
        return TensorProgram(
            graph=self._builder.build(), instructions=self._instructions, dtype=self._dtype.name
        )

    def _bytes(self, shape: Shape) -> int:
        return int(np.prod(shape, dtype=np.int64)) * self._dtype.itemsize


def result_shape(kind: str, shapes: Sequence[Shape], name: str) -> Shape:
    """Returns the shape of an op's result.

    Raises:
        GraphError: If the kind is unknown or the operands do not fit it.
    """
    first = shapes[0] if shapes else ()
    if kind == "matmul" and len(shapes) == 2 and first[1] == shapes[1][0]:
        return (first[0], shapes[1][1])
    if kind in ("sum", "add") and shapes and all(shape == first for shape in shapes):
        return first
    if kind in ("relu", "exp") and len(shapes) == 1:
        return first
    if kind in ("row_max", "row_sum") and len(shapes) == 1:
        return (first[0], 1)
    if kind in ("subtract", "divide") and len(shapes) == 2 and shapes[1] == (first[0], 1):
        return first
    raise GraphError(
        f"op {name!r} of kind {kind!r} does not take operands of shapes {list(shapes)}"
    )


def work_flop(kind: str, shapes: Sequence[Shape]) -> int:
    """Returns the floating-point operations of an op (1 multiply-add = 2; exp counts as 1)."""
    rows, cols = shapes[0]
    if kind == "matmul":
        return 2 * rows * cols * shapes[1][1]
    if kind in ("sum", "add"):
        return (len(shapes) - 1) * rows * cols
    if kind in ("row_max", "row_sum"):
        return rows * (cols - 1)
    return rows * cols


def split(total: int, parts: int) -> tuple[int, ...]:
    """Returns `parts` sizes that add up to `total`, the larger ones first.

    Raises:
        GraphError: If a part would be empty.
    """
    if not 1 <= parts <= total:
        raise GraphError(f"a dimension of {total} is cut into 1 to {total} parts, not {parts}")
    return tuple(total // parts + (index < total % parts) for index in range(parts))
