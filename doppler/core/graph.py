"""The dataflow graph: ops, edges, colocation groups, and the rules that every graph obeys."""

import enum
import hashlib
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from doppler.core.errors import GraphError

INPUT_KIND = "input"
DEFAULT_WINDOW = 3
MAX_WINDOW = 1 << 16
"""Every op has a counter per iteration of the window: without a limit they would fill memory."""


class EdgeMode(enum.Enum):
    """How a consumer reads: `token` binds i to i + distance, `latest` reads the newest version."""

    token = "token"
    latest = "latest"


class InputResidency(enum.Enum):
    """Where graph inputs lie at t = 0: on every device, or only on the device of their pin."""

    everywhere = "everywhere"
    pinned = "pinned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One kernel call of an iteration; its id is its position in `DataflowGraph.ops`.

    Attributes:
        kind: What is computed ("matmul", "rollout"); `input` marks a graph input.
        name: Unique name, also the coordinates of the op ("grad[0,1,2]").
        outputs: Bytes of each output tensor.
        flop: Floating-point operations (1 multiply-add = 2).
        bytes_moved: Bytes read and written by the op itself.
        group: Colocation group, or None.
        meta_op: Name of the tensor operation that this op is a shard of, or None.
        device_kinds: Kinds of device that may run it; empty = any.
    """

    kind: str
    name: str
    outputs: tuple[int, ...] = ()
    flop: int = 0
    bytes_moved: int = 0
    group: str | None = None
    meta_op: str | None = None
    device_kinds: tuple[str, ...] = ()

    @property
    def is_input(self) -> bool:
        """True for a graph input: zero time, never placed by a policy."""
        return self.kind == INPUT_KIND


@dataclass(frozen=True, slots=True)
class Edge:
    """Tensor `output` of op `src`, iteration i, feeds op `dst` in iteration i + `distance`."""

    src: int
    output: int
    dst: int
    distance: int = 0
    mode: EdgeMode = EdgeMode.token


@dataclass(frozen=True, slots=True)
class Group:
    """Ops that must share a device, with the bytes of state that lives there once."""

    name: str
    state_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class DataflowGraph:
    """A validated dataflow graph, repeated once per iteration.

    Attributes:
        name: Name of the workload.
        ops: All ops; ids are positions.
        edges: All edges; ids are positions. Input k of an op is its k-th in-edge in this order.
        groups: Colocation groups named by ops.
        window: Iterations that may be in flight along an edge; larger than every distance, at most
            `MAX_WINDOW`.
        inputs: Where graph inputs are resident.

    Raises:
        GraphError: If a rule is broken; the message names rule, value and place.
    """

    name: str
    ops: tuple[Op, ...]
    edges: tuple[Edge, ...] = ()
    groups: tuple[Group, ...] = ()
    window: int = DEFAULT_WINDOW
    inputs: InputResidency = InputResidency.everywhere

    def __post_init__(self) -> None:
        _check_ops(self)
        _check_edges(self)
        _check_groups(self)
        _ = self.topological_order

    @property
    def num_ops(self) -> int:
        """Number of ops, inputs included."""
        return len(self.ops)

    @cached_property
    def in_edges(self) -> tuple[tuple[int, ...], ...]:
        """Edge ids that end in each op, ascending: the order of the op's inputs."""
        return _incident(self.num_ops, [edge.dst for edge in self.edges])

    @cached_property
    def out_edges(self) -> tuple[tuple[int, ...], ...]:
        """Edge ids that start in each op, ascending."""
        return _incident(self.num_ops, [edge.src for edge in self.edges])

    @cached_property
    def topological_order(self) -> tuple[int, ...]:
        """Op ids in topological order over distance-0 edges, smallest id first among equals."""
        return _topological_order(self)

    @cached_property
    def op_ids(self) -> dict[str, int]:
        """Op name -> op id."""
        return {op.name: index for index, op in enumerate(self.ops)}

    @cached_property
    def group_members(self) -> dict[str, tuple[int, ...]]:
        """Group name -> ids of its ops, ascending."""
        members: dict[str, list[int]] = {group.name: [] for group in self.groups}
        for index, op in enumerate(self.ops):
            if op.group is not None:
                members[op.group].append(index)
        return {name: tuple(ids) for name, ids in members.items()}

    @cached_property
    def placeable(self) -> tuple[int, ...]:
        """Ids of the ops that a planner places (all but inputs)."""
        return tuple(index for index, op in enumerate(self.ops) if not op.is_input)

    @property
    def is_cyclic(self) -> bool:
        """True if some edge has a distance, so that iterations depend on each other."""
        return any(edge.distance for edge in self.edges)

    @cached_property
    def digest(self) -> str:
        """Content hash over everything that can change a result (the graph's name cannot)."""
        rows: list[str] = [f"window={self.window};inputs={self.inputs.value}"]
        rows += [
            f"op:{_field(op.kind)}|{_field(op.name)}|{op.outputs}|{op.flop}|{op.bytes_moved}|"
            f"{_field(op.group)}|{_field(op.meta_op)}|{op.device_kinds}"
            for op in self.ops
        ]
        rows += [f"edge:{e.src},{e.output},{e.dst},{e.distance},{e.mode.value}" for e in self.edges]
        rows += [f"group:{_field(group.name)}|{group.state_bytes}" for group in self.groups]
        return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:32]


