"""GraphML: our graphs come back, weighted graphs of others are read, and faults are named."""

import networkx as nx
import pytest
from hypothesis import given, settings

from doppler.core.errors import DopplerError, FormatError, GraphError
from doppler.graphs.graphml import read_graphml, write_graphml
from tests.graphs.imports import check_round_trip
from tests.random_problems import problems

HEAD = '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">\n'
KEYS = """<key id="w" for="node" attr.name="Weight" attr.type="double"/>
<key id="c" for="edge" attr.name="weight" attr.type="int"/>
<key id="l" for="node" attr.name="label" attr.type="string"/>
<key id="k" for="node" attr.name="kind" attr.type="string"/>
<key id="o" for="node" attr.name="outputs" attr.type="string"/>
"""
BODY = """<graph edgedefault="directed">
<node id="a"><data key="w">2.5</data><data key="l">first</data></node>
<node id="b"><data key="w">4</data></node>
<edge source="a" target="b"><data key="c">3</data></edge>
<edge source="a" target="b"/>
</graph>
</graphml>
"""


@pytest.fixture
def write(tmp_path):
    def write_text(text):
        (tmp_path / "g.graphml").write_text(text)
        return tmp_path / "g.graphml"

    return write_text


@given(problem=problems(max_ops=10))
@settings(max_examples=40, deadline=None)
def test_our_graphs_come_back(problem, tmp_path_factory):
    path = tmp_path_factory.mktemp("graphml") / "g.graphml"
    write_graphml(problem.graph, path)
    imported = read_graphml(path)
    assert imported.graph.digest == problem.graph.digest
    assert imported.graph.name == problem.graph.name
    assert imported.ignored == {}


def test_a_weighted_graph(write, tmp_path):
    path = write(HEAD + KEYS + BODY)
    imported = read_graphml(path, 3, 10)
    assert imported.graph.name == "g"
    assert [op.outputs for op in imported.graph.ops] == [(30, 0), ()]
    assert imported.op_ns == ((8,), (12,))
    assert imported.ignored == {"node attribute 'label'": 1}
    check_round_trip(imported, tmp_path)
    for scales in ((), (3,), (None, 10)):
        with pytest.raises(FormatError, match="weights without a unit: say ns_per_unit"):
            read_graphml(path, *scales)


def test_unknown_attributes_of_our_files_are_counted(write):
    node = '<node id="a"><data key="k">work</data><data key="l">x</data></node>'
    other = '<node id="b"><data key="k">work</data><data key="o">[3]</data></node>'
    body = f'<graph edgedefault="directed">\n{node}\n{other}\n</graph></graphml>'
    imported = read_graphml(write(HEAD + KEYS + body))
    assert [op.outputs for op in imported.graph.ops] == [(), (3,)]
    assert imported.ignored == {"node attribute 'label'": 1}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('<data key="w">4</data>', "", "line 9: every node has a kind or a weight, and node 'b'"),
        ('<data key="w">4</data>', '<data key="w">-4</data>', "line 9: the Weight of the node is"),
        ("3</data></edge>", "-3</data></edge>", "line 10: the weight of the edge is at least 0"),
        ('target="b"/>', 'target="x"/>', "line 11: an edge joins nodes of the file, and 'x'"),
        ('"directed"', '"undirected"', "line 7: a dataflow graph is directed"),
        ("</graph>", "", "line 13: mismatched tag"),
        ('<data key="w">4', '<data key="z">4', "no GraphML that can be read"),
        ('<data key="w">4', '<data key="k">w</data><data key="o">4,', "line 9: outputs is JSON"),
        ('<data key="w">2.5', '<data key="k">w</data><data key="o">["4"]', "line 8: .*'outputs'"),
        ('<data key="w">4', '<data key="k">w</data><data key="w">4', "line 8: .*attribute 'kind'"),
    ],
)
def test_wrong_files_are_named(old, new, message, write):
    with pytest.raises(DopplerError, match=message):
        read_graphml(write(HEAD + KEYS + BODY.replace(old, new, 1)), 1, 1)


def test_an_encoding_that_does_not_exist_is_named(write):
    with pytest.raises(FormatError, match=r"an encoding that Python lacks: .*UTF-88"):
        read_graphml(write('<?xml version="1.0" encoding="UTF-88"?>\n' + HEAD + KEYS + BODY), 1, 1)


def test_no_file_and_circles(write, tmp_path):
    with pytest.raises(FormatError, match="cannot be read as GraphML"):
        read_graphml(tmp_path / "none.graphml")
    circle = BODY.replace('source="a" target="b"/>', 'source="b" target="a"/>')
    with pytest.raises(GraphError, match="line 10: edges of distance 0 form no circle"):
        read_graphml(write(HEAD + KEYS + circle), 1, 1)


def test_what_networkx_writes_is_read(tmp_path):
    source = nx.DiGraph()
    source.add_node("x", weight=5)
    source.add_node("y", weight=6)
    source.add_edge("x", "y", weight=7)
    nx.write_graphml(source, tmp_path / "n.graphml")
    imported = read_graphml(tmp_path / "n.graphml", 1, 1)
    assert imported.op_ns == ((5,), (6,))
    assert imported.graph.ops[0].outputs == (7,)
