"""A tensor program: for each op of a tensor graph, what it computes on which shapes."""

from dataclasses import dataclass

from doppler.core.graph import DataflowGraph

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """What one op computes; operands come in the order of the op's in-edges.

    Attributes:
        kind: "input", "matmul", "sum" (element-wise over all operands; one operand: a copy),
            "add", "relu", "row_max", "row_sum", "row_mean", "subtract", "divide" (operand 1 is a
            column that is broadcast over the columns of operand 0), "multiply" (operand 1 may be
            a column, a row or a scalar), "exp", "square", "rsqrt" (of x + 1e-5), "sigmoid",
            "concat_rows", "concat_cols", "select_last" (the last row); for attention with stacked
            heads (see `doppler.graphs.tensor_kinds`) "to_complex", "to_real", "rotate" (complex
            product with the table of operand 1, the same for every head), "head_scores",
            "add_mask" (operand 1 is added to every head), "head_mix".
        in_shapes: Shape of each operand.
        out_shapes: Shape of each output. More than one: the result cut into equal row blocks.
    """

    kind: str
    in_shapes: tuple[Shape, ...]
    out_shapes: tuple[Shape, ...]


@dataclass(frozen=True, kw_only=True)
class TensorProgram:
    """A graph and what its ops compute.

    Attributes:
        graph: The graph; sizes and work follow from the instructions.
        instructions: One per op name.
        dtype: numpy name of the element type, the same for all tensors.
    """

    graph: DataflowGraph
    instructions: dict[str, Instruction]
    dtype: str
