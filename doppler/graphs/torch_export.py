"""Graphs of PyTorch modules through `torch.export`: true bytes on edges, work from shapes.

The module is exported, decomposed to core ATen ops, and read from the metadata of its fake
tensors, so nothing is computed and no weight is copied. An op's kind is its ATen name; parameters,
buffers and arguments are graph inputs. Sharding is left to the user.

- A view of a whole tensor (reshape, permute, expand) is that tensor: it is no op. A view of a part
  (slice, select, split) is an op without work, so that only the part is sent to another device.
- Work: the formulas of `torch.utils.flop_counter` for matrix products, convolutions and attention;
  one flop per output element for pointwise ops, one per input element for reductions, none for
  copies; for any other op one per element of its largest tensor, and the kind is reported.
- Bytes moved: all tensors that an op reads and writes, one that is read twice twice.

This is the only file of the package that imports torch; nothing imports it by itself.
"""

import math
import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from doppler.core.errors import GraphError
from doppler.core.graph import DataflowGraph
from doppler.graphs.builder import BuiltOp, GraphBuilder, Tensor
from doppler.graphs.imported import ImportedGraph, count_in

COPIES = frozenset(
    (
        "alias", "arange", "cat", "clone", "constant_pad_nd", "copy", "embedding", "empty",
        "fill", "flip", "full", "full_like", "gather", "index", "index_select", "repeat",
        "scalar_tensor", "select_scatter", "slice_scatter", "stack", "_to_copy",
    )
)  # fmt: skip


def graph_of_module(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> ImportedGraph:
    """Returns the graph of one call of a module.

    Args:
        module: What is called; call `.eval()` first for inference.
        args: Example arguments; their shapes and types are those of the graph.
        kwargs: Example keyword arguments.
        name: Name of the graph; None = the module's class.

    Raises:
        GraphError: If a size depends on data or is symbolic, or the module holds control flow.
        torch.export's errors: If the module cannot be exported.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch warns of itself
        program = torch.export.export(module, tuple(args), dict(kwargs or {}))
    return graph_of_program(program, name or type(module).__name__)


def graph_of_program(program: torch.export.ExportedProgram, name: str) -> ImportedGraph:
    """Returns the graph of an exported program; see `graph_of_module`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        nodes = program.run_decompositions().graph.nodes
    reader = _Reader(name)
    for node in nodes:
        reader.read(node)
    return ImportedGraph(graph=reader.build(), ignored=dict(sorted(reader.ignored.items())))


class _Reader:
    """Adds one node after the other.

    Attributes:
        ignored: What was left out, and kinds whose work is a guess.
    """

    def __init__(self, name: str) -> None:
        self.ignored: dict[str, int] = {}
        self._builder = GraphBuilder(name)
        self._tensors: dict[Any, Tensor | BuiltOp] = {}

    def build(self) -> DataflowGraph:
        return self._builder.build()

    def read(self, node: Any) -> None:
        if node.op == "placeholder":
            self._input(node)
        elif node.op == "call_function" and node.target is operator.getitem:
            source, index = node.args
            built = self._tensors[source]
            self._tensors[node] = built[index] if isinstance(built, BuiltOp) else built
        elif node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            self._op(node)
        elif node.op != "output":
            raise GraphError(
                f"a program is made of ATen ops, and node {node.name!r} is {node.op} of "
                f"{node.target} (control flow has no dataflow graph)"
            )

    def _input(self, node: Any) -> None:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            count_in(self.ignored, "argument that is no tensor")
        elif not node.users:
            count_in(self.ignored, "tensor that no op reads")
        else:
            self._tensors[node] = self._builder.input(node.name, _num_bytes(value, node))

    def _op(self, node: Any) -> None:
        operands = [arg for arg in _flat([node.args, node.kwargs]) if arg in self._tensors]
        results = _results(node)
        whole = self._viewed(node, operands, results)
        if whole is not None:
            self._tensors[node] = whole
            return
        is_view = _is_view(node)
        self._tensors[node] = self._builder.op(
            node.name,
            str(node.target.overloadpacket),
            [self._tensors[arg] for arg in operands],
            [_num_bytes(value, node) for value in results],
            flop=0 if is_view else self._flop(node, operands, results),
            bytes_moved=0 if is_view else None,
        )

    def _viewed(
        self, node: Any, operands: Sequence[Any], results: Sequence[Any]
    ) -> Tensor | BuiltOp | None:
        """The tensor that a view shows the whole of, or None."""
        if not _is_view(node) or len(results) != 1 or not operands:
            return None
        base = operands[0].meta["val"]
        return self._tensors[operands[0]] if results[0].numel() >= base.numel() else None

    def _flop(self, node: Any, operands: Sequence[Any], results: Sequence[Any]) -> int:
        packet, tags = node.target.overloadpacket, node.target.tags
        if packet in flop_registry:
            args = torch.fx.node.map_arg(node.args, _value)
            kwargs = torch.fx.node.map_arg(node.kwargs, _value)
            return int(flop_registry[packet](*args, **kwargs, out_val=node.meta["val"]))
        inputs = [arg.meta["val"] for arg in operands]
        if packet.__name__ in COPIES:
            return 0
        if torch.Tag.pointwise in tags:
            return sum(_numel(value) for value in results)
        if torch.Tag.reduction in tags:
            return sum(_numel(value) for value in inputs)
        count_in(self.ignored, f"formula of {packet} (one flop per element instead)")
        return max((_numel(value) for value in (*inputs, *results)), default=0)


def _value(node: Any) -> Any:
    return node.meta["val"]


def _flat(value: Any) -> list[Any]:
    """All nodes among (nested) arguments, in order, with repetitions."""
    if isinstance(value, torch.fx.Node):
        return [value]
    if isinstance(value, Mapping):
        return [node for item in value.values() for node in _flat(item)]
    if isinstance(value, list | tuple):
        return [node for item in value for node in _flat(item)]
    return []


def _results(node: Any) -> list[Any]:
    value = node.meta["val"]
    return list(value) if isinstance(value, list | tuple) else [value]


def _is_view(node: Any) -> bool:
    """True if the results share memory with an operand, by the op's schema."""
    returns = node.target._schema.returns
    return bool(returns) and all(result.alias_info is not None for result in returns)


def _numel(value: Any) -> int:
    return math.prod(value.shape) if isinstance(value, torch.Tensor) else 0


def _num_bytes(value: Any, node: Any) -> int:
    """Bytes of a tensor as it is sent; 0 for a result that is left out."""
    if value is None:
        return 0
    if not isinstance(value, torch.Tensor) or not all(type(size) is int for size in value.shape):
        raise GraphError(
            f"sizes are numbers, and node {node.name!r} has a result {value} of a size that is not "
            f"known before it runs"
        )
    return _numel(value) * value.element_size()
