"""DOT with weights: the language's corners by hand, and a line number for everything wrong."""

import pytest

from doppler.core.errors import FormatError, GraphError
from doppler.core.graph import Edge
from doppler.graphs.dot import parse_dot, read_dot
from tests.graphs.imports import check_round_trip

TEXT = """digraph "two" {
  1 [Weight=7];
  1 -> 2 [Weight=3];
  2 [WEIGHT = "4", label="the \\"second\\""];
}
"""


def names(imported):
    return [op.name for op in imported.graph.ops]


def arcs(imported):
    ops = imported.graph.ops
    return [
        (ops[edge.src].name, ops[edge.dst].name, ops[edge.src].outputs[edge.output])
        for edge in imported.graph.edges
    ]


def test_times_are_scaled_and_rounded_once():
    imported = parse_dot(TEXT, 1.5, 10, "unnamed")
    assert imported.graph.name == "two"
    assert names(imported) == ["1", "2"]
    assert imported.op_ns == ((10,), (6,))  # 10.5 to the even neighbour
    assert imported.graph.ops[0].outputs == (30,)
    assert imported.graph.edges == (Edge(0, 0, 1),)
    assert imported.ignored == {"node attribute 'label'": 1}
    assert imported.notes() == ("left out: node attribute 'label' (1 x)",)


def test_decimal_scales_are_exact():
    """1.015 * 500 is 507.5, so 508; in binary floating point it would be a little less, so 507."""
    assert parse_dot("digraph { a [weight=1.015] }", 500, 1, "g").op_ns == ((508,),)
    text = "digraph { a [weight=25]; b [weight=.5] }"
    assert parse_dot(text, 0.1, 1, "g").op_ns == ((2,), (0,))
    assert parse_dot(text, 3, 1, "g").op_ns == ((75,), (2,))


def test_chains_defaults_subgraphs_ports_and_comments():
    text = """# a preprocessor line
    strict digraph { // strict: a repeated edge is one edge
      rankdir=LR; node [Weight=1, shape=box]; edge [weight=5]
      a -> b -> {c; d} [color=red] /* two
      lines */
      subgraph cluster_x { node [Weight=2]; e:out:n; label="x" + "y"; graph [pad=1] }
      a -> b [weight=6]
      e -> a; f [label=<b <i>x</i>>]
    }"""
    imported = parse_dot(text, 1, 1, "g")
    assert names(imported) == ["a", "b", "c", "d", "e", "f"]
    assert imported.op_ns == ((1,), (1,), (1,), (1,), (2,), (1,))
    assert arcs(imported) == [("a", "b", 6), ("b", "c", 5), ("b", "d", 5), ("e", "a", 5)]
    assert imported.ignored == {
        "graph attribute 'rankdir'": 1,
        "graph attribute 'label'": 1,
        "graph attribute 'pad'": 1,
        "port of a node": 2,
        "node attribute 'shape'": 6,
        "node attribute 'label'": 1,
        "edge attribute 'color'": 3,
    }


def test_edges_carry_tensors_of_their_own():
    imported = parse_dot("digraph { a->b; a->b [weight=2]; a [weight=1] b [weight=1] }", 1, 1, "g")
    assert imported.graph.ops[0].outputs == (0, 2)
    assert imported.graph.edges == (Edge(0, 0, 1), Edge(0, 1, 1))


def test_reads_a_file_and_goes_through_json(tmp_path):
    (tmp_path / "g.dot").write_text(TEXT)
    check_round_trip(read_dot(tmp_path / "g.dot", 1, 1), tmp_path)
    with pytest.raises(FormatError, match="cannot be read as DOT"):
        read_dot(tmp_path / "none.dot", 1, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: 'digraph' is due"),
        ("graph { a }", "line 1: a directed graph begins with 'digraph'"),
        ("digraph {\n a [Weight=1]\n a -- b }", "line 3: edges are directed"),
        ("digraph {\n a [Weight=1]\n b }", "line 3: every node has a Weight, and node 'b'"),
        ("digraph {\n a [Weight=x] }", "line 2: the weight of the node is a number"),
        ("digraph {\n a [Weight=-1] }", "line 2: the weight of the node is at least 0"),
        ("digraph {\n a [Weight] }", "line 2: '=' is due, and it has ']'"),
        ("digraph {\n a [Weight=] }", "line 2: the value of 'weight' is due"),
        ("digraph {\n a [Weight=1", "line 2: ']' is due, and the file ends"),
        ("digraph {\n a [Weight=1];", "line 2: '}' is due, and the file ends"),
        ("digraph {\n a [Weight=1] }\n x", "line 3: the file ends after the graph"),
        ("digraph {\n = }", "line 2: a node, an edge or an attribute begins with a name"),
        ("digraph {\n a -> ; }", "line 2: a node, an edge or an attribute begins with a name"),
        ("digraph {\n ? }", "line 2: .* is no DOT"),
        ('digraph {\n a [Weight="1" + 2] }', "line 2: a quoted string is due"),
        ("digraph {\n a [label=<b] }", "line 2: an HTML string begins"),
        ("digraph { }", "at least one node"),
        ("digraph " + "{" * 200, "nested more than 100 deep"),
    ],
)
def test_wrong_text_is_named(text, message):
    with pytest.raises(FormatError, match=message):
        parse_dot(text, 1, 1, "g")


def test_scales_are_positive():
    with pytest.raises(FormatError, match="ns_per_unit is positive, and it is 0"):
        parse_dot(TEXT, 0, 1, "g")
    with pytest.raises(FormatError, match="bytes_per_unit is positive, and it is -1"):
        parse_dot(TEXT, 1, -1, "g")


def test_a_circle_names_its_first_line():
    text = "digraph { node [weight=1];\n x -> a;\n a -> b;\n b -> c; c -> a; c -> y }"
    with pytest.raises(GraphError, match="line 3: edges of distance 0 form no circle"):
        parse_dot(text, 1, 1, "g")
