"""WfCommons 1.5: a workflow by hand, and a line number for everything that is wrong."""

import json

import pytest

from doppler.core.errors import FormatError, GraphError
from doppler.core.graph import Edge
from doppler.core.problem import Problem
from doppler.graphs.wfcommons import is_wfcommons, parse_wfcommons, read_wfcommons
from tests.graphs.imports import check_round_trip, equal_devices


def task(name, parents=(), children=(), reads=(), writes=(), **more):
    return {
        "id": name,
        "name": more.pop("kind", "work"),
        "parents": list(parents),
        "children": list(children),
        "inputFiles": list(reads),
        "outputFiles": list(writes),
        **more,
    }


def workflow():
    """split reads `raw` and writes a and b; left reads a; right reads both and waits for left."""
    return {
        "name": "diamond",
        "description": "by hand",
        "schemaVersion": "1.5",
        "workflow": {
            "specification": {
                "tasks": [
                    task("split", (), ("left", "right"), ("raw",), ("a", "b"), kind="split"),
                    task("left", ("split",), ("right",), ("a",), (), color="red"),
                    task("right", ("split", "left"), (), ("b", "a"), ("out",), kind="input"),
                ],
                "files": [
                    {"id": "raw", "sizeInBytes": 100},
                    {"id": "a", "sizeInBytes": 10},
                    {"id": "b", "sizeInBytes": 20},
                    {"id": "out", "sizeInBytes": 1},
                    {"id": "unused", "sizeInBytes": 1},
                ],
            },
            "execution": {
                "makespanInSeconds": 9,
                "tasks": [
                    {"id": "split", "runtimeInSeconds": 0.0000000015, "coreCount": 1},
                    {"id": "left", "runtimeInSeconds": 2},
                    {"id": "right", "runtimeInSeconds": 0.1, "machines": ["m"]},
                ],
            },
        },
    }


def text(document):
    return json.dumps(document, indent=1)


def test_files_are_outputs_and_tasks_without_a_common_file_wait_for_zero_bytes():
    imported = parse_wfcommons(text(workflow()), "unnamed")
    graph = imported.graph
    assert graph.name == "diamond"
    assert [(op.name, op.kind, op.outputs) for op in graph.ops] == [
        ("raw", "input", (100,)),
        ("split", "split", (10, 20)),
        ("left", "work", (0,)),
        ("right", "task", (1,)),
    ]
    assert graph.edges == (
        Edge(0, 0, 1),
        Edge(1, 0, 2),
        Edge(1, 1, 3),
        Edge(1, 0, 3),
        Edge(2, 0, 3),
    )
    assert imported.op_ns == ((0,), (2,), (2_000_000_000,), (100_000_000,))
    assert imported.ignored == {
        "description": 1,
        "file 'unused', which no task reads or writes": 1,
        "tasks[].color": 1,
        "tasks[].coreCount": 1,
        "tasks[].machines": 1,
        "workflow.execution.makespanInSeconds": 1,
    }


def test_without_execution_there_are_no_times():
    document = workflow()
    del document["workflow"]["execution"]
    imported = parse_wfcommons(text(document), "unnamed")
    assert imported.op_ns is None
    with pytest.raises(FormatError, match="holds no times"):
        imported.costs(Problem(graph=imported.graph, cluster=equal_devices(1)))


def test_a_writer_is_a_parent_listed_or_not():
    document = workflow()
    tasks = document["workflow"]["specification"]["tasks"]
    tasks[0]["children"].remove("left")
    tasks[1]["parents"].remove("split")
    tasks[1]["outputFiles"].append("unused")
    tasks[1]["inputFiles"].append("unused")
    imported = parse_wfcommons(text(document), "unnamed")
    assert Edge(1, 0, 2) in imported.graph.edges
    assert imported.ignored["missing entry in parents (the edge is there, from the file)"] == 1
    assert imported.ignored["file that a task both writes and reads"] == 1


