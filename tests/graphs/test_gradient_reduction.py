"""All-reduces spelled out in the PPO job's graph: counts by hand, homes, both engines."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler.coordinator.templates import dp_only_devices
from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.errors import GraphError, PlanError
from doppler.core.plan import make_plan
from doppler.core.problem import Objective, Problem
from doppler.graphs.drl_job import DRLJobShape, build_drl_job
from doppler.graphs.gradient_reduction import reduction, trainer_groups
from doppler.graphs.job_rows import OpSize
from doppler.planners.mask import make_mask
from simulator.compiled import CompiledRuntime
from simulator.runtime import SimPyRuntime

SEGMENT = 4000


def size_of(kind, at):
    if kind == "grad":
        return OpSize(outputs=(SEGMENT, SEGMENT, 32))
    outputs = {
        "rollout": (64, 16),
        "advantage": (64, 8),
        "collect": (8, 8),
        "reduce_chunk": (SEGMENT,),
        "forward_chunk": (SEGMENT,),
        "reduce": (SEGMENT, 8),
        "adam": (SEGMENT,),
        "broadcast": (16,),
    }
    flop = {"reduce_chunk": SEGMENT // 4, "reduce": 5 * SEGMENT // 4}  # 4 trainers
    moved = {"reduce_chunk": 3 * SEGMENT, "forward_chunk": 2 * SEGMENT, "reduce": 5 * SEGMENT}
    return OpSize(outputs=outputs[kind], flop=flop.get(kind, 0), bytes_moved=moved.get(kind, 0))


def build(all_reduce, groups=1, trainers=4, **changes):
    shape = DRLJobShape(
        all_reduce=all_reduce,
        trainer_groups=groups,
        num_trainers=trainers,
        num_shards=2,
        epochs=1,
        minibatches=2,
        **changes,
    )
    return build_drl_job("job", shape, size_of)


# Per segment and update: (partial sums, sums that are whole, copies of gradients, of weights).
BY_HAND = [
    ("ring", 1, (2, 1, 0, 2)),  # N - 2 on the way, the owner adds last; N - 2 hand on
    ("tree", 1, (1, 1, 0, 1)),  # place 1 has one child, the root two; one inner place hands on
    ("through_host", 1, (0, 1, 0, 0)),
    ("local_leader", 2, (2, 1, 0, 1)),  # one sum per group; the other leader keeps a copy
    ("multi_ring", 2, (2, 2, 2, 0)),  # 2 rings of 2 keep copies; each group adds up its two sums
    ("hybrid(1)", 2, (1, 1, 0, 1)),  # the ring adds once, meets the rest in the host, hands on
]


@pytest.mark.parametrize(("name", "groups", "expected"), BY_HAND)
def test_the_ops_of_a_composition_by_hand(name, groups, expected):
    graph = build(name, groups)
    found = reduction(name, 4, groups, 2)
    gradients = sum(move.is_copy for move in found.sums)
    counts = (len(found.sums) - gradients, len(found.totals), gradients, len(found.copies))
    assert counts == tuple(2 * count for count in expected)
    kinds = [op.kind for op in graph.ops]
    updates = 2
    assert kinds.count("reduce_chunk") == updates * counts[0]
    assert kinds.count("reduce") == kinds.count("adam") == updates * counts[1]
    assert kinds.count("forward_chunk") == updates * (counts[2] + counts[3])


def test_additions_are_counted_by_what_is_added():
    for name, groups in [("ring", 1), ("tree", 1), ("through_host", 1), ("local_leader", 2)]:
        graph = build(name, groups)
        flop = sum(op.flop for op in graph.ops if op.kind in ("reduce", "reduce_chunk"))
        # 3 additions and 2 for the norm per float, 2 segments, 2 updates
        assert flop == 5 * SEGMENT // 4 * 2 * 2
    three = next(op for op in build("tree").ops if op.name == "reduce[0,0,0,0]")
    assert (three.flop, three.bytes_moved) == (4 * SEGMENT // 4, 4 * SEGMENT)


def test_trees_are_rooted_at_different_trainers():
    totals = reduction("tree", 4, 1, 3).totals
    assert [(total.segment, total.home) for total in totals] == [(0, 0), (1, 1), (2, 2)]


def test_trainers_are_dealt_to_groups_in_turns():
    assert trainer_groups(5, 2) == [[0, 2, 4], [1, 3]]
    with pytest.raises(GraphError, match="trainer_groups lies in 1 to 2"):
        reduction("ring", 2, 3, 1)


def cluster(kinds):
    devices = tuple(
        Device(name=f"d{i}", kind=kind, parent=f"p{i}", copy_engines=1, memory_bytes=10**9)
        for i, kind in enumerate(kinds)
    )
    links = tuple(
        Link(src=a.name, dst=b.name, latency_ns=7, bytes_per_s=10**9, buses=(f"{a.name}{b.name}",))
        for a in devices
        for b in devices
        if a != b
    )
    return Cluster(name="c", devices=devices, links=links)


def problem_of(graph, kinds=("cpu",) * 4):
    return Problem(graph=graph, cluster=cluster(kinds), objective=Objective.period)


def test_dp_only_puts_every_op_where_the_composition_wants_it():
    problem = problem_of(build("ring"))
    mask = make_mask(problem)
    placement = mask.placement(dp_only_devices(mask))
    for op, device in zip(problem.graph.ops, placement, strict=True):
        if op.kind in ("reduce_chunk", "forward_chunk", "reduce", "adam"):
            assert device == int(op.name.rstrip("]").split(",")[-1])
    # Segment 1 ends at trainer 1 and its optimizer with it.
    assert placement[problem.graph.op_ids["adam[0,0,1,1]"]] == 1


def test_a_ring_sends_each_segment_to_the_neighbour_only():
    """2 (N - 1) crossings per segment and update; the plain sum has as many, all at one device."""
    for name in ("direct", "ring"):
        problem = problem_of(build(name))
        mask = make_mask(problem)
        placement = mask.placement(dp_only_devices(mask))
        ops = problem.graph.ops
        reduced = ("reduce", "reduce_chunk", "forward_chunk", "adam", "grad")
        crossings = {
            (edge.src, edge.output, placement[edge.dst])
            for edge in problem.graph.edges
            if placement[edge.src] != placement[edge.dst]
            and ops[edge.src].kind in reduced
            and ops[edge.dst].kind in reduced
            and ops[edge.src].outputs[edge.output] == SEGMENT
        }
        assert len(crossings) == 2 * 3 * 2 * 2
        per_pair = {}
        for src, _, destination in crossings:
            pair = (placement[src], destination)
            per_pair[pair] = per_pair.get(pair, 0) + 1
        is_ring = all((a + 1) % 4 == b for a, b in per_pair)
        assert is_ring == (name == "ring")


def test_sums_of_the_host_want_a_host():
    graph = build("through_host")
    assert {op.device_kinds for op in graph.ops if op.kind == "reduce"} == {("cpu",)}
    with pytest.raises(PlanError, match=r"has none in cluster 'c'"):
        make_mask(problem_of(graph, ("cuda", "cuda")))
    mask = make_mask(problem_of(graph, ("cuda", "cpu")))
    placement = mask.placement(dp_only_devices(mask))
    assert {placement[i] for i, op in enumerate(graph.ops) if op.kind == "reduce"} == {1}


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_both_engines_agree_to_the_nanosecond(seed, data):
    name, groups, _ = data.draw(st.sampled_from(BY_HAND))
    graph = build(name, groups)
    problem = problem_of(graph, ("cpu",) * 3)
    rng = random.Random(seed)
    rows = tuple(tuple(rng.randint(1, 50) for _ in range(3)) for _ in graph.ops)
    costs = make_costs(problem, rows)
    mask = make_mask(problem)
    units = [rng.randrange(3) for _ in range(mask.num_units)]
    placement = tuple(mask.placement(units).tolist())
    priority = tuple(rng.randint(0, 99) for _ in graph.ops)
    plan = make_plan(problem, placement, priority, "random")
    trace = SimPyRuntime(costs).run(problem, plan, 4)
    assert replace(trace, runtime="compiled") == CompiledRuntime(costs).run(problem, plan, 4)
