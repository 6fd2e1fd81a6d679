"""Validates a simulated schedule against problem, costs and plan, without engine or dispatcher.

`check_trace` holds the rules that need no times: every op once and where the plan says, causes
before effects, streams, order, transfers, FIFO buses, no idle stream while work is ready. Here the
costs come in, so nothing is tolerated any more, and two further rules are checked: how long every
op takes, and how much memory is in use.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field

from doppler.core.costs import Costs
from doppler.core.errors import TraceError
from doppler.core.graph import Edge, EdgeMode, InputResidency
from doppler.core.plan import Plan, check_plan
from doppler.core.problem import Problem
from doppler.core.trace import OpSpan, Trace
from doppler.core.validate import check_trace

NEVER = 1 << 62


def check_schedule(problem: Problem, costs: Costs, plan: Plan, trace: Trace) -> None:
    """Checks that a schedule is what the runtime's rules make of the plan at these costs.

    Args:
        problem: What is run.
        costs: Times of its ops; noise is not known here.
        plan: Where and in which order.
        trace: The schedule, as an engine gives it.

    Raises:
        PlanError: If the plan does not fit the problem.
        TraceError: If a rule is broken; names the rule, the op and the iteration.
    """
    check_plan(problem, plan)
    spans = tuple(
        dataclasses.replace(span, start_ns=span.start_ns - costs.dispatch_ns[span.device])
        for span in trace.op_spans
    )
    # A stream is taken from the dispatch on: seen so, every rule holds to the nanosecond.
    check_trace(problem, plan, dataclasses.replace(trace, op_spans=spans))
    _check_durations(problem, costs, spans)
    _check_memory(problem, plan, trace, spans)


def _check_durations(problem: Problem, costs: Costs, spans: tuple[OpSpan, ...]) -> None:
    """An op takes its time, longer for every sibling device that is busy when it is dispatched."""
    by_device: list[list[OpSpan]] = [[] for _ in problem.cluster.devices]
    for span in spans:
        by_device[span.device].append(span)
    for span in spans:
        at_ns, op_ns = span.start_ns, costs.op_ns[span.op][span.device]
        took_ns = span.end_ns - at_ns - costs.dispatch_ns[span.device]
        slowdown = costs.slowdown_permille[span.op]
        siblings = problem.cluster.siblings[span.device] if slowdown else ()
        # What else begins at the same instant may belong to an earlier or a later round.
        surely = sum(
            any(other.start_ns < at_ns < other.end_ns for other in by_device[sibling])
            for sibling in siblings
        )
        at_most = sum(
            any(
                other.start_ns < at_ns < other.end_ns or other.start_ns == at_ns
                for other in by_device[sibling]
            )
            for sibling in siblings
        )
        valid = [op_ns * (1000 + n * slowdown) // 1000 for n in range(surely, at_most + 1)]
        if took_ns not in valid:
            raise TraceError(
                f"an op takes the time of its costs ({' or '.join(map(str, valid))} ns), and op "
                f"{span.op} ({problem.graph.ops[span.op].name!r}) of iteration {span.iteration} "
                f"took {took_ns}"
            )


@dataclass(frozen=True, slots=True)
class _Buffer:
    """Bytes on a device from `start_ns` to `end_ns`, with the op whose output they are."""

    start_ns: int
    end_ns: int
    num_bytes: int
    op: int


def _check_memory(problem: Problem, plan: Plan, trace: Trace, spans: tuple[OpSpan, ...]) -> None:
    """Peaks are what the lives of the tensors add up to, and within the limits.

    What begins and ends at one instant may or may not overlap there, so a peak lies between the sum
    over what outlives an instant and the sum over all that touches it.
    """
    buffers_of = _buffers(problem, plan, trace, spans)
    for device, resident in enumerate(_resident_bytes(problem, plan)):
        buffers = buffers_of[device]
        least, op = _peak(buffers, 0)
        most, _ = _peak(buffers, 1)
        name = problem.cluster.devices[device].name
        found, limit = trace.peak_bytes[device], problem.memory_limit_bytes(device)
        if not resident + least <= found <= resident + most:
            raise TraceError(
                f"the peak of device {name!r} is what its tensors and group state add up to "
                f"({resident + least} to {resident + most} bytes), and the trace has {found}"
            )
        if resident + least > limit:
            what = "resident" if op is None else f"op {op} ({problem.graph.ops[op].name!r})"
            raise TraceError(
                f"a device holds at most {limit} bytes, and {name!r} needs {resident + least} "
                f"when the outputs of {what} come"
            )


def _peak(buffers: list[_Buffer], touching: int) -> tuple[int, int | None]:
    """Largest sum at an instant and the op that reaches it; `touching` = 1 counts ends, too."""
    changes = [
        (b.start_ns, 0, b.num_bytes, b.op) for b in buffers if b.end_ns + touching > b.start_ns
    ]
    changes += [
        (b.end_ns, 2 * touching - 1, -b.num_bytes, b.op)
        for b in buffers
        if b.end_ns + touching > b.start_ns
    ]
    used, peak, reached = 0, 0, None
    for _, _, num_bytes, op in sorted(changes):
        used += num_bytes
        if used > peak:
            peak, reached = used, op
    return peak, reached


def _resident_bytes(problem: Problem, plan: Plan) -> list[int]:
    """Group state, and once per reading device the inputs that are resident everywhere."""
    graph = problem.graph
    used = [0] * problem.cluster.num_devices
    for name, members in graph.group_members.items():
        if members:
            state = next(group.state_bytes for group in graph.groups if group.name == name)
            used[plan.placement[members[0]]] += state
    if graph.inputs is InputResidency.everywhere:
        for op, output, device in {
            (edge.src, edge.output, plan.placement[edge.dst])
            for edge in graph.edges
            if graph.ops[edge.src].is_input
        }:
            used[device] += graph.ops[op].outputs[output]
    return used


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One output on one device.

    Attributes:
        there_ns: Version -> when it is complete there; initial versions are negative.
        start_ns: Version -> when its memory is taken.
        tokens: (consumer, distance) of the token edges that read it there.
        latest: Version -> ends of the ops that read it through a `latest` edge there; not empty
            if there is such an edge.
        sends: Version -> releases of the sends away.
    """

    there_ns: dict[int, int] = field(default_factory=dict)
    start_ns: dict[int, int] = field(default_factory=dict)
    tokens: list[tuple[int, int]] = field(default_factory=list)
    latest: dict[int, list[int]] = field(default_factory=dict)
    sends: dict[int, list[int]] = field(default_factory=dict)


