"""The builder: handles, loops, groups, bytes by default, and what it refuses."""

import doctest

import pytest

from doppler.core.errors import GraphError
from doppler.core.graph import Edge, EdgeMode, Group, InputResidency
from doppler.graphs import builder as module
from doppler.graphs.builder import GraphBuilder


def test_builds_ops_edges_and_groups_in_order():
    builder = GraphBuilder("g", window=4)
    x = builder.input("x", 8)
    a = builder.op("a", "split", [x], [3, 5], flop=7, group="s", meta_op="m", device_kinds=["cpu"])
    b = builder.op("b", "join", [a[1], a[0], x], [4])
    builder.loop(b, a, 2, EdgeMode.latest)
    builder.loop(b[0], "b")
    builder.group("s", 100)
    graph = builder.build()
    assert [op.name for op in graph.ops] == ["x", "a", "b"]
    assert graph.edges == (
        Edge(0, 0, 1),
        Edge(1, 1, 2),
        Edge(1, 0, 2),
        Edge(0, 0, 2),
        Edge(2, 0, 1, 2, EdgeMode.latest),
        Edge(2, 0, 2, 1),
    )
    assert graph.groups == (Group("s", 100),)
    assert graph.window == 4
    assert graph.ops[1].device_kinds == ("cpu",)
    assert graph.ops[1].meta_op == "m"
    assert graph.ops[1].flop == 7


def test_bytes_moved_are_all_inputs_and_outputs_unless_stated():
    builder = GraphBuilder("g")
    x = builder.input("x", 8)
    a = builder.op("a", "k", [x, x], [3, 5])
    builder.op("b", "k", [a[0]], [4], bytes_moved=0)
    builder.loop(a[1], a)
    graph = builder.build()
    assert [op.bytes_moved for op in graph.ops] == [0, 8 + 8 + 5 + 3 + 5, 0]


def test_residency_reaches_the_graph():
    builder = GraphBuilder("g", residency=InputResidency.pinned)
    builder.input("x", 8)
    assert builder.build().inputs is InputResidency.pinned


def test_refusals():
    builder = GraphBuilder("g")
    a = builder.op("a", "k", [], [1, 2])
    with pytest.raises(GraphError, match="added twice"):
        builder.op("a", "k")
    with pytest.raises(GraphError, match="2 outputs: index it"):
        builder.op("b", "k", [a])
    with pytest.raises(GraphError, match="output 2 is read"):
        a[2]
    with pytest.raises(GraphError, match="at least 1, not 0"):
        builder.loop(a[0], a, 0)
    with pytest.raises(GraphError, match="unknown op 'zz'"):
        builder.connect(a[0], "zz")
    builder.group("s", 5)
    with pytest.raises(GraphError, match="with 5 and with 6"):
        builder.group("s", 6)
    with pytest.raises(GraphError, match="at least one op"):
        GraphBuilder("empty").build()


def test_refused_ops_leave_no_trace():
    builder = GraphBuilder("g")
    a = builder.op("a", "k", [], [1, 2])
    with pytest.raises(GraphError):
        builder.op("b", "k", [a])
    builder.op("b", "k", [a[0]])
    assert builder.build().num_ops == 2


def test_the_example_runs():
    assert doctest.testmod(module).failed == 0
