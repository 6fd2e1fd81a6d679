"""Levels against hand-worked numbers, against brute force over paths, and under relabelling."""

import random

import numpy as np
import pytest
from hypothesis import given, settings

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.problem import Problem
from doppler.graphs import levels
from tests.random_problems import problems_with_costs


def diamond():
    ops = tuple(Op(kind="k", name=name, outputs=(10,)) for name in "abcd")
    edges = (Edge(0, 0, 1), Edge(0, 0, 2), Edge(1, 0, 3), Edge(2, 0, 3), Edge(3, 0, 0, 1))
    return DataflowGraph(name="diamond", ops=ops, edges=edges)


TIMES = np.array([1.0, 5.0, 2.0, 1.0])
TRANSFERS = np.array([1.0, 4.0, 1.0, 4.0, 100.0])


def test_compute_levels_worked_by_hand():
    assert levels.b_levels(diamond(), TIMES).tolist() == [7, 6, 3, 1]
    assert levels.t_levels(diamond(), TIMES).tolist() == [1, 6, 3, 7]


def test_communication_levels_worked_by_hand():
    # a -> c -> d costs 1 + 4 + 2 + 4 + 1 = 12 and passes a -> b -> d at 1 + 1 + 5 + 1 + 1 = 9
    assert levels.b_levels(diamond(), TIMES, TRANSFERS).tolist() == [12, 7, 7, 1]
    assert levels.t_levels(diamond(), TIMES, TRANSFERS).tolist() == [1, 7, 7, 12]
    assert levels.next_on_longest_path(diamond(), TIMES, TRANSFERS).tolist() == [2, 3, 3, -1]
    assert levels.next_on_longest_path(diamond(), TIMES).tolist() == [1, 3, 3, -1]


def test_depth_leaves_inputs_out():
    graph = DataflowGraph(
        name="g",
        ops=(Op(kind="input", name="x", outputs=(1,)), Op(kind="k", name="a", outputs=())),
        edges=(Edge(0, 0, 1),),
    )
    assert levels.depth(graph) == 1


def two_devices(**link):
    devices = tuple(Device(name=n, kind="cpu", parent="p") for n in "uv")
    links = (Link(src="u", dst="v", **link), Link(src="v", dst="u", **link))
    return Cluster(name="c", devices=devices, links=links)


def test_upward_rank_worked_by_hand():
    graph = diamond()
    cluster = two_devices(latency_ns=4, bytes_per_s=10**9, buses=("bus",))
    problem = Problem(graph=graph, cluster=cluster)
    costs = make_costs(problem, ((1, 3), (5, 5), (2, 4), (0, 0)))
    # mean times 2, 5, 3, 0; a transfer takes 4 + 10 ns and counts for one half
    assert levels.mean_transfer_ns(problem).tolist() == [14] * 5
    assert levels.upward_ranks(problem, costs).tolist() == [2 + 7 + 12, 5 + 7 + 0, 3 + 7 + 0, 0]


def test_means_go_over_allowed_devices_only():
    graph = DataflowGraph(name="g", ops=(Op(kind="k", name="a"), Op(kind="k", name="b")))
    problem = Problem(graph=graph, cluster=two_devices(), pins={"a": "v"})
    costs = make_costs(problem, ((1, 9), (1, 9)))
    assert levels.mean_op_ns(problem, costs).tolist() == [9, 5]


def test_resident_inputs_travel_for_free():
    graph = DataflowGraph(
        name="g",
        ops=(Op(kind="input", name="x", outputs=(10,)), Op(kind="k", name="a")),
        edges=(Edge(0, 0, 1),),
    )
    problem = Problem(graph=graph, cluster=two_devices(latency_ns=4))
    assert levels.mean_transfer_ns(problem).tolist() == [0]


def all_paths(graph, op):
    edges = [graph.edges[e] for e in graph.out_edges[op] if graph.edges[e].distance == 0]
    if not edges:
        yield [op], []
    for edge in edges:
        for ops, used in all_paths(graph, edge.dst):
            yield [op, *ops], [edge, *used]


@given(problems_with_costs(max_ops=8))
@settings(max_examples=100, deadline=None)
def test_levels_are_the_longest_of_all_paths(case):
    problem, costs = case
    graph = problem.graph
    times = levels.mean_op_ns(problem, costs)
    transfers = levels.mean_transfer_ns(problem)
    index = {edge: i for i, edge in enumerate(graph.edges)}
    found = levels.b_levels(graph, times, transfers)
    pointers = levels.next_on_longest_path(graph, times, transfers)
    for op in range(graph.num_ops):
        lengths = [
            sum(times[o] for o in ops) + sum(transfers[index[e]] for e in used)
            for ops, used in all_paths(graph, op)
        ]
        assert found[op] == pytest.approx(max(lengths))
        path, at = 0.0, op
        while pointers[at] != levels.NO_OP:
            step = max(
                transfers[e]
                for e in graph.out_edges[at]
                if graph.edges[e].dst == pointers[at] and graph.edges[e].distance == 0
            )
            path, at = path + times[at] + step, pointers[at]
        assert path + times[at] == pytest.approx(found[op])


@given(problems_with_costs(max_ops=10))
@settings(max_examples=60, deadline=None)
def test_relabelling_the_ops_relabels_the_levels(case):
    problem, costs = case
    graph = problem.graph
    order = list(range(graph.num_ops))
    random.Random(graph.num_ops).shuffle(order)
    place = {old: new for new, old in enumerate(order)}
    other = DataflowGraph(
        name="other",
        ops=tuple(graph.ops[old] for old in order),
        edges=tuple(
            Edge(place[e.src], e.output, place[e.dst], e.distance, e.mode) for e in graph.edges
        ),
        groups=graph.groups,
        window=graph.window,
    )
    times = levels.mean_op_ns(problem, costs)
    transfers = levels.mean_transfer_ns(problem)
    for function in (levels.b_levels, levels.t_levels):
        before = function(graph, times, transfers)
        after = function(other, times[order], transfers)
        assert after == pytest.approx(before[order])


def test_priorities_are_distinct_and_never_put_a_predecessor_behind():
    graph = diamond()
    priorities = levels.priorities_of(np.zeros(4), graph)
    assert priorities.tolist() == [4, 3, 2, 1]
    assert levels.priorities_of(np.array([1.0, 3.0, 2.0, 0.0]), graph).tolist() == [2, 4, 3, 1]


def test_a_graph_with_more_paths_than_atoms_takes_no_time():
    # 200 layers of 4 fully joined ops: 4^200 paths
    ops = tuple(Op(kind="k", name=f"o{i}", outputs=(1,)) for i in range(800))
    edges = tuple(
        Edge(4 * layer + a, 0, 4 * layer + 4 + b)
        for layer in range(199)
        for a in range(4)
        for b in range(4)
    )
    graph = DataflowGraph(name="layers", ops=ops, edges=edges)
    assert levels.b_levels(graph, np.ones(800))[0] == 200


def test_a_deep_chain_needs_no_recursion():
    ops = tuple(Op(kind="k", name=f"o{i}", outputs=(1,)) for i in range(5000))
    edges = tuple(Edge(i, 0, i + 1) for i in range(4999))
    graph = DataflowGraph(name="chain", ops=ops, edges=edges)
    assert levels.t_levels(graph, np.ones(5000))[-1] == 5000
