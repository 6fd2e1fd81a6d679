"""Graph rules: each refusal names rule, value and place; order and digest follow from content."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from doppler.core.errors import GraphError
from doppler.core.graph import (
    MAX_WINDOW,
    DataflowGraph,
    Edge,
    EdgeMode,
    Group,
    InputResidency,
    Op,
)
from tests.random_problems import problems


def op(name, **fields):
    return Op(**{"kind": "k", "name": name, "outputs": (1,), **fields})


def graph(ops=None, edges=(), **fields):
    return DataflowGraph(
        name="g", ops=tuple(ops or (op("a"), op("b"), op("c"))), edges=tuple(edges), **fields
    )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: DataflowGraph(name="g", ops=()), "needs at least one op"),
        (lambda: graph([op("a"), op("a")]), "op 1 .'a'. of graph 'g' repeats the name of op 0"),
        (lambda: graph([op("")]), "needs a kind and a name"),
        (lambda: graph([op("a", kind="")]), "needs a kind and a name"),
        (lambda: graph([op("a", outputs=(-1,))]), "output bytes are integers .* has -1"),
        (lambda: graph([op("a", outputs=(1.5,))]), r"output bytes are integers .* has 1\.5"),
        (lambda: graph([op("a", flop=-2)]), "flop are integers .* has -2"),
        (lambda: graph([op("a", bytes_moved=-3)]), "bytes_moved are integers .* has -3"),
        (lambda: graph(window=0), "window is at least 1"),
        (lambda: graph(window=10**9), "at most 65536, and graph 'g' has 1000000000"),
        (lambda: graph(edges=[Edge(0, 0, 9)]), "names op 9, and ops are 0 to 2"),
        (lambda: graph(edges=[Edge(0, 0, 3)]), "names op 3, and ops are 0 to 2"),
        (lambda: graph(edges=[Edge(-1, 0, 1)]), "names op -1"),
        (lambda: graph(edges=[Edge(0, -1, 1)]), "reads output -1"),
        (lambda: graph(edges=[Edge(0, 1, 1)]), "reads output 1, and op 'a' has 1 outputs"),
        (lambda: graph(edges=[Edge(0, 0, 1, 3)]), "below the window .3., and edge 0 .* has 3"),
        (lambda: graph(edges=[Edge(0, 0, 1, -1)]), "has -1"),
        (
            lambda: graph([op("a"), op("x", kind="input")], [Edge(0, 0, 1)]),
            "an input has no in-edge",
        ),
        (
            lambda: graph([op("x", kind="input"), op("a")], [Edge(0, 0, 1, 1)]),
            "an input feeds every iteration at distance 0",
        ),
        (lambda: graph(groups=(Group("s"), Group("s"))), "group names are unique"),
        (lambda: graph(groups=(Group("s", -1),)), "negative state_bytes -1"),
        (lambda: graph([op("a", group="s")]), "is in group 's', and the graph declares no group"),
        (
            lambda: graph([op("x", kind="input", group="s")], groups=(Group("s"),)),
            "an input has no group",
        ),
        (lambda: graph(edges=[Edge(0, 0, 0)]), "no circle, and graph 'g' has a -> a"),
        (
            lambda: graph(edges=[Edge(0, 0, 1), Edge(1, 0, 2), Edge(2, 0, 1)]),
            "b -> c -> b|c -> b -> c",
        ),
    ],
)
def test_broken_rules_are_named(build, message):
    with pytest.raises(GraphError, match=message):
        build()


def test_circles_over_iterations_are_allowed():
    assert graph(edges=[Edge(0, 0, 1), Edge(1, 0, 0, 1)]).is_cyclic
    assert not graph(edges=[Edge(0, 0, 1)]).is_cyclic


def test_topological_order_takes_the_smallest_free_id():
    assert graph(edges=[Edge(2, 0, 0)]).topological_order == (1, 2, 0)


@given(problems(max_ops=12))
@settings(max_examples=80, deadline=None)
def test_order_and_incidence_agree_with_the_edges(problem):
    found = problem.graph
    place = {op_id: index for index, op_id in enumerate(found.topological_order)}
    assert sorted(place) == list(range(found.num_ops))
    for index, edge in enumerate(found.edges):
        assert edge.distance or place[edge.src] < place[edge.dst]
        assert index in found.in_edges[edge.dst]
        assert index in found.out_edges[edge.src]
    assert sum(map(len, found.in_edges)) == sum(map(len, found.out_edges)) == len(found.edges)
    assert set(found.placeable) == {i for i, o in enumerate(found.ops) if not o.is_input}
    for name, members in found.group_members.items():
        assert members == tuple(i for i, o in enumerate(found.ops) if o.group == name)


BASE = {
    "ops": (op("a", group="s"), op("b"), op("c")),
    "edges": (Edge(0, 0, 1), Edge(1, 0, 2, 1)),
    "groups": (Group("s", 4),),
}
CHANGES = [
    {"ops": (op("a", group="s", flop=1), op("b"), op("c"))},
    {"ops": (op("a", group="s", outputs=(2,)), op("b"), op("c"))},
    {"ops": (op("a"), op("b"), op("c"))},
    {"ops": (op("a", group="s"), op("b", meta_op="m"), op("c"))},
    {"ops": (op("a", group="s"), op("b", device_kinds=("cpu",)), op("c"))},
    {"edges": (Edge(0, 0, 1), Edge(1, 0, 2, 2))},
    {"edges": (Edge(0, 0, 1), Edge(1, 0, 2, 1, EdgeMode.latest))},
    {"edges": (Edge(1, 0, 2, 1), Edge(0, 0, 1))},
    {"groups": (Group("s", 5),)},
    {"window": 4},
    {"inputs": InputResidency.pinned},
]


@pytest.mark.parametrize("change", CHANGES)
def test_digest_sees_everything_that_can_change_a_result(change):
    assert DataflowGraph(name="g", **BASE).digest != DataflowGraph(name="g", **BASE | change).digest


def test_digest_does_not_see_the_name_of_the_graph():
    assert DataflowGraph(name="g", **BASE).digest == DataflowGraph(name="other", **BASE).digest


def test_a_long_chain_needs_no_recursion():
    count = 20_000
    edges = tuple(Edge(i, 0, i + 1) for i in range(count - 1))
    found = graph([op(f"o{i}") for i in range(count)], edges)
    assert found.topological_order == tuple(range(count))


def test_a_circle_is_printed_once_round():
    rng = random.Random(0)
    count = 50
    order = rng.sample(range(count), count)
    edges = [Edge(a, 0, b) for a, b in zip(order, [*order[1:], order[0]], strict=True)]
    with pytest.raises(GraphError) as caught:
        graph([op(f"o{i}") for i in range(count)], edges)
    names = str(caught.value).split(" has ")[1].split(" -> ")
    assert names[0] == names[-1]
    assert len(set(names)) == count


@given(
    st.lists(
        st.tuples(
            st.text("a|\\\n", min_size=1, max_size=3),
            st.text("b|\\\n", min_size=1, max_size=3),
            st.sampled_from([None, "None", "\\None", "|", "\n", "m|m"]),
        ),
        min_size=2,
        max_size=2,
        unique=True,
    )
)
@example([("a|b", "c", None), ("a", "b|c", None)])
@example([("a", "b", "c|d"), ("a", "b|None|d", "c")])
@example([("a", "b", None), ("a", "b", "None")])
def test_no_two_graphs_share_a_digest_whatever_their_names(fields):
    """Names may hold the marks that part the fields of the digest, and a name may be "None"."""
    first, second = (graph([op(name, kind=kind, meta_op=meta)]) for kind, name, meta in fields)
    assert first.digest != second.digest


def test_a_group_named_none_is_not_the_absence_of_one():
    inside, outside = (
        graph([op("a", group=group)], groups=(Group("None"),)) for group in ("None", None)
    )
    assert inside.digest != outside.digest


def test_the_largest_window_is_a_window():
    assert graph(window=MAX_WINDOW).window == MAX_WINDOW
    with pytest.raises(GraphError, match="at most 65536, and graph 'g' has 65537"):
        graph(window=MAX_WINDOW + 1)
