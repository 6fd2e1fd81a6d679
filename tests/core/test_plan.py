"""Plans and problems: every rule is refused with the op and the device that break it."""

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.errors import CapacityError, GraphError, PlanError
from doppler.core.graph import DataflowGraph, Edge, Group, InputResidency, Op
from doppler.core.plan import Plan, check_plan, make_plan, resident_bytes
from doppler.core.problem import Problem


def graph(**fields):
    ops = (
        Op(kind="input", name="x", outputs=(1,)),
        Op(kind="k", name="a", outputs=(1,), group="s"),
        Op(kind="k", name="b", outputs=(1,), device_kinds=("cuda",)),
        Op(kind="k", name="c", outputs=(1,), group="s"),
    )
    edges = (Edge(0, 0, 1), Edge(1, 0, 2), Edge(2, 0, 3, 1))
    return DataflowGraph(
        **{"name": "g", "ops": ops, "edges": edges, "groups": (Group("s", 60),), **fields}
    )


def cluster(links=True, memory=100):
    devices = tuple(
        Device(name=name, kind=kind, parent="p", memory_bytes=memory)
        for name, kind in (("d0", "cpu"), ("d1", "cuda"), ("d2", "cuda"))
    )
    pairs = [(a, b) for a in devices for b in devices if a is not b]
    joined = tuple(Link(src=a.name, dst=b.name) for a, b in pairs if links)
    return Cluster(name="c", devices=devices, links=joined)


def problem(**fields):
    return Problem(**{"graph": graph(), "cluster": cluster(), **fields})


def plan(where=None, placement=(0, 1, 1, 1), priority=(0, 1, 2, 3), holds=()):
    return make_plan(where or problem(), placement, priority, "hand", holds)


def test_state_lies_where_its_group_is_and_inputs_once_where_they_are_read():
    """The state takes 60 bytes and x, which all three ops read, 1."""
    edges = (Edge(0, 0, 1), Edge(0, 0, 2), Edge(0, 0, 3), Edge(1, 0, 2), Edge(2, 0, 3, 1))
    placement = (0, 1, 2, 1)
    for inputs, pins, expected in (
        (InputResidency.everywhere, {}, [0, 61, 1]),
        (InputResidency.pinned, {"x": "d0"}, [0, 60, 0]),
    ):
        where = problem(graph=graph(edges=edges, inputs=inputs), pins=pins)
        assert resident_bytes(where, plan(where, placement)) == expected


def test_ranks_go_by_priority_then_id():
    assert plan(priority=(5, 7, 5, -1)).ranks() == (1, 0, 2, 3)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: plan(placement=(0, 1, 1)), r"placement has one entry per op \(4\), .* has 3"),
        (lambda: plan(priority=(0,)), "priority has one entry per op"),
        (lambda: plan(placement=(0, 1.9, 1, 1)), "placement holds integers, .* 1.9, 1, 1"),
        (lambda: plan(priority=(0, 1, 2.0, 3)), "priority holds integers"),
        (lambda: plan(placement=(0, 1, 7, 1)), "op 2 .'b'. is placed on device 7, but cluster 'c'"),
        (lambda: plan(placement=(0, 1, 3, 1)), "device 3, but cluster 'c' has 3 devices"),
        (lambda: plan(placement=(0, 1, -1, 1)), "device -1"),
        (lambda: plan(placement=(0, 1, 0, 1)), "'b'. is placed on 'd0', .* allow d1, d2"),
        (
            lambda: plan(problem(pins={"b": "d2"})),
            "'b'. is placed on 'd1', .* allow d2",
        ),
        (
            lambda: plan(problem(pins={"c": "d0"})),
            "'a'. is placed on 'd1', .* allow d0",
        ),
        (
            lambda: plan(placement=(0, 1, 1, 2)),
            "group 's' has 'a' on 'd1' and 'c' on 'd2'",
        ),
        (
            lambda: plan(problem(cluster=cluster(links=False)), placement=(0, 1, 2, 1)),
            "op 'a' on 'd1' feeds 'b' on 'd2', and the cluster has no link",
        ),
        (lambda: plan(holds=((0, 1),)), "names 0"),
        (lambda: plan(holds=((1, 9),)), "names 9"),
        (lambda: plan(holds=((1, 4),)), "names 4"),
        (lambda: plan(holds=((-1, 1),)), "names -1"),
        (lambda: plan(holds=((1, 1),)), "two ops of one device"),
        (
            lambda: plan(placement=(0, 1, 2, 1), holds=((1, 2),)),
            "two ops of one device, and .1, 2. joins 'a' and 'b'",
        ),
        (lambda: plan(holds=((2, 1),)), "waits for itself"),
        (lambda: plan(holds=((1, 3), (3, 1))), "waits for itself"),
    ],
)
def test_broken_rules_are_named(build, message):
    with pytest.raises(PlanError, match=message):
        build()


