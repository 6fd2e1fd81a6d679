"""The ops of a job by name, with their inputs by name; ids are given when all names are known."""

from collections.abc import Callable
from dataclasses import dataclass

from doppler.core.graph import INPUT_KIND, DataflowGraph, Edge, EdgeMode, Group, Op

Input = tuple[str, int, int, EdgeMode]
"""Name of the producer, output, distance, mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSize:
    """Bytes and work of every op of one kind.

    Attributes:
        outputs: Bytes of each output.
        flop: Floating-point operations of one op.
        bytes_moved: Bytes that one op reads and writes.
        state_bytes: Bytes of group state that the kind keeps (once per group).
    """

    outputs: tuple[int, ...]
    flop: int = 0
    bytes_moved: int = 0
    state_bytes: int = 0


SizeOf = Callable[[str, tuple[int, ...]], OpSize]
"""Returns the size of the op of a kind at its coordinates.

`reduce` is as large as with the parts of all trainers, `reduce_chunk` as with two.
"""


def text_of(at: tuple[int, ...]) -> str:
    """Returns coordinates as they stand in a name."""
    return ",".join(map(str, at))


def token(name: str, output: int, distance: int = 0) -> Input:
    """Returns an input that reads one iteration's output of an op."""
    return (name, output, distance, EdgeMode.token)


class JobRows:
    """Ops by name with their inputs by name."""

    def __init__(self, size_of: SizeOf) -> None:
        self.size_of = size_of
        self._ops: list[Op] = []
        self._inputs: list[list[Input]] = []
        self._groups: dict[str, int] = {}

    def add(
        self,
        kind: str,
        at: tuple[int, ...],
        meta_op: str,
        inputs: list[Input],
        group: str | None = None,
        size: OpSize | None = None,
        device_kinds: tuple[str, ...] = (),
    ) -> None:
        """Adds an op.

        Args:
            kind: Kind of the op.
            at: Its coordinates; with the kind they are its name.
            meta_op: Tensor operation that it is a shard of.
            inputs: What it reads, in the order that its kernel relies on.
            group: Colocation group.
            size: Its size, where it is not that of its kind.
            device_kinds: Kinds of device that may run it; empty = any.
        """
        size = size or self.size_of(kind, at)
        name = f"{kind}[{text_of(at)}]" if at else kind
        self._ops.append(
            Op(
                kind=kind,
                name=name,
                outputs=size.outputs,
                flop=size.flop,
                bytes_moved=size.bytes_moved,
                group=group,
                meta_op=meta_op,
                device_kinds=device_kinds,
            )
        )
        self._inputs.append(inputs)
        if group is not None:
            self._groups[group] = max(self._groups.get(group, 0), size.state_bytes)

    def add_input(self, name: str, outputs: tuple[int, ...]) -> None:
        """Adds a graph input."""
        self._ops.append(Op(kind=INPUT_KIND, name=name, outputs=outputs))
        self._inputs.append([])

    def graph(self, name: str, window: int) -> DataflowGraph:
        """Returns the graph of all ops."""
        ids = {op.name: index for index, op in enumerate(self._ops)}
        edges = tuple(
            Edge(ids[src], output, dst, distance, mode)
            for dst, inputs in enumerate(self._inputs)
            for src, output, distance, mode in inputs
        )
        return DataflowGraph(
            name=name,
            ops=tuple(self._ops),
            edges=edges,
            groups=tuple(Group(group, size) for group, size in self._groups.items()),
            window=window,
        )
