"""networkx: what goes out comes back, and what is wrong is named."""

import networkx as nx
import pytest
from hypothesis import given, settings

from doppler.core.errors import FormatError, GraphError
from doppler.core.graph import Edge, Group
from doppler.graphs.networkx_import import from_networkx, to_networkx
from tests.random_problems import problems


@given(problems(max_ops=10))
@settings(max_examples=60, deadline=None)
def test_round_trip_keeps_the_digest(problem):
    graph = problem.graph
    back = from_networkx(to_networkx(graph))
    assert (back.name, back.digest) == (graph.name, graph.digest)


def test_digraph_with_defaults():
    source = nx.DiGraph(groups={"g": 9})
    source.add_node("a", kind="load", outputs=(4,), group="g")
    source.add_node(7, kind="work", flop=3, device_kinds=["cpu"])
    source.add_edge("a", 7)
    graph = from_networkx(source, "mine")
    assert graph.name == "mine"
    assert [op.name for op in graph.ops] == ["a", "7"]
    assert graph.edges == (Edge(0, 0, 1),)
    assert graph.groups == (Group("g", 9),)
    assert from_networkx(source).name == "imported"


def test_groups_that_only_ops_name_hold_no_state():
    source = nx.DiGraph()
    source.add_node("a", kind="k", group="g")
    assert from_networkx(source).groups == (Group("g", 0),)


def test_position_orders_the_inputs():
    source = nx.DiGraph()
    for name in "abc":
        source.add_node(name, kind="k", outputs=[1])
    source.add_edge("a", "c", position=1)
    source.add_edge("b", "c", position=0)
    assert [edge.src for edge in from_networkx(source).edges] == [1, 0]


def one_node(**attributes):
    source = nx.DiGraph()
    source.add_node("a", **attributes)
    return source


def test_refusals():
    with pytest.raises(GraphError, match="directed"):
        from_networkx(nx.Graph())
    with pytest.raises(GraphError, match="unknown graph attribute 'windw'; did you mean 'window'"):
        from_networkx(nx.DiGraph(windw=3))
    with pytest.raises(GraphError, match="has an attribute 'kind', and node 'a' has none"):
        from_networkx(one_node())
    with pytest.raises(GraphError, match="unknown attribute 'flops' of node 'a'"):
        from_networkx(one_node(kind="k", flops=1))
    with pytest.raises(FormatError, match="attribute 'flop' of node 'a' is an integer"):
        from_networkx(one_node(kind="k", flop=1.5))
    source = one_node(kind="k", outputs=(1,))
    source.add_node("b", kind="k")
    source.add_edge("a", "b", weight=3)
    with pytest.raises(GraphError, match="unknown attribute 'weight' of edge 'a' -> 'b'"):
        from_networkx(source)
