"""STG text: the example by hand, and a line number for everything that is wrong."""

import pytest

from doppler.core.cluster import Cluster, Device
from doppler.core.errors import FormatError, GraphError
from doppler.core.graph import Edge
from doppler.core.problem import Problem
from doppler.graphs.stg import parse_stg, read_stg

TEXT = """ 3
0 0 0
1 4 1 0
2 5 1 0
3 6 2 1 2
4 0 1 3
# a comment
"""


def test_tasks_times_and_edges():
    tasks = parse_stg(TEXT, 1.5, "small")
    assert [op.name for op in tasks.graph.ops] == ["task1", "task2", "task3"]
    assert tasks.op_ns == ((6,), (8,), (9,))
    assert tasks.graph.edges == (Edge(0, 0, 2), Edge(1, 0, 2))
    assert tasks.graph.name == "small"
    devices = (Device(name="a", kind="cpu", parent="p"), Device(name="b", kind="cpu", parent="p"))
    problem = Problem(graph=tasks.graph, cluster=Cluster(name="c", devices=devices))
    assert tasks.costs(problem).op_ns == ((6, 6), (8, 8), (9, 9))


def test_reads_a_file(tmp_path):
    path = tmp_path / "rand0.stg"
    path.write_text(TEXT)
    assert read_stg(path, 1).graph.name == "rand0"
    with pytest.raises(FormatError, match="cannot be read"):
        read_stg(tmp_path / "none.stg", 1)
    with pytest.raises(FormatError, match="positive"):
        read_stg(path, 0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (" 3\n", "", "first line"),
        (" 3\n", "0\n", "first line"),
        (" 3\n", "4\n", "take 6 lines, and there are 5"),
        ("2 5 1 0", "2 x 1 0", "line 4: every word is an integer"),
        ("2 5 1 0", "7 5 1 0", "line 4: .*id 2 is due"),
        ("2 5 1 0", "2 5", "line 4: .*id 2 is due"),
        ("3 6 2 1 2", "3 6 3 1 2", "line 5: 3 predecessors are announced and 2 are listed"),
        ("3 6 2 1 2", "3 6 2 1 9", "line 5: predecessors are distinct"),
        ("3 6 2 1 2", "3 6 2 1 3", "line 5: predecessors are distinct"),
        ("3 6 2 1 2", "3 6 2 1 1", "line 5: predecessors are distinct"),
        ("1 4 1 0", "1 -4 1 0", "line 3: a time is at least 0"),
        ("4 0 1 3", "4 2 1 3", "line 6: a time is at least 0, and 0 for a dummy"),
    ],
)
def test_wrong_lines_are_named(old, new, message):
    with pytest.raises(FormatError, match=message):
        parse_stg(TEXT.replace(old, new, 1), 1, "small")


def test_a_circle_is_an_error():
    with pytest.raises(GraphError, match=r"line 3: .*circle"):
        parse_stg(TEXT.replace("1 4 1 0", "1 4 1 3"), 1, "small")
