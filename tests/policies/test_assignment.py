import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler.core.costs import make_costs
from doppler.core.errors import PlanError
from doppler.core.graph import DataflowGraph, Edge, Group, Op
from doppler.core.plan import make_plan
from doppler.core.problem import Problem
from doppler.graphs.longest_paths import compute_levels
from doppler.policies.build import build_assignment
from doppler.policies.columns import NUM_PAPER, DeviceColumn
from doppler.policies.config import PolicyConfig
from doppler.policies.device_columns import set_columns
from doppler.policies.dual import DualPolicy, policy_inputs
from doppler.policies.sampling import plan_arrays
from doppler.policies.tables import MAX_GAPS, make_tables, make_workspace
from doppler.policies.timeline import (
    FINISH,
    START,
    _add_gap,
    known_device,
    place,
    reset,
    set_mask,
    set_times,
)
from tests.policies.problems import assignment_of, cluster, layered, six_ops
from tests.strategies import costs_of, problems

APPEND, FILL = NUM_PAPER, len(DeviceColumn)  # the timelines of the two pairs


def put(tables, state, op, device):
    set_times(tables, state, op, device, device + 1)
    place(tables, state, op, device)


def fresh(assignment, timeline=FILL):
    tables = make_tables(assignment)
    state = make_workspace(tables, 1, timeline)
    reset(tables, state)
    return tables, state


def test_timeline_starts_at_data_or_stream_whichever_is_later_not_at_the_sum_of_work():
    # Transfer of 10 bytes at 1 byte/ns after 10 ns: 20 ns. Unit: mean op time 75 ns.
    assignment = assignment_of(six_ops())
    tables, state = fresh(assignment)
    put(tables, state, 0, 0)  # a on d0: 0..100
    put(tables, state, 1, 1)  # b on d1: 0..90
    put(tables, state, 3, 1)  # m1 on d1: 90..160
    put(tables, state, 2, 1)  # m0 on d1: data of a at 120, stream at 160: 160..240
    set_times(tables, state, 4, 0, 2)
    # join on d0: m0 ends at 240, arrives at 260; the sum of work on d0 is 100 (trap 8).
    assert state.scratch[START] * assignment.unit_ns == pytest.approx([260.0, 240.0])
    assert state.scratch[FINISH] * assignment.unit_ns == pytest.approx([320.0, 300.0])


@pytest.mark.parametrize("timeline", [APPEND, FILL])
def test_transfers_over_one_wire_follow_one_another_and_a_tensor_is_sent_once(timeline):
    # Sources a, b on d0 feed c and d on d1; 20 bytes take 20 ns on the wire and 10 ns of latency.
    ops = tuple(Op(kind="k", name=name, outputs=(20,)) for name in "abcd")
    edges = (Edge(1, 0, 2), Edge(0, 0, 2), Edge(0, 0, 3))
    problem = Problem(graph=DataflowGraph(name="g", ops=ops, edges=edges), cluster=cluster(2))
    assignment = build_assignment(problem, make_costs(problem, ((5, 5), (5, 5), (40, 40), (9, 9))))
    tables, state = fresh(assignment, timeline)
    put(tables, state, 0, 0)  # a: 0..5
    put(tables, state, 1, 0)  # b: 5..10
    put(tables, state, 2, 1)  # a on the wire 5..25, b 25..45, there at 55
    assert state.start[2] * assignment.unit_ns == pytest.approx(55.0)
    set_times(tables, state, 3, 0, 2)
    # a is on d1 since 35; d1 is idle from 0 to 55 and free again at 95.
    later = {APPEND: 95.0, FILL: 35.0}[timeline]
    assert state.scratch[START] * assignment.unit_ns == pytest.approx([10.0, later])
    assert state.arrivals[:, 1] * assignment.unit_ns == pytest.approx([35.0, 55.0])


def test_two_streams_run_two_ops_at_a_time():
    assignment = assignment_of(six_ops(num_streams=2))
    tables, state = fresh(assignment)
    put(tables, state, 0, 0)
    put(tables, state, 1, 0)
    set_times(tables, state, 3, 0, 1)
    assert state.scratch[START, 0] * assignment.unit_ns == pytest.approx(90.0)


def test_first_placement_of_a_group_fixes_the_rest():
    assignment = assignment_of(layered(0, groups=1))
    tables, state = fresh(assignment)
    first, second = np.flatnonzero(assignment.group == 0)[:2]
    assert set_mask(tables, state, second) == 3
    put(tables, state, first, 2)
    assert set_mask(tables, state, second) == 1
    assert state.mask.tolist() == [False, False, True]
    assert state.memory.tolist() == [0.0, 0.0, 7.0]


