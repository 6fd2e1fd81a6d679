"""All-reduce compositions: every sum complete for all n and m, counts by hand-derived formulas."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.collective import AllReduceSchedule, Step, StepKind, chunk_bounds
from doppler.core.errors import GraphError
from doppler.graphs.builder import GraphBuilder
from doppler.graphs.collective_ops import (
    FORWARD_KIND,
    REDUCE_KIND,
    expand,
    placed_alone,
    rank_compositions,
)
from doppler.graphs.collectives import candidates, compose, local_leader

NAMES = ["direct", "ring", "tree", "through_host", "local_leader", "multi_ring"]


def even_groups(n, m):
    return [list(range(g * m, (g + 1) * m)) for g in range(n)]


def full_cluster(num_devices):
    devices = tuple(Device(name=f"d{i}", kind="cpu", parent="p") for i in range(num_devices))
    links = tuple(Link(src=a.name, dst=b.name) for a in devices for b in devices if a != b)
    return Cluster(name="c", devices=devices, links=links)


def symbolic_results(schedule, num_bytes=4000):
    """Runs the expanded graph with, per tensor, how often each member's chunk went into it."""
    total = schedule.num_members + schedule.num_hosts
    members, hosts = range(schedule.num_members), range(schedule.num_members, total)
    problem, plan = placed_alone(schedule, full_cluster(total), members, num_bytes, hosts)
    graph = problem.graph
    values, read = {}, {}
    for op in graph.topological_order:
        edges = [graph.edges[e] for e in graph.in_edges[op]]
        inputs = [values[edge.src, edge.output] for edge in edges]
        kind = graph.ops[op].kind
        if kind == "gradient":
            member = int(graph.ops[op].name.split("[")[1][:-1])
            for chunk in range(schedule.num_chunks):
                values[op, chunk] = Counter({(member, chunk): 1})
        elif kind == "apply":
            read[int(graph.ops[op].name.split("[")[1][:-1])] = inputs
        else:
            assert kind == REDUCE_KIND or len(inputs) == 1
            values[op, 0] = sum(inputs, Counter())
    return graph, plan, read


def crossings(graph, plan):
    """Bytes that leave a device, once per tensor and destination."""
    sent = {
        (edge.src, edge.output, plan.placement[edge.dst])
        for edge in graph.edges
        if plan.placement[edge.src] != plan.placement[edge.dst]
    }
    return sum(graph.ops[src].outputs[output] for src, output, _ in sent)


