"""Collectives as ops: a schedule expanded into a graph, and the choice of one by its time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from doppler.core.cluster import Cluster
from doppler.core.collective import HOST, AllReduceSchedule, StepKind, chunk_bounds
from doppler.core.errors import GraphError, PlanError
from doppler.core.graph import DataflowGraph
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Problem
from doppler.graphs.builder import GraphBuilder, Tensor

REDUCE_KIND, FORWARD_KIND = "reduce_chunk", "forward_chunk"
MEASURE_BEFORE, MEASURE_AFTER = "gradient", "apply"
ELEMENT_BYTES = 4

PlanScore = Callable[[Problem, Plan], int]
"""Returns the time of one iteration of a plan in ns."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """An all-reduce as ops of a graph.

    Attributes:
        results: results[member][chunk], the tensor that the member reads.
        homes: Op id -> member, or host (negative), where the schedule wants it.
    """

    results: tuple[tuple[Tensor, ...], ...]
    homes: dict[int, int]


def expand(
    builder: GraphBuilder,
    name: str,
    schedule: AllReduceSchedule,
    parts: Sequence[Sequence[Tensor]],
    element_bytes: int = ELEMENT_BYTES,
) -> Expansion:
    """Adds the ops of a schedule to a graph.

    Args:
        builder: Graph to add to.
        name: Prefix of the ops' names.
        schedule: What to do.
        parts: parts[member][chunk]; a chunk has the same bytes at every member.
        element_bytes: Size of what one addition adds.

    Raises:
        GraphError: If parts do not fit the schedule or each other.
    """
    tensors: list[Tensor] = []
    for member in range(schedule.num_members):
        row = parts[member] if member < len(parts) else ()
        sizes = [tensor.num_bytes for tensor in row]
        if sizes != [tensor.num_bytes for tensor in parts[0]] or len(row) != schedule.num_chunks:
            raise GraphError(
                f"all-reduce {name!r} needs {schedule.num_chunks} chunks of equal sizes from each "
                f"of {schedule.num_members} members, and member {member} has {sizes}"
            )
        tensors += row
    homes: dict[int, int] = {}
    for index, step in enumerate(schedule.steps):
        inputs = [tensors[tensor] for tensor in step.inputs]
        num_bytes = inputs[0].num_bytes
        chunk = schedule.chunk(step.inputs[0])
        kind = REDUCE_KIND if step.kind is StepKind.reduce else FORWARD_KIND
        built = builder.op(
            f"{name}.{kind}[{chunk},{index}]",
            kind,
            inputs,
            [num_bytes],
            flop=(len(inputs) - 1) * (num_bytes // element_bytes),
            meta_op=f"{name}.{kind}[{chunk}]",
        )
        homes[built.op] = step.home
        tensors.append(built[0])
    results = tuple(tuple(tensors[tensor] for tensor in row) for row in schedule.results)
    return Expansion(results, homes)


@dataclass(frozen=True, slots=True)
class Choice:
    """A composition on a cluster with its time.

    Attributes:
        schedule: The composition.
        time_ns: Its time, or None if it cannot run there.
        reason: Why it cannot run, else empty.
    """

    schedule: AllReduceSchedule
    time_ns: int | None
    reason: str = ""


def rank_compositions(
    schedules: Sequence[AllReduceSchedule],
    cluster: Cluster,
    members: Sequence[int],
    num_bytes: int,
    score: PlanScore,
    hosts: Sequence[int] = (),
) -> tuple[Choice, ...]:
    """Returns every composition with its time on a cluster, fastest first, impossible ones last.

    Args:
        schedules: What to choose from.
        cluster: Where it runs.
        members: Device id of each member.
        num_bytes: Bytes of one member's part.
        score: Time of a plan, by simulation or measured.
        hosts: Device ids of the hosts.
    """
    choices: list[Choice] = []
    for schedule in schedules:
        try:
            problem, plan = placed_alone(schedule, cluster, members, num_bytes, hosts)
        except PlanError as error:
            choices.append(Choice(schedule, None, str(error)))
            continue
        choices.append(Choice(schedule, score(problem, plan)))
    return tuple(
        sorted(choices, key=lambda c: (c.time_ns is None, c.time_ns or 0, len(c.schedule.steps)))
    )


def placed_alone(
    schedule: AllReduceSchedule,
    cluster: Cluster,
    members: Sequence[int],
    num_bytes: int,
    hosts: Sequence[int] = (),
) -> tuple[Problem, Plan]:
    """Returns a graph with nothing but one all-reduce, placed as the schedule says.

    Every member has an op before it, which makes its part, and one after it, which reads the sum.

    Raises:
        PlanError: If two homes that must exchange have no link, or a host is missing.
    """
    if schedule.num_hosts > len(hosts):
        raise PlanError(
            f"all-reduce {schedule.name!r} needs {schedule.num_hosts} hosts, and cluster "
            f"{cluster.name!r} offers {len(hosts)}"
        )
    graph, homes = _alone(schedule, num_bytes)
    placement = tuple(members[home] if home >= 0 else hosts[HOST - home] for home in homes)
    problem = Problem(graph=graph, cluster=cluster)
    priority = tuple(-op for op in range(graph.num_ops))
    return problem, make_plan(problem, placement, priority, schedule.name)


def _alone(schedule: AllReduceSchedule, num_bytes: int) -> tuple[DataflowGraph, list[int]]:
    ends = chunk_bounds(num_bytes // ELEMENT_BYTES, schedule.num_chunks)
    sizes = [ELEMENT_BYTES * (ends[c + 1] - ends[c]) for c in range(schedule.num_chunks)]
    builder = GraphBuilder(f"all_reduce_{schedule.name}")
    members = range(schedule.num_members)
    homes: dict[int, int] = {}
    parts: list[tuple[Tensor, ...]] = []
    for member in members:
        before = builder.op(
            f"{MEASURE_BEFORE}[{member}]", MEASURE_BEFORE, outputs=sizes, bytes_moved=0
        )
        homes[before.op] = member
        parts.append(before.outputs)
    expansion = expand(builder, "all_reduce", schedule, parts)
    homes.update(expansion.homes)
    for member in members:
        after = builder.op(
            f"{MEASURE_AFTER}[{member}]",
            MEASURE_AFTER,
            list(expansion.results[member]),
            bytes_moved=0,
        )
        homes[after.op] = member
    graph = builder.build()
    return graph, [homes[op] for op in range(graph.num_ops)]