def test_device_without_room_for_the_state_is_masked_unless_none_has_room():
    ops = tuple(Op(kind="k", name=f"o{i}", group=f"g{i}") for i in range(3))
    groups = tuple(Group(f"g{i}", 60) for i in range(3))
    graph = DataflowGraph(name="g", ops=ops, groups=groups)
    problem = Problem(graph=graph, cluster=cluster(2, memory_bytes=100))
    assignment = build_assignment(problem, make_costs(problem, ((1, 1),) * 3))
    tables, state = fresh(assignment)
    put(tables, state, 0, 0)
    assert set_mask(tables, state, 1) == 1
    assert state.mask.tolist() == [False, True]
    put(tables, state, 1, 1)
    assert set_mask(tables, state, 2) == 2


def test_missing_links_mask_devices_that_known_neighbours_cannot_reach():
    ops = tuple(Op(kind="k", name=f"o{i}", outputs=(1,)) for i in range(2))
    graph = DataflowGraph(name="g", ops=ops, edges=(Edge(0, 0, 1),))
    whole = cluster(3)
    links = tuple(link for link in whole.links if (link.src, link.dst) != ("d0", "d2"))
    problem = Problem(
        graph=graph, cluster=type(whole)(name="c", devices=whole.devices, links=links)
    )
    assignment = build_assignment(problem, make_costs(problem, ((1, 1, 1),) * 2))
    tables, state = fresh(assignment)
    put(tables, state, 0, 0)
    set_mask(tables, state, 1)
    assert state.mask.tolist() == [True, True, False]


def test_pins_and_kinds_of_one_op_hold_for_its_group_and_its_neighbours_know():
    ops = (
        Op(kind="k", name="a", outputs=(10,)),
        Op(kind="k", name="b", group="g"),
        Op(kind="k", name="c", group="g"),
    )
    graph = DataflowGraph(name="g", ops=ops, edges=(Edge(0, 0, 1),), groups=(Group("g", 5),))
    problem = Problem(graph=graph, cluster=cluster(2), pins={"c": "d1"})
    assignment = build_assignment(problem, make_costs(problem, ((10, 10),) * 3))
    tables, state = fresh(assignment)
    assert known_device(tables, state, 1) == 1
    assert state.memory.tolist() == [0.0, 5.0]
    set_mask(tables, state, 0)
    set_columns(tables, state, 0, 0, FILL)
    out_cost = state.columns[:, DeviceColumn.LOG_OUT_COST]
    assert out_cost[1] == 0.0  # already with its consumer
    assert out_cost[0] == pytest.approx(np.log1p(20.0 / assignment.unit_ns))


def test_a_group_that_no_device_can_hold_is_refused():
    ops = (
        Op(kind="k", name="a", group="g", device_kinds=("cuda",)),
        Op(kind="k", name="b", group="g", device_kinds=("cpu",)),
    )
    graph = DataflowGraph(name="g", ops=ops, groups=(Group("g"),))
    both = cluster(1)
    cpu = type(both.devices[0])(name="c0", kind="cpu", parent="p9")
    problem = Problem(
        graph=graph, cluster=type(both)(name="c", devices=(*both.devices, cpu), links=())
    )
    with pytest.raises(PlanError, match="no device of cluster 'c' may run all 2 ops of group 'g'"):
        build_assignment(problem, make_costs(problem, ((1, 1),) * 2))


def test_levels_by_hand():
    # a(2) -> c(1) with transfer 5; b(4) -> c with transfer 0: b-levels 8, 5, 1; t-levels 2, 4, 8.
    levels = compute_levels(
        np.array([2.0, 4.0, 1.0]), np.array([0, 0, 0, 2]), np.array([0, 1]), np.array([5.0, 0.0])
    )
    assert levels.b_level.tolist() == [8.0, 5.0, 1.0]
    assert levels.t_level.tolist() == [2.0, 4.0, 8.0]
    assert levels.next_down.tolist() == [2, 2, -1]
    assert levels.next_up.tolist() == [-1, -1, 0]


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_every_episode_is_a_plan_and_every_plan_of_an_episode_gives_it_back(data):
    problem = data.draw(problems())
    costs = data.draw(costs_of(problem))
    try:
        assignment = build_assignment(problem, costs)
    except PlanError:
        return  # pinned inputs or kinds leave a group nowhere to go
    if not assignment.num_ops:
        return
    config = PolicyConfig(hidden=4, rank=2, rounds=1, head_hidden=4, summary=2)
    policy = DualPolicy(config, seed=0)
    inputs = policy_inputs(assignment, config)
    rollouts = policy.sample(inputs, 3, np.random.default_rng(0))
    placements, priorities = plan_arrays(assignment, rollouts)
    for placement, priority in zip(placements, priorities, strict=True):
        make_plan(problem, tuple(placement), tuple(priority), "test")
    orders, devices = assignment.episode_arrays(placements, priorities)
    assert (orders == rollouts.orders).all()
    assert (devices == rollouts.devices).all()