def test_plans_of_others_are_refused():
    found = plan()
    other = problem(graph=graph(window=5))
    with pytest.raises(PlanError, match="made for graph"):
        check_plan(other, found)
    with pytest.raises(PlanError, match="made for cluster"):
        check_plan(problem(cluster=cluster(memory=99)), found)


def test_inputs_that_are_everywhere_need_no_device():
    assert plan(placement=(2, 1, 1, 1)).placement[0] == 2


def test_an_input_that_is_pinned_sits_there_and_is_sent_from_there():
    pinned = {"graph": graph(inputs=InputResidency.pinned), "pins": {"x": "d0"}}
    assert plan(problem(**pinned)).placement[0] == 0
    with pytest.raises(PlanError, match=r"'x'. is placed on 'd1', .* allow d0"):
        plan(problem(**pinned), placement=(1, 1, 1, 1))
    with pytest.raises(PlanError, match="op 'x' on 'd0' feeds 'a' on 'd1', and the cluster has no"):
        plan(problem(**pinned, cluster=cluster(links=False)))


def test_state_may_fill_a_device():
    assert plan(problem(cluster=cluster(memory=60)))
    assert plan(problem(cluster=cluster(memory=80), memory_headroom=0.25))


def test_the_state_of_all_groups_of_a_device_counts_together():
    two = graph(
        ops=(
            Op(kind="k", name="a", outputs=(1,), group="s"),
            Op(kind="k", name="b", group="t"),
        ),
        edges=(),
        groups=(Group("s", 60), Group("t", 50), Group("unused", 1000)),
    )
    where = problem(graph=two)
    assert plan(where, placement=(0, 1), priority=(0, 0))
    with pytest.raises(CapacityError, match="device 'd2' needs 110 bytes with group 't'"):
        plan(where, placement=(2, 2), priority=(0, 0))


def test_state_that_does_not_fit_is_refused():
    with pytest.raises(CapacityError, match=r"device 'd1' needs 60 bytes with group 's'.* is 59"):
        plan(problem(cluster=cluster(memory=59)))
    with pytest.raises(CapacityError, match="the limit is 50"):
        plan(problem(memory_headroom=0.5))


@given(st.integers(0, (1 << 63) - 1), st.integers(0, 999))
@example((1 << 60) - 1, 0)
@example((1 << 63) - 1, 0)
@example(10, 900)
def test_the_memory_limit_is_exact_at_any_size(memory, thousandths):
    """A binary float would round 2**60 - 1 up, and leave nothing of 10 bytes at 0.9."""
    where = problem(cluster=cluster(memory=memory), memory_headroom=thousandths / 1000)
    limit = where.memory_limit_bytes(0)
    assert limit <= memory * Fraction(1000 - thousandths, 1000) < limit + 1


def test_holds_of_one_device_are_kept():
    assert plan(holds=((1, 2), (2, 3))).holds == ((1, 2), (2, 3))


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"memory_headroom": 1.0}, PlanError, r"lies in \[0, 1\)"),
        ({"memory_headroom": -0.1}, PlanError, r"lies in \[0, 1\)"),
        ({"pins": {"bb": "d1"}}, PlanError, "names op 'bb', which graph 'g' lacks"),
        ({"pins": {"b": "d9"}}, PlanError, "names device 'd9'"),
        ({"pins": {"b": "d0"}}, PlanError, "'b' .* has none in cluster 'c'"),
        ({"pins": {"a": "d0", "c": "d1"}}, PlanError, "pins put 'a' on 'd0' and 'c' on 'd1'"),
        (
            {"graph": graph(inputs=InputResidency.pinned)},
            GraphError,
            "input 'x' has no pin",
        ),
    ],
)
def test_impossible_problems_are_refused(fields, error, message):
    with pytest.raises(error, match=message):
        problem(**fields)


def test_costs_are_checked_against_the_problem():
    rows = ((0, 0, 0), (1, 2, 3), (1, 2, 3), (1, 2, 3))
    costs = make_costs(problem(), rows)
    assert costs.slowdown_permille == (0,) * 4
    assert costs.dispatch_ns == (0,) * 3
    for bad, message in (
        ({"op_ns": rows[:3]}, "op_ns has 4 entries, and it has 3"),
        ({"op_ns": (*rows[:3], (1, 2))}, r"one time per device \(3\), and op 'c' has 2"),
        ({"op_ns": (*rows[:3], (1, 2, -3))}, "op 'c' takes -3 on 'd2'"),
        ({"slowdown_permille": (1,)}, "slowdown_permille has 4 entries"),
        ({"dispatch_ns": (1,)}, "dispatch_ns has 3 entries"),
        ({"dispatch_ns": (1, -1, 1)}, "at least 0"),
    ):
        with pytest.raises(GraphError, match=message):
            make_costs(problem(), **{"op_ns": rows, **bad})


def test_plan_is_a_value():
    assert plan() == plan()
    assert isinstance(plan(), Plan)