def test_reads_a_file_and_goes_through_json(tmp_path):
    (tmp_path / "w.json").write_text(text(workflow()))
    check_round_trip(read_wfcommons(tmp_path / "w.json"), tmp_path)
    assert is_wfcommons(workflow())
    assert not is_wfcommons({"type": "graph", "schema_version": 1})


def change(path, value):
    document = workflow()
    target = document
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return document


SPEC = ("workflow", "specification")
TASKS, FILES, RUNS = (*SPEC, "tasks"), (*SPEC, "files"), ("workflow", "execution", "tasks")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("schemaVersion",), "1.4", "schemaVersion 1.5 is read, and the file has '1.4'"),
        (("schemaVersion",), 1.5, "line 1: schemaVersion is of type str"),
        (("workflow",), [], "line 1: workflow is an object"),
        ((*SPEC, "tasks"), {}, "line 6: tasks is of type list"),
        ((*SPEC, "tasks"), [], "line 6: a workflow has at least one task"),
        ((*TASKS, 1), 5, "line 6: an entry of tasks is an object"),
        ((*TASKS, 1, "id"), "split", "line 24: ids of tasks are unique, and 'split' is not"),
        ((*TASKS, 1, "parents"), [3], "line 24: parents lists ids, and it has 3"),
        ((*TASKS, 1, "parents"), ["splt"], "names 'splt'; did you mean 'split'"),
        ((*TASKS, 1, "parents"), [], "line 8: parents and children agree, and task 'split'"),
        ((*TASKS, 1, "inputFiles"), ["a", "a"], "line 24: inputFiles lists an id once"),
        ((*TASKS, 1, "inputFiles"), ["x"], "line 24: files lists every file, and 'x' of task"),
        ((*TASKS, 1, "outputFiles"), ["a"], "a file has one writer, and 'a' is written by"),
        ((*FILES, 0, "sizeInBytes"), -1, "line 57: sizeInBytes is at least 0, not -1"),
        ((*FILES, 0, "sizeInBytes"), "1", "line 57: sizeInBytes is of type int"),
        ((*RUNS, 0, "id"), "x", "line 82: the execution is of tasks of the specification"),
        ((*RUNS, 0, "runtimeInSeconds"), -1, "line 82: runtimeInSeconds is a number of at least"),
        ((*RUNS, 0, "runtimeInSeconds"), 1e18, "line 82: .* ns_per_second .* fits in 63 bits"),
        ((*RUNS,), [], "line 79: an execution times every task, and 'split' is missing"),
    ],
)
def test_wrong_entries_are_named(path, value, message):
    with pytest.raises(FormatError, match=message):
        parse_wfcommons(text(change(path, value)), "w", "w.json")


def test_broken_json_names_its_line():
    with pytest.raises(FormatError, match="line 3: Expecting"):
        parse_wfcommons('{"a": 1,\n"b": 2,\n]}', "w", "w.json")
    with pytest.raises(FormatError, match="line 1: NaN is no JSON number"):
        parse_wfcommons('{"a": NaN}', "w", "w.json")
    endless = text(workflow()).replace('"runtimeInSeconds": 2', '"runtimeInSeconds": 1e999')
    with pytest.raises(FormatError, match=r"runtimeInSeconds is a number of .*, and it is inf"):
        parse_wfcommons(endless, "w", "w.json")
    with pytest.raises(FormatError, match="the key 'a' stands twice"):
        parse_wfcommons('{"a": 1, "a": 2}', "w", "w.json")
    with pytest.raises(FormatError, match="nested too deeply"):
        parse_wfcommons("[" * 100_000, "w", "w.json")


def test_a_circle_is_an_error():
    document = workflow()
    tasks = document["workflow"]["specification"]["tasks"]
    tasks[2]["children"].append("split")
    tasks[0]["parents"].append("right")
    with pytest.raises(GraphError, match="line 8: edges of distance 0 form no circle"):
        parse_wfcommons(text(document), "w", "w.json")