@settings(deadline=None)
@given(
    n=st.integers(1, 5),
    m=st.integers(1, 4),
    chunks=st.none() | st.integers(1, 9),
    hosts=st.integers(1, 3),
    data=st.data(),
)
def test_every_member_ends_with_every_part_once(n, m, chunks, hosts, data):
    name = data.draw(st.sampled_from([*NAMES, *(f"hybrid({k})" for k in range(m + 1))]))
    schedule = compose(name, even_groups(n, m), chunks, hosts)
    _, _, read = symbolic_results(schedule)
    assert sorted(read) == list(range(n * m))
    for inputs in read.values():
        assert inputs == [
            Counter({(member, chunk): 1 for member in range(n * m)})
            for chunk in range(schedule.num_chunks)
        ]


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_uneven_groups_have_the_compositions_that_allow_them(sizes):
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    groups = [list(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]
    for schedule in candidates(groups, num_hosts=1, pieces=(1, 2)):
        _, _, read = symbolic_results(schedule)
        everyone = {(m, c) for m in range(ends[-1]) for c in range(schedule.num_chunks)}
        for inputs in read.values():
            assert sum(inputs, Counter()) == Counter(everyone)


def counts(name, n, m, chunks):
    """(additions of two or more, copies, transfers) per chunk, derived by hand."""
    members = n * m
    ring = (n - 1, max(0, n - 2), 2 * (n - 1))
    kept = (n - 1, n - 1, 2 * (n - 1))
    if name == "direct":
        return (members > 1, 0, 2 * (members - 1))
    if name == "ring":
        return (members - 1, max(0, members - 2), 2 * (members - 1))
    if name == "tree":
        inner = members // 2
        return (inner, max(0, inner - 1), 2 * (members - 1))
    if name == "through_host":
        return (1, 0, 2 * members) if members > 1 else (0, 0, 0)
    if name == "local_leader":
        base = kept if m > 1 else ring
        return (base[0] + n * (m > 1), base[1], base[2] + 2 * n * (m - 1))
    if name == "multi_ring":
        first = kept if m > 1 else ring
        return (
            m * first[0] + n * (m - 1),
            m * first[1] + n * max(0, m - 2),
            2 * m * (n - 1) + 2 * n * (m - 1),
        )
    k = int(name[7:-1])
    meeting = n * (m - k) + k
    if meeting == 1:
        return ring
    return (k * (n - 1) + 1, k * (n - 1), 2 * k * (n - 1) + 2 * meeting)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("m", [1, 2, 3])
def test_counts_and_bytes_equal_the_formulas(n, m):
    for name in [*NAMES, *(f"hybrid({k})" for k in range(m + 1))]:
        # Chunk bytes are whole: 4 bytes times a multiple of every ring's size.
        chunks = 12 * n * m
        schedule = compose(name, even_groups(n, m), chunks)
        graph, plan, _ = symbolic_results(schedule, num_bytes=4 * chunks)
        kinds = Counter(op.kind for op in graph.ops)
        adds, copies, transfers = counts(name, n, m, chunks)
        assert kinds[REDUCE_KIND] == adds * chunks, name
        assert kinds[FORWARD_KIND] == copies * chunks, name
        assert len(schedule.transfers) == transfers * chunks, name
        assert crossings(graph, plan) == transfers * 4 * chunks, name


def test_ring_moves_what_theory_says():
    """2 (N - 1) / N of a part per member (GMI-DRL, unit costs)."""
    schedule = compose("ring", even_groups(4, 1))
    graph, plan, _ = symbolic_results(schedule, num_bytes=4096)
    assert crossings(graph, plan) == 4 * (2 * 3 * 4096 // 4)


def test_wrong_schedules_are_refused():
    def schedule(steps, results=((2,), (2,))):
        return AllReduceSchedule(
            name="s", num_members=2, num_chunks=1, steps=tuple(steps), results=results
        )

    add = Step(StepKind.reduce, 0, (0, 1))
    assert schedule([add]).transfers == ((1, 0), (2, 1))
    with pytest.raises(GraphError, match="added once"):
        schedule([Step(StepKind.reduce, 0, (0, 0))])
    with pytest.raises(GraphError, match="made before"):
        schedule([Step(StepKind.reduce, 0, (0, 3)), add])
    with pytest.raises(GraphError, match="a forward has one"):
        schedule([Step(StepKind.forward, 0, (0, 1))])
    with pytest.raises(GraphError, match="sum of all parts, and member 1"):
        schedule([add], ((2,), (1,)))
    with pytest.raises(GraphError, match=r"one result per chunk \(1\), and member 1 .* has 2"):
        schedule([add], ((2,), (2, 2)))
    with pytest.raises(GraphError, match="at member 2 of 2"):
        schedule([Step(StepKind.reduce, 2, (0, 1))])


def test_names_and_groups_are_checked():
    for name in ("rings", "hybrid(1", "hybrid(1)))", "hybrid(²)", "hybrid()", "ring)"):
        with pytest.raises(GraphError, match="one of direct, ring"):
            compose(name, even_groups(2, 1))
    with pytest.raises(GraphError, match=r"groups of one size, and they have \[1, 2\]"):
        compose("multi_ring", [[0], [1, 2]])
    with pytest.raises(GraphError, match="0 to 2 rings"):
        compose("hybrid(3)", even_groups(2, 2))
    with pytest.raises(GraphError, match="each once"):
        local_leader([[0], [2]])
    builder = GraphBuilder("g")
    a = builder.op("a", "a", outputs=[4, 4])
    b = builder.op("b", "b", outputs=[4, 8])
    with pytest.raises(GraphError, match="member 1 has"):
        expand(builder, "r", compose("ring", even_groups(2, 1)), [a.outputs, b.outputs])


@given(length=st.integers(0, 50), chunks=st.integers(1, 12))
def test_chunks_cover_everything_evenly(length, chunks):
    ends = chunk_bounds(length, chunks)
    sizes = [b - a for a, b in itertools.pairwise(ends)]
    assert ends[0] == 0
    assert ends[-1] == length
    assert max(sizes) - min(sizes) <= 1


def test_ranking_puts_the_fastest_first_and_the_impossible_last():
    """Two devices without a link for anything that needs a host."""
    groups = even_groups(2, 1)
    found = rank_compositions(
        candidates(groups, num_hosts=1),
        full_cluster(2),
        [0, 1],
        64,
        lambda problem, plan: problem.graph.num_ops,
    )
    assert [c.time_ns for c in found[:2]] == [5, 6]
    assert found[0].schedule.name == "tree"
    assert found[-1].time_ns is None
    assert "needs 1 hosts" in found[-1].reason