def test_what_is_left_of_a_gap_before_and_after_an_op_stays_free():
    # Sources a (30) and e (10); p (100) on d1 after a: d1 is idle until a is there at 50.
    ops = tuple(Op(kind="k", name=name, outputs=(10,)) for name in "apefg")
    problem = Problem(
        graph=DataflowGraph(name="g", ops=ops, edges=(Edge(0, 0, 1),)), cluster=cluster(2)
    )
    times = ((30, 30), (100, 100), (10, 10), (40, 40), (41, 41))
    tables, state = fresh(assignment := build_assignment(problem, make_costs(problem, times)))
    put(tables, state, 0, 0)  # a on d0: 0..30
    put(tables, state, 1, 1)  # p on d1: 50..150
    put(tables, state, 2, 1)  # e in the gap: 0..10
    starts = []
    for op in (3, 4):
        set_times(tables, state, op, 1, 2)
        starts.append(state.scratch[START, 1] * assignment.unit_ns)
    # 40 fit into what is left (10..50), 41 do not.
    assert starts == pytest.approx([10.0, 150.0])


def test_only_the_longest_gaps_are_remembered():
    assignment = assignment_of(six_ops())
    _, state = fresh(assignment)
    for index in range(MAX_GAPS):
        _add_gap(state, 0, 100.0 * index, 100.0 * index + 2.0 + index)
    _add_gap(state, 0, 9000.0, 9001.0)  # shorter than all: not kept
    _add_gap(state, 0, 9100.0, 9150.0)  # replaces the shortest, the first
    kept = sorted(state.gap_start[0].tolist())
    assert state.num_gaps[0] == MAX_GAPS
    assert kept == [*(100.0 * index for index in range(1, MAX_GAPS)), 9100.0]


def test_lookahead_is_the_optimistic_cost_table_worked_by_hand():
    # a -> b -> c; 20 ns per transfer (10 bytes + 10 ns latency). b is fast on d1, c on d0.
    ops = tuple(Op(kind="k", name=name, outputs=(10,)) for name in "abc")
    edges = (Edge(0, 0, 1), Edge(1, 0, 2))
    problem = Problem(graph=DataflowGraph(name="g", ops=ops, edges=edges), cluster=cluster(2))
    times = ((7, 7), (100, 10), (5, 60))
    assignment = build_assignment(problem, make_costs(problem, times))
    # b on d0: c there, 5; b on d1: c on d0 after a transfer, 25.
    # a on d0: b on d1 after a transfer, 20 + 10 + 25 = 55; a on d1: b there, 10 + 25 = 35.
    hand = np.array([[55.0, 35.0], [5.0, 25.0], [0.0, 0.0]])
    assert assignment.lookahead * assignment.unit_ns == pytest.approx(hand)


def test_lookahead_is_finite_where_no_device_can_reach_the_consumers():
    ops = tuple(Op(kind="k", name=f"o{i}", outputs=(1,)) for i in range(2))
    graph = DataflowGraph(name="g", ops=ops, edges=(Edge(0, 0, 1),))
    whole = cluster(2)
    bare = type(whole)(name="c", devices=whole.devices)
    problem = Problem(graph=graph, cluster=bare, pins={"o1": "d1"})
    assignment = build_assignment(problem, make_costs(problem, ((4, 4), (6, 6))))
    assert np.isfinite(assignment.lookahead).all()
    assert assignment.lookahead[0, 0] > assignment.lookahead[0, 1]


def test_partners_elsewhere_cost_the_cheaper_side_of_what_must_travel():
    # a and b feed join with 30 and 10 bytes: 40 and 20 ns. With a on d0, b elsewhere costs b's 20.
    ops = tuple(
        Op(kind="k", name=name, outputs=(size,)) for name, size in (("a", 30), ("b", 10), ("j", 1))
    )
    edges = (Edge(0, 0, 2), Edge(1, 0, 2))
    problem = Problem(graph=DataflowGraph(name="g", ops=ops, edges=edges), cluster=cluster(3))
    assignment = build_assignment(problem, make_costs(problem, ((9, 9, 9),) * 3))
    tables, state = fresh(assignment)
    for first, second in ((0, 1), (1, 0)):
        reset(tables, state)
        set_mask(tables, state, first)
        set_columns(tables, state, first, 0, FILL)
        assert state.columns[:, DeviceColumn.PARTNER_GAP].tolist() == [0.0, 0.0, 0.0]
        put(tables, state, first, 0)
        set_mask(tables, state, second)
        set_columns(tables, state, second, 1, FILL)
        gaps = state.columns[:, DeviceColumn.LOG_PARTNER_GAP]
        assert gaps == pytest.approx(np.log1p(np.array([0.0, 20.0, 20.0]) / assignment.unit_ns))
