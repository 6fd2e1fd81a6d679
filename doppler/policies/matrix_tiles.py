"""Products of small matrices in compiled code, with all sums in vector registers.

A plain loop keeps its sums in memory and spends more on the set-up of every row than on the row
itself where matrices are narrow. Here a few rows by up to three vectors of columns are summed at a
time, written as vector instructions, which LLVM turns into those that the processor has. How many
rows, and how wide a vector, is what its registers hold: 32 of 16 numbers with AVX-512, 16 of 8
elsewhere; sums that leave the registers cost a store per product.

Legend: K inner size, W columns.
"""

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from doppler.policies.tables import Singles
from simulator.machine_code import inlined

ROWS = 8
"""Rows of what is multiplied."""
_IS_WIDE = bool(llvm.get_host_cpu_features().get("avx512f", False))
LANES = 16 if _IS_WIDE else 8
"""Columns per vector."""
_FEW = ROWS if _IS_WIDE else ROWS // 2
"""Rows that are summed at a time where there are three vectors of columns."""

_SINGLE = ir.FloatType()
_VECTOR = ir.VectorType(_SINGLE, LANES)
_SUMS_MAY_BE_FUSED = ("contract",)


def _tile(rows: int, vectors: int) -> Callable[..., None]:
    """Returns `add(x, weights, out, top, column)`, which sums `rows` rows from `top` on.

    They are `vectors` x LANES columns from `column` on. The arrays are of float32 and C-contiguous.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, weights, out = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[:3], arguments[:3], strict=True)
        )
        top, column = arguments[3:]
        index = column.type
        inner, width = cgutils.unpack_tuple(builder, weights.shape, 2)
        x_width = cgutils.unpack_tuple(builder, x.shape, 2)[1]
        out_width = cgutils.unpack_tuple(builder, out.shape, 2)[1]

        def row_at(row: int) -> Any:
            return builder.add(top, ir.Constant(index, row))

        def vector_at(data: Any, row: Any, row_width: Any, vector: int) -> Any:
            offset = builder.add(builder.mul(row, row_width), column)
            offset = builder.add(offset, ir.Constant(index, vector * LANES))
            return builder.bitcast(builder.gep(data, [offset]), _VECTOR.as_pointer())

        places = [
            [vector_at(out.data, row_at(row), out_width, v) for v in range(vectors)]
            for row in range(rows)
        ]
        sums = [[cgutils.alloca_once(builder, _VECTOR) for _ in line] for line in places]
        for row in range(rows):
            for v in range(vectors):
                builder.store(builder.load(places[row][v], align=4), sums[row][v])
        with cgutils.for_range(builder, inner) as loop:
            k = loop.index
            terms = [
                builder.load(vector_at(weights.data, k, width, v), align=4) for v in range(vectors)
            ]
            for row in range(rows):
                offset = builder.add(builder.mul(row_at(row), x_width), k)
                factor = _filled(builder, builder.load(builder.gep(x.data, [offset])))
                for v in range(vectors):
                    product = builder.fmul(factor, terms[v], flags=_SUMS_MAY_BE_FUSED)
                    total = builder.fadd(
                        builder.load(sums[row][v]), product, flags=_SUMS_MAY_BE_FUSED
                    )
                    builder.store(total, sums[row][v])
        for row in range(rows):
            for v in range(vectors):
                builder.store(builder.load(sums[row][v]), places[row][v], align=4)
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def add(typing_context: Any, x: Any, weights: Any, out: Any, top: Any, column: Any) -> Any:
        matrix = types.Array(types.float32, 2, "C")
        if not all(value == matrix for value in (x, weights, out)):
            raise TypingError(
                "a product is of C-contiguous float32 matrices, and here are "
                f"{x}, {weights} and {out}"
            )
        return types.void(x, weights, out, types.intp, types.intp), codegen

    return add  # type: ignore[no-any-return]


def _filled(builder: Any, value: Any) -> Any:
    """A vector of equal numbers."""
    single = builder.insert_element(
        ir.Constant(_VECTOR, ir.Undefined), value, ir.Constant(ir.IntType(32), 0)
    )
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(single, ir.Constant(_VECTOR, ir.Undefined), zeros)


_add_1, _add_2, _add_3 = _tile(ROWS, 1), _tile(ROWS, 2), _tile(_FEW, 3)


@inlined(fastmath=True, error_model="numpy")
def multiply(x: Singles, weights: Singles, out: Singles) -> None:
    """Adds x (ROWS x K) times weights (K x W) to `out`, ROWS x W; all are C-contiguous float32.

    Sums run over K in order. Columns that do not fill a vector are added one by one.
    """
    width = weights.shape[1]
    column = 0
    while column + 3 * LANES <= width:
        for top in range(0, ROWS, _FEW):
            _add_3(x, weights, out, top, column)
        column += 3 * LANES
    if column + 2 * LANES <= width:
        _add_2(x, weights, out, 0, column)
        column += 2 * LANES
    if column + LANES <= width:
        _add_1(x, weights, out, 0, column)
        column += LANES
    for row in range(ROWS):
        for last in range(column, width):
            total = out[row, last]
            for k in range(weights.shape[0]):
                total += x[row, k] * weights[k, last]
            out[row, last] = np.float32(total)
