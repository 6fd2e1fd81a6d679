"""Builder of tensor programs: bytes, work and edges follow from kinds and shapes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from doppler.core.errors import GraphError
from doppler.graphs.builder import GraphBuilder, Tensor
from doppler.graphs.tensor_kinds import result_shape, work_flop
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

    def op(
        self, name: str, kind: str, operands: Sequence[Array], meta_op: str, *, heads: int = 1
    ) -> Array:
        """Adds an op with one output; `heads` is for `head_scores`.

        Raises:
            GraphError: If the kind is unknown or the shapes do not fit it.
        """
        return self.blocks(name, kind, operands, meta_op, 1, heads=heads)[0]

    def blocks(
        self,
        name: str,
        kind: str,
        operands: Sequence[Array],
        meta_op: str,
        num_blocks: int,
        *,
        heads: int = 1,
    ) -> tuple[Array, ...]:
        """Adds an op whose result is cut into equal row blocks, one output each.

        Raises:
            GraphError: If the kind is unknown, the shapes do not fit it, or the blocks do not
                divide the rows.
        """
        shapes = tuple(operand.shape for operand in operands)
        result = result_shape(kind, shapes, name, heads)
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
            # a selection reads what it keeps
            bytes_moved=2 * self._bytes(result) if kind == "select_last" else None,
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


def split(total: int, parts: int) -> tuple[int, ...]:
    """Returns `parts` sizes that add up to `total`, the larger ones first.

    Raises:
        GraphError: If a part would be empty.
    """
    if not 1 <= parts <= total:
        raise GraphError(f"a dimension of {total} is cut into 1 to {total} parts, not {parts}")
    return tuple(total // parts + (index < total % parts) for index in range(parts))