def _buffers(
    problem: Problem, plan: Plan, trace: Trace, spans: tuple[OpSpan, ...]
) -> list[list[_Buffer]]:
    """Per device all buffers: outputs from dispatch, copies from the start of their transfer."""
    graph, place = problem.graph, plan.placement
    everywhere = graph.inputs is InputResidency.everywhere
    tensors: dict[tuple[int, int, int], _Tensor] = {}
    latest_edges: list[list[Edge]] = [[] for _ in graph.ops]
    for edge in graph.edges:
        if graph.ops[edge.src].is_input and everywhere:
            continue
        tensor = tensors.setdefault((edge.src, edge.output, place[edge.dst]), _Tensor())
        for version in range(-edge.distance, 0):
            tensor.there_ns[version] = tensor.start_ns[version] = 0
        if edge.mode is EdgeMode.latest:
            latest_edges[edge.dst].append(edge)
            tensor.latest.setdefault(-NEVER, [])
        else:
            tensor.tokens.append((edge.dst, edge.distance))
    for span in spans:
        for output in range(len(graph.ops[span.op].outputs)):
            tensor = tensors.setdefault((span.op, output, span.device), _Tensor())
            tensor.start_ns[span.iteration] = span.start_ns
            tensor.there_ns[span.iteration] = span.end_ns
        for edge, version in zip(latest_edges[span.op], span.versions, strict=True):
            readers = tensors[edge.src, edge.output, span.device].latest
            readers.setdefault(version, []).append(span.end_ns)
    for sent in trace.transfers:
        copy = tensors[sent.op, sent.output, sent.dst]
        copy.start_ns[sent.iteration], copy.there_ns[sent.iteration] = (
            sent.start_ns,
            sent.arrival_ns,
        )
        away = tensors[sent.op, sent.output, sent.src].sends
        away.setdefault(sent.iteration, []).append(sent.release_ns)
    ends_ns = {(span.op, span.iteration): span.end_ns for span in spans}
    buffers: list[list[_Buffer]] = [[] for _ in problem.cluster.devices]
    for (op, output, device), tensor in tensors.items():
        for version, start_ns in tensor.start_ns.items():
            end_ns = max(_reader_ends(tensor, version, ends_ns), default=tensor.there_ns[version])
            num_bytes = graph.ops[op].outputs[output]
            buffers[device].append(_Buffer(start_ns, end_ns, num_bytes, op))
    return buffers


def _reader_ends(
    tensor: _Tensor, version: int, ends_ns: dict[tuple[int, int], int]
) -> Iterator[int]:
    """When each of the things that keep a version in memory lets go of it."""
    for consumer, distance in tensor.tokens:
        # Initial version -v is there for edges of a distance of at least v.
        if version + distance >= 0:
            yield ends_ns.get((consumer, version + distance), NEVER)
    yield from tensor.sends.get(version, ())
    if tensor.latest:
        yield from tensor.latest.get(version, ())
        newer = [time for other, time in tensor.there_ns.items() if other > version]
        yield max(tensor.there_ns[version], min(newer, default=NEVER))
