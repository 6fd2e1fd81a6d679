"""What PLACETO and GDP see: order, ancestors, estimated starts by hand, legal devices."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.errors import CapacityError, PlanError
from doppler.core.graph import DataflowGraph, Edge, Group, Op
from doppler.core.problem import Problem
from doppler.planners.mask import make_mask
from doppler.planners.placement_inputs import legal_devices, make_placement_inputs
from tests.random_problems import problems_with_costs


def two_devices(latency=3, links=(("d0", "d1"), ("d1", "d0")), memory=1 << 40):
    devices = tuple(
        Device(name=f"d{i}", kind="cpu", parent=f"p{i}", memory_bytes=memory) for i in range(2)
    )
    joined = tuple(
        Link(src=a, dst=b, latency_ns=latency, bytes_per_s=10**9, buses=("bus",)) for a, b in links
    )
    return Cluster(name="c", devices=devices, links=joined)


def diamond(cluster):
    """a -> b, c -> d with tensors of 2 bytes; a 4, b 6, c 5, d 1 on both devices."""
    ops = tuple(Op(kind="k", name=name, outputs=(2,)) for name in "abcd")
    edges = (Edge(0, 0, 1), Edge(0, 0, 2), Edge(1, 0, 3), Edge(2, 0, 3))
    problem = Problem(graph=DataflowGraph(name="g", ops=ops, edges=edges), cluster=cluster)
    costs = make_costs(problem, ((4, 4), (6, 6), (5, 5), (1, 1)))
    return make_placement_inputs(problem, costs)


def test_order_and_priority_follow_the_b_level():
    inputs = diamond(two_devices())
    assert inputs.ops_N.tolist() == [0, 1, 2, 3]
    assert inputs.priority_V.tolist() == [4, 3, 2, 1]
    assert inputs.ancestors_NN.tolist() == [
        [False, False, False, False],
        [True, False, False, False],
        [True, False, False, False],
        [True, True, True, False],
    ]


def test_starts_worked_by_hand():
    inputs = diamond(two_devices())
    # All on d0: 0, 4, 10, 15 of 16. c on d1: its input is there at 4 + 5, it ends at 14, and its
    # tensor is back at 19: d from 19 to 20.
    starts = inputs.starts(np.array([[0, 0, 0, 0], [0, 0, 1, 0]]))
    assert starts[0].tolist() == [0.0, 4 / 16, 10 / 16, 15 / 16]
    assert starts[1].tolist() == [0.0, 4 / 20, 9 / 20, 19 / 20]


def test_kinds_are_named_columns_in_the_order_of_the_priorities():
    ops = tuple(Op(kind=kind, name=f"o{i}", outputs=(2,)) for i, kind in enumerate("bab"))
    graph = DataflowGraph(name="g", ops=ops, edges=(Edge(1, 0, 0), Edge(0, 0, 2)))
    problem = Problem(graph=graph, cluster=two_devices())
    inputs = make_placement_inputs(problem, make_costs(problem, ((4, 4),) * 3))
    assert inputs.ops_N.tolist() == [1, 0, 2]
    assert inputs.kind_NK.tolist() == [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]


@given(problems_with_costs(max_ops=8))
@settings(max_examples=40, deadline=None)
def test_predecessors_come_first_and_ancestors_are_paths(case):
    inputs = make_placement_inputs(*case)
    assert (inputs.src_E < inputs.dst_E).all()
    position = {op: index for index, op in enumerate(inputs.ops_N.tolist())}
    for op, index in position.items():
        above, stack = set(), [op]
        while stack:
            for edge_id in case[0].graph.in_edges[stack.pop()]:
                edge = case[0].graph.edges[edge_id]
                if edge.distance == 0 and edge.src in position and edge.src not in above:
                    above.add(edge.src)
                    stack.append(edge.src)
        found = np.flatnonzero(inputs.ancestors_NN[index]).tolist()
        assert {int(inputs.ops_N[n]) for n in found} == above


@given(problems_with_costs(max_ops=8, full_links=False), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_legal_devices_are_those_that_keep_a_placement_legal(case, seed):
    mask = make_mask(case[0])
    assume(mask.num_units)
    rng = np.random.default_rng(seed)
    try:
        devices_U = mask.complete(mask.prefer_random(rng))
    except (CapacityError, PlanError):
        return
    for unit in range(mask.num_units):
        legal = legal_devices(mask, devices_U[None], unit)[0]
        for device in range(mask.num_devices):
            moved = devices_U.copy()
            moved[unit] = device
            assert legal[device] == mask.is_legal(moved)


def test_state_of_others_blocks_a_device():
    graph = DataflowGraph(
        name="g",
        ops=tuple(Op(kind="k", name=f"o{i}", group=f"g{i}") for i in range(2)),
        groups=(Group("g0", 6), Group("g1", 6)),
    )
    mask = make_mask(Problem(graph=graph, cluster=two_devices(memory=10)))
    assert legal_devices(mask, np.array([[0, 1]]), 0).tolist() == [[True, False]]


@pytest.mark.parametrize("links", [(("d0", "d1"),)])
def test_links_of_one_direction_block_the_other(links):
    inputs = diamond(two_devices(links=links))
    legal = legal_devices(inputs.mask, np.array([[0, 0, 0, 0]]), 1)
    # b may not go to d1, because its tensor could not come back to d.
    assert legal.tolist() == [[True, False]]
    legal = legal_devices(inputs.mask, np.array([[0, 1, 1, 1]]), 0)
    assert legal.tolist() == [[True, True]]
