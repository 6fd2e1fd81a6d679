"""`GraphBuilder`: a graph written op by op, with tensors as small handles.

>>> builder = GraphBuilder("two_steps")
>>> x = builder.input("x", 400)
>>> y = builder.op("scale", "scale", inputs=[x], outputs=[400], flop=100)
>>> z = builder.op("sum", "sum", inputs=[y], outputs=[4], flop=100)
>>> builder.build().num_ops
3
"""

from collections.abc import Sequence
from dataclasses import dataclass

from doppler.core.errors import GraphError, nearest
from doppler.core.graph import (
    DEFAULT_WINDOW,
    INPUT_KIND,
    DataflowGraph,
    Edge,
    EdgeMode,
    Group,
    InputResidency,
    Op,
)


@dataclass(frozen=True, slots=True)
class Tensor:
    """One output of one op.

    Attributes:
        op: Op id.
        output: Position among the op's outputs.
        num_bytes: Its size.
    """

    op: int
    output: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class BuiltOp:
    """An op of the builder; `handle[k]` is its k-th output.

    Where a tensor is wanted, an op with exactly one output stands for that output.

    Attributes:
        op: Op id.
        name: Op name.
        outputs: Its output tensors.
    """

    op: int
    name: str
    outputs: tuple[Tensor, ...]

    def __getitem__(self, output: int) -> Tensor:
        if not 0 <= output < len(self.outputs):
            raise GraphError(
                f"op {self.name!r} has {len(self.outputs)} outputs, and output {output} is read"
            )
        return self.outputs[output]


class GraphBuilder:
    """Collects ops, edges and groups; `build` checks and freezes them.

    Attributes:
        name: Name of the graph.
        window: Iterations in flight.
        residency: Where graph inputs are resident.
    """

    def __init__(
        self,
        name: str,
        window: int = DEFAULT_WINDOW,
        residency: InputResidency = InputResidency.everywhere,
    ) -> None:
        self.name = name
        self.window = window
        self.residency = residency
        self._ops: list[Op] = []
        self._moved_by_default: list[bool] = []
        self._edges: list[Edge] = []
        self._groups: dict[str, int] = {}
        self._ids: dict[str, int] = {}

    def input(self, name: str, num_bytes: int) -> Tensor:
        """Adds a graph input of `num_bytes` and returns its tensor."""
        return self._add(Op(kind=INPUT_KIND, name=name, outputs=(num_bytes,)), False)[0]

    def op(
        self,
        name: str,
        kind: str,
        inputs: Sequence[Tensor | BuiltOp] = (),
        outputs: Sequence[int] = (),
        *,
        flop: int = 0,
        bytes_moved: int | None = None,
        group: str | None = None,
        meta_op: str | None = None,
        device_kinds: Sequence[str] = (),
    ) -> BuiltOp:
        """Adds an op and the edges of distance 0 that feed it.

        Args:
            name: Unique name.
            kind: What is computed.
            inputs: Tensors that it reads, in the order that its kernel expects.
            outputs: Bytes of each output.
            flop: Floating-point operations.
            bytes_moved: Bytes read and written; None = all inputs (loops too) and all outputs.
            group: Colocation group; declare its state with `group`.
            meta_op: Tensor operation that this op is a shard of.
            device_kinds: Kinds of device that may run it; empty = any.

        Raises:
            GraphError: If the name is taken or an input is not one tensor.
        """
        tensors = [self._tensor(value, name) for value in inputs]
        built = self._add(
            Op(
                kind=kind,
                name=name,
                outputs=tuple(outputs),
                flop=flop,
                bytes_moved=bytes_moved or 0,
                group=group,
                meta_op=meta_op,
                device_kinds=tuple(device_kinds),
            ),
            bytes_moved is None,
        )
        self._edges += [Edge(tensor.op, tensor.output, built.op) for tensor in tensors]
        if group is not None:
            self._groups.setdefault(group, 0)
        return built

    def loop(
        self,
        tensor: Tensor | BuiltOp,
        op: BuiltOp | str,
        distance: int = 1,
        mode: EdgeMode = EdgeMode.token,
    ) -> None:
        """Lets `tensor` of iteration i feed `op` in iteration i + distance, as its next input.

        Raises:
            GraphError: If the distance is below 1 or the op is unknown.
        """
        if distance < 1:
            raise GraphError(f"a loop-carried edge has a distance of at least 1, not {distance}")
        self.connect(tensor, op, distance, mode)

    def connect(
        self,
        tensor: Tensor | BuiltOp,
        op: BuiltOp | str,
        distance: int = 0,
        mode: EdgeMode = EdgeMode.token,
    ) -> None:
        """Adds any edge to an op that is there already, as its next input.

        Raises:
            GraphError: If the op is unknown.
        """
        name = op if isinstance(op, str) else op.name
        if name not in self._ids:
            raise GraphError(f"an edge ends in the unknown op {name!r}; {nearest(name, self._ids)}")
        source = self._tensor(tensor, name)
        self._edges.append(Edge(source.op, source.output, self._ids[name], distance, mode))

    def group(self, name: str, state_bytes: int) -> None:
        """Declares the state that lives with a group; ops may have named the group before.

        Raises:
            GraphError: If it was declared with another size.
        """
        known = self._groups.get(name, 0)
        if known not in (0, state_bytes):
            raise GraphError(
                f"group {name!r} is declared with {known} and with {state_bytes} bytes of state"
            )
        self._groups[name] = state_bytes

    def build(self) -> DataflowGraph:
        """Returns the graph.

        Raises:
            GraphError: If it breaks a rule of `DataflowGraph`.
        """
        read = [0] * len(self._ops)
        for edge in self._edges:
            read[edge.dst] += self._ops[edge.src].outputs[edge.output]
        ops = tuple(
            _with_bytes_moved(op, read[index] + sum(op.outputs)) if by_default else op
            for index, (op, by_default) in enumerate(
                zip(self._ops, self._moved_by_default, strict=True)
            )
        )
        return DataflowGraph(
            name=self.name,
            ops=ops,
            edges=tuple(self._edges),
            groups=tuple(Group(name, size) for name, size in self._groups.items()),
            window=self.window,
            inputs=self.residency,
        )

    def _add(self, op: Op, moved_by_default: bool) -> BuiltOp:
        if op.name in self._ids:
            raise GraphError(f"op names are unique, and {op.name!r} is added twice")
        index = len(self._ops)
        self._ids[op.name] = index
        self._ops.append(op)
        self._moved_by_default.append(moved_by_default)
        outputs = tuple(Tensor(index, k, size) for k, size in enumerate(op.outputs))
        return BuiltOp(index, op.name, outputs)

    def _tensor(self, value: Tensor | BuiltOp, reader: str) -> Tensor:
        if isinstance(value, Tensor):
            return value
        if len(value.outputs) != 1:
            raise GraphError(
                f"op {reader!r} reads op {value.name!r} as one tensor, and that has "
                f"{len(value.outputs)} outputs: index it"
            )
        return value.outputs[0]


def _with_bytes_moved(op: Op, bytes_moved: int) -> Op:
    return Op(
        kind=op.kind,
        name=op.name,
        outputs=op.outputs,
        flop=op.flop,
        bytes_moved=bytes_moved,
        group=op.group,
        meta_op=op.meta_op,
        device_kinds=op.device_kinds,
    )
