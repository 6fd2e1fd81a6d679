"""A program: what every dispatcher needs to know of a graph under a plan, worked out once."""

from collections.abc import Sequence
from dataclasses import dataclass

from doppler.core.graph import DataflowGraph, Edge, EdgeMode, InputResidency
from doppler.core.plan import Plan
from doppler.core.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTable:
    """What one op waits for and whom it tells; all tuples are fixed for the whole run.

    Attributes:
        requirements: Things that iteration i >= window waits for: tokens, credits, the op's own
            previous iteration, holds.
        initial_requirements: The same for iterations 0 to window - 1.
        local: (consumer, distance) for every edge that stays on the device.
        local_credits: (producer, window - distance) for every local producer.
        holds: Ops of the same device that wait for this one in the same iteration.
        sends: (output, destination device) of every tensor that leaves the device.
        credit_devices: Devices of remote producers, to be told when an iteration is done.
        reads: (producer, output, distance) of every token in-edge.
        latest: (producer, output, distance) of every `latest` in-edge, in edge order.
    """

    requirements: int
    initial_requirements: tuple[int, ...]
    local: tuple[tuple[int, int], ...]
    local_credits: tuple[tuple[int, int], ...]
    holds: tuple[int, ...]
    sends: tuple[tuple[int, int], ...]
    credit_devices: tuple[int, ...]
    reads: tuple[tuple[int, int, int], ...]
    latest: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTable:
    """What arrives at one device, and for whom.

    Attributes:
        ops: Ops placed here that run, ascending.
        consumers: (producer, output) -> ((consumer, distance), ...) of tensors sent here.
        credit_targets: Remote consumer -> ((local producer, window - distance), ...).
        readers: (producer, output) -> number of things that keep a version in memory here: token
            in-edges, sends away, and one for the newest version where `latest` edges read it.
        latest_tensors: Tensors that some `latest` edge reads here.
        initial_versions: (producer, output) -> number of initial versions that lie here at t = 0.
        initial_readers: (producer, output) -> readers of version -1, -2, ... of those.
        num_streams: Ops that may run at the same time.
        stream_copies: Destinations to which a copy is work on this device's stream.
    """

    ops: tuple[int, ...]
    consumers: dict[tuple[int, int], tuple[tuple[int, int], ...]]
    credit_targets: dict[int, tuple[tuple[int, int], ...]]
    readers: dict[tuple[int, int], int]
    latest_tensors: frozenset[tuple[int, int]]
    initial_versions: dict[tuple[int, int], int]
    initial_readers: dict[tuple[int, int], tuple[int, ...]]
    num_streams: int
    stream_copies: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Tables of all ops and devices.

    Attributes:
        ops: One table per op.
        devices: One table per device.
        placement: Device per op.
        ranks: Position per op in the order (priority descending, op id).
        window: The graph's window.
        runs: False for inputs that are resident everywhere.
        names: Op names, for messages.
        num_outputs: Outputs per op.
        credits: Per op: (consumer, window - distance), whose credits it needs.
        holds: The plan's holds.
    """

    ops: tuple[OpTable, ...]
    devices: tuple[DeviceTable, ...]
    placement: tuple[int, ...]
    ranks: tuple[int, ...]
    window: int
    runs: tuple[bool, ...]
    names: tuple[str, ...]
    num_outputs: tuple[int, ...]
    credits: tuple[tuple[tuple[int, int], ...], ...]
    holds: tuple[tuple[int, int], ...]


def compile_program(problem: Problem, plan: Plan) -> Program:
    """Returns the tables for a plan that `check_plan` accepts."""
    graph = problem.graph
    everywhere = graph.inputs is InputResidency.everywhere
    runs = tuple(not (op.is_input and everywhere) for op in graph.ops)
    edges = [edge for edge in graph.edges if runs[edge.src]]
    credits = _credit_distances(edges, plan.holds)
    return Program(
        ops=_op_tables(graph, plan, edges, credits),
        devices=_device_tables(problem, plan, edges, credits, runs),
        placement=plan.placement,
        ranks=plan.ranks(),
        window=graph.window,
        runs=runs,
        names=tuple(op.name for op in graph.ops),
        num_outputs=tuple(len(op.outputs) for op in graph.ops),
        credits=_credit_rows(graph, credits),
        holds=plan.holds,
    )


def _credit_distances(
    edges: Sequence[Edge], holds: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], int]:
    """(producer, consumer) -> largest distance; the strictest credit implies the others.

    A hold is an edge of distance 0, so it has a credit edge back like any other.
    """
    distances: dict[tuple[int, int], int] = dict.fromkeys(holds, 0)
    for edge in edges:
        if edge.src != edge.dst:
            key = (edge.src, edge.dst)
            distances[key] = max(distances.get(key, 0), edge.distance)
    return distances


def _credit_rows(
    graph: DataflowGraph, credits: dict[tuple[int, int], int]
) -> tuple[tuple[tuple[int, int], ...], ...]:
    rows: list[list[tuple[int, int]]] = [[] for _ in graph.ops]
    for (src, dst), distance in credits.items():
        rows[src].append((dst, graph.window - distance))
    return tuple(tuple(row) for row in rows)


def _op_tables(
    graph: DataflowGraph, plan: Plan, edges: list[Edge], credits: dict[tuple[int, int], int]
) -> tuple[OpTable, ...]:
    window, place = graph.window, plan.placement
    # Per op: from which iteration on each of its requirements exists (before that it is granted).
    first: list[list[int]] = [[1] for _ in graph.ops]  # its own previous iteration
    local: list[list[tuple[int, int]]] = [[] for _ in graph.ops]
    sends: list[dict[tuple[int, int], None]] = [{} for _ in graph.ops]
    reads: list[list[tuple[int, int, int]]] = [[] for _ in graph.ops]
    latest: list[list[tuple[int, int, int]]] = [[] for _ in graph.ops]
    for edge in edges:
        first[edge.dst].append(edge.distance)
        if place[edge.src] == place[edge.dst]:
            local[edge.src].append((edge.dst, edge.distance))
        else:
            sends[edge.src][edge.output, place[edge.dst]] = None
        target = latest if edge.mode is EdgeMode.latest else reads
        target[edge.dst].append((edge.src, edge.output, edge.distance))
    local_credits: list[list[tuple[int, int]]] = [[] for _ in graph.ops]
    credit_devices: list[set[int]] = [set() for _ in graph.ops]
    for (src, dst), distance in credits.items():
        first[src].append(window - distance)
        if place[src] == place[dst]:
            local_credits[dst].append((src, window - distance))
        else:
            credit_devices[dst].add(place[src])
    holds: list[list[int]] = [[] for _ in graph.ops]
    for before, after in plan.holds:
        holds[before].append(after)
        first[after].append(0)
    return tuple(
        OpTable(
            requirements=len(first[op]),
            initial_requirements=tuple(
                sum(1 for start in first[op] if start <= iteration) for iteration in range(window)
            ),
            local=tuple(local[op]),
            local_credits=tuple(local_credits[op]),
            holds=tuple(holds[op]),
            sends=tuple(sorted(sends[op])),
            credit_devices=tuple(sorted(credit_devices[op])),
            reads=tuple(reads[op]),
            latest=tuple(latest[op]),
        )
        for op in range(graph.num_ops)
    )


def _device_tables(
    problem: Problem,
    plan: Plan,
    edges: list[Edge],
    credits: dict[tuple[int, int], int],
    runs: tuple[bool, ...],
) -> tuple[DeviceTable, ...]:
    graph, cluster, place = problem.graph, problem.cluster, plan.placement
    num_devices = cluster.num_devices
    consumers: list[dict[tuple[int, int], list[tuple[int, int]]]] = [{} for _ in range(num_devices)]
    tokens: list[dict[tuple[int, int], int]] = [{} for _ in range(num_devices)]
    latest: list[set[tuple[int, int]]] = [set() for _ in range(num_devices)]
    initial: list[dict[tuple[int, int], int]] = [{} for _ in range(num_devices)]
    destinations: dict[tuple[int, int], set[int]] = {}
    for edge in edges:
        device, tensor = place[edge.dst], (edge.src, edge.output)
        if place[edge.src] != device:
            consumers[device].setdefault(tensor, []).append((edge.dst, edge.distance))
            destinations.setdefault(tensor, set()).add(device)
        if edge.mode is EdgeMode.latest:
            latest[device].add(tensor)
        else:
            tokens[device][tensor] = tokens[device].get(tensor, 0) + 1
        if edge.distance:
            initial[device][tensor] = max(initial[device].get(tensor, 0), edge.distance)
    targets: list[dict[int, list[tuple[int, int]]]] = [{} for _ in range(num_devices)]
    for (src, dst), distance in credits.items():
        if place[src] != place[dst]:
            entry = targets[place[src]].setdefault(dst, [])
            entry.append((src, graph.window - distance))
    tables: list[DeviceTable] = []
    for device in range(num_devices):
        readers = dict(tokens[device])
        for tensor in latest[device]:
            readers[tensor] = readers.get(tensor, 0) + 1
        for tensor, others in destinations.items():
            if place[tensor[0]] == device:
                readers[tensor] = readers.get(tensor, 0) + len(others)
        tables.append(
            DeviceTable(
                ops=tuple(op for op in range(graph.num_ops) if runs[op] and place[op] == device),
                consumers={key: tuple(value) for key, value in consumers[device].items()},
                credit_targets={key: tuple(value) for key, value in targets[device].items()},
                readers=readers,
                latest_tensors=frozenset(latest[device]),
                initial_versions=initial[device],
                initial_readers=_initial_readers(initial[device], edges, place, device),
                num_streams=cluster.devices[device].num_streams,
                stream_copies=_stream_copies(problem, device),
            )
        )
    return tuple(tables)


def _initial_readers(
    initial: dict[tuple[int, int], int], edges: list[Edge], place: Sequence[int], device: int
) -> dict[tuple[int, int], tuple[int, ...]]:
    """Version -v of an edge of distance k >= v is read by iteration k - v: one token reader.

    A tensor with `latest` edges keeps one more reader, as long as the version is the newest.
    """
    readers = {tensor: [0] * count for tensor, count in initial.items()}
    held: set[tuple[int, int]] = set()
    for edge in edges:
        tensor = (edge.src, edge.output)
        if place[edge.dst] != device or tensor not in readers:
            continue
        if edge.mode is EdgeMode.latest:
            held.add(tensor)
            continue
        for version in range(edge.distance):
            readers[tensor][version] += 1
    return {
        tensor: tuple(count + (tensor in held) for count in counts)
        for tensor, counts in readers.items()
    }


def _stream_copies(problem: Problem, device: int) -> frozenset[int]:
    cluster = problem.cluster
    if cluster.devices[device].copy_engines > 0:
        return frozenset()
    return frozenset(
        dst
        for (src, dst), link in cluster.link_table.items()
        if src == device and link.bytes_per_s is not None
    )