def _field(text: str | None) -> str:
    """Text in a row of the digest: no name looks like the end of a field, or like no name."""
    if text is None or not (text == "None" or any(mark in text for mark in "|\\\n")):
        return str(text)
    return "\\" + text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "\\n")


def _incident(num_ops: int, ends: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    lists: list[list[int]] = [[] for _ in range(num_ops)]
    for edge_id, op in enumerate(ends):
        lists[op].append(edge_id)
    return tuple(tuple(ids) for ids in lists)


def _check_ops(graph: DataflowGraph) -> None:
    if not graph.ops:
        raise GraphError(f"a graph needs at least one op, and graph {graph.name!r} has none")
    seen: dict[str, int] = {}
    for index, op in enumerate(graph.ops):
        where = f"op {index} ({op.name!r}) of graph {graph.name!r}"
        if not op.kind or not op.name:
            raise GraphError(f"an op needs a kind and a name, and {where} has kind {op.kind!r}")
        if op.name in seen:
            raise GraphError(
                f"op names are unique, and {where} repeats the name of op {seen[op.name]}"
            )
        seen[op.name] = index
        for label, values in (
            ("output bytes", op.outputs),
            ("flop", (op.flop,)),
            ("bytes_moved", (op.bytes_moved,)),
        ):
            bad = [value for value in values if not isinstance(value, int) or value < 0]
            if bad:
                raise GraphError(f"{label} are integers of at least 0, and {where} has {bad[0]!r}")


def _check_edges(graph: DataflowGraph) -> None:
    if not 1 <= graph.window <= MAX_WINDOW:
        raise GraphError(
            f"the window is at least 1 and at most {MAX_WINDOW}, and graph {graph.name!r} has "
            f"{graph.window}"
        )
    for index, edge in enumerate(graph.edges):
        where = f"edge {index} ({edge.src} -> {edge.dst}) of graph {graph.name!r}"
        for end in (edge.src, edge.dst):
            if not 0 <= end < graph.num_ops:
                raise GraphError(f"{where} names op {end}, and ops are 0 to {graph.num_ops - 1}")
        num_outputs = len(graph.ops[edge.src].outputs)
        if not 0 <= edge.output < num_outputs:
            raise GraphError(
                f"{where} reads output {edge.output}, and op {graph.ops[edge.src].name!r} has "
                f"{num_outputs} outputs"
            )
        if not 0 <= edge.distance < graph.window:
            raise GraphError(
                f"a distance is at least 0 and below the window ({graph.window}), "
                f"and {where} has {edge.distance}"
            )
        if graph.ops[edge.dst].is_input:
            raise GraphError(f"an input has no in-edge, and {where} ends in one")
        if graph.ops[edge.src].is_input and edge.distance:
            raise GraphError(f"an input feeds every iteration at distance 0, and {where} has more")


def _check_groups(graph: DataflowGraph) -> None:
    names = [group.name for group in graph.groups]
    if len(set(names)) != len(names):
        raise GraphError(f"group names are unique, and graph {graph.name!r} has {sorted(names)}")
    for group in graph.groups:
        if group.state_bytes < 0:
            raise GraphError(f"group {group.name!r} has negative state_bytes {group.state_bytes}")
    for index, op in enumerate(graph.ops):
        if op.group is not None and op.group not in names:
            raise GraphError(
                f"op {index} ({op.name!r}) is in group {op.group!r}, and the graph declares "
                f"{', '.join(sorted(names)) or 'no group'}"
            )
        if op.group is not None and op.is_input:
            raise GraphError(
                f"an input has no group, and op {index} ({op.name!r}) has {op.group!r}"
            )


def _topological_order(graph: DataflowGraph) -> tuple[int, ...]:
    missing = [0] * graph.num_ops
    for edge in graph.edges:
        if edge.distance == 0:
            missing[edge.dst] += 1
    heap = [op for op in range(graph.num_ops) if missing[op] == 0]
    order: list[int] = []
    while heap:
        op = heapq.heappop(heap)
        order.append(op)
        for edge_id in graph.out_edges[op]:
            edge = graph.edges[edge_id]
            if edge.distance == 0:
                missing[edge.dst] -= 1
                if missing[edge.dst] == 0:
                    heapq.heappush(heap, edge.dst)
    if len(order) < graph.num_ops:
        circle = " -> ".join(graph.ops[op].name for op in _find_circle(graph, missing))
        raise GraphError(
            f"edges of distance 0 form no circle, and graph {graph.name!r} has {circle}"
        )
    return tuple(order)


def _find_circle(graph: DataflowGraph, missing: Sequence[int]) -> list[int]:
    """Walks backwards among the ops that never became free until one repeats."""
    op = next(index for index, count in enumerate(missing) if count > 0)
    path: list[int] = []
    while op not in path:
        path.append(op)
        op = next(
            graph.edges[e].src
            for e in graph.in_edges[op]
            if graph.edges[e].distance == 0 and missing[graph.edges[e].src] > 0
        )
    circle = [*path[path.index(op) :], op]
    return circle[::-1]
