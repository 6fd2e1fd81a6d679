"""Per-machine cost text: the example by hand, and a line number for everything that is wrong."""

import pytest

from doppler.core.errors import FormatError, GraphError
from doppler.core.graph import Edge
from doppler.core.problem import Problem
from doppler.graphs.cost_text import parse_cost_text, read_cost_text
from tests.graphs.imports import check_round_trip, equal_devices

TEXT = """#critical
12.5
#tasks
0: 1.5, 2
1:3,4
2 :  5 , 6e1

#edges
0: 0, 1, 10
1: 0, 2, 2.5
#end
"""


def test_times_per_machine_and_data_per_edge():
    imported = parse_cost_text(TEXT, 10, 2, "small")
    assert [op.name for op in imported.graph.ops] == ["task0", "task1", "task2"]
    assert imported.op_ns == ((15, 20), (30, 40), (50, 600))
    assert imported.graph.ops[0].outputs == (20, 5)
    assert imported.graph.edges == (Edge(0, 0, 1), Edge(0, 1, 2))
    assert imported.ignored == {"#critical, the length of the critical path": 1}


def test_machine_k_is_device_k():
    imported = parse_cost_text(TEXT, 10, 2, "small")
    problem = Problem(graph=imported.graph, cluster=equal_devices(2))
    assert imported.costs(problem).op_ns == imported.op_ns
    three = Problem(graph=imported.graph, cluster=equal_devices(3))
    with pytest.raises(GraphError, match="times of 2 machines and cluster 'equal' 3 devices"):
        imported.costs(three)


def test_reads_a_file_and_goes_through_json(tmp_path):
    (tmp_path / "g.txt").write_text(TEXT)
    check_round_trip(read_cost_text(tmp_path / "g.txt", 10, 2), tmp_path)
    with pytest.raises(FormatError, match="cannot be read as cost text"):
        read_cost_text(tmp_path / "none.txt", 1, 1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("#tasks", "#task", "line 3: the section '#task' is unknown; did you mean '#tasks'"),
        ("#edges", "#tasks", "line 8: a section stands once"),
        ("#critical", "", "line 2: a line belongs to a section"),
        ("12.5", "long", "line 2: the critical path is a number"),
        ("1:3,4", "1:3", "line 5: every task has one cost per machine .2., and this one has 1"),
        ("1:3,4", "1:3,-4", "line 5: an entry is at least 0"),
        ("1:3,4", "1:3,nan", "line 5: an entry is a number"),
        ("1:3,4", "3:3,4", "line 5: `1: number, ...` is due"),
        ("1:3,4", "1 3 4", "line 5: `1: number, ...` is due"),
        ("1:3,4", "1:3,11e999", "line 5: an entry is below 1e300, and the file has '11e999'"),
        ("1:3,4", "1:3,1e19", r"line 5: a number times ns_per_unit \(1\) fits in 63 bits"),
        ("0, 2, 2.5", "0, 2, 1e19", r"line 10: a number times bytes_per_unit \(1\) fits in 63"),
        ("0, 2, 2.5", "0, 2e999, 2.5", "line 10: an entry is below 1e300"),
        ("0, 2, 2.5", "0, 3, 2.5", "line 10: tasks are 0 to 2, not 3"),
        ("0, 2, 2.5", "0, 1.5, 2.5", "line 10: tasks are 0 to 2, not 1.5"),
        ("0, 2, 2.5", "0, 2", "line 10: an edge is `id: source, target, data`"),
        ("#end\n", "", "the section #end is missing"),
        ("#end\n", "#end\n5\n", "line 12: a line belongs to a section"),
        ("#end\n", "#end\n#tasks\n", "line 12: a section stands once"),
    ],
)
def test_wrong_lines_are_named(old, new, message):
    with pytest.raises(FormatError, match=message):
        parse_cost_text(TEXT.replace(old, new, 1), 1, 1, "small")


def test_no_task_and_a_circle_are_errors():
    with pytest.raises(FormatError, match="at least one task"):
        parse_cost_text("#tasks\n#end\n", 1, 1, "empty")
    with pytest.raises(GraphError, match="line 9: edges of distance 0 form no circle"):
        parse_cost_text(TEXT.replace("1: 0, 2, 2.5", "1: 1, 0, 2.5"), 1, 1, "small")
