"""Graph files by name, in the library and on the command line; times of the file are used."""

import json

import pytest

from doppler.cli import main
from doppler.core.errors import FormatError
from doppler.core.problem import Problem
from doppler.core.serialize import load_costs, save
from doppler.graphs.files import read_graph_file
from doppler.graphs.graphml import write_graphml
from doppler.graphs.matmul_chain import matmul_chain
from tests.graphs.imports import equal_devices

# Two tasks of 5 and 7 units and their join of 2: 14 on one device; on two the join waits for
# 3 units of data, 5 + 2 with the longer one's device as its own: 9.
STG = "3\n0 0 0\n1 5 1 0\n2 7 1 0\n3 2 2 1 2\n4 0 1 3\n"
DOT = "digraph { 1 [weight=5] 2 [weight=7] 3 [weight=2] 1 -> 3 [weight=3, x=1] 2 -> 3 [weight=3] }"
TEXT = "#critical\n9\n#tasks\n0:5,5\n1:7,7\n2:2,2\n#edges\n0:0,2,3\n1:1,2,3\n#end\n"
WORKFLOW = {
    "name": "join",
    "schemaVersion": "1.5",
    "workflow": {
        "specification": {
            "tasks": [
                {"id": "a", "children": ["c"], "outputFiles": ["x"]},
                {"id": "b", "children": ["c"], "outputFiles": ["y"]},
                {"id": "c", "parents": ["a", "b"], "inputFiles": ["x", "y"]},
            ],
            "files": [{"id": "x", "sizeInBytes": 3}, {"id": "y", "sizeInBytes": 3}],
        },
        "execution": {
            "tasks": [
                {"id": "a", "runtimeInSeconds": 5e-9},
                {"id": "b", "runtimeInSeconds": 7e-9},
                {"id": "c", "runtimeInSeconds": 2e-9},
            ]
        },
    },
}
UNITS = ["ns_per_unit=1", "bytes_per_unit=1"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(equal_devices(2), "c.json")
    for name, text in (("j.stg", STG), ("j.dot", DOT), ("j.txt", TEXT)):
        (tmp_path / name).write_text(text)
    (tmp_path / "j.json").write_text(json.dumps(WORKFLOW))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "units"), [("j.stg", UNITS[:1]), ("j.dot", UNITS), ("j.txt", UNITS), ("j.json", [])]
)
def test_every_kind_is_placed_and_simulated_with_its_times(name, units, folder, capsys):
    words = [f"graph={name}", "cluster=c.json", *units]
    assert main(["plan", *words, "planner=exhaustive", "budget=9999", "output=p.json"]) == 0
    assert main(["simulate", *words, "plan=p.json"]) == 0
    out = capsys.readouterr().out
    assert ("left out: edge attribute 'x' (1 x)" in out) == (name == "j.dot")
    assert read_graph_file(name, 1, 1).op_ns is not None
    assert "makespan of 1 iteration(s): 0.000 ms" in out
    plan = json.loads((folder / "p.json").read_text())
    assert len(set(plan["placement"].values())) == 2


def test_times_scale_with_the_unit(folder, capsys):
    words = ["graph=j.stg", "cluster=c.json", "ns_per_unit=1e6", "planners=[single_device]"]
    assert main(["compare", *words]) == 0
    assert "14.000" in capsys.readouterr().out


def test_our_own_files(folder):
    graph = matmul_chain(40).graph
    save(graph, "g.json")
    write_graphml(graph, "g.graphml")
    for name in ("g.json", "g.graphml"):
        imported = read_graph_file(name)
        assert imported.graph.digest == graph.digest
        assert imported.op_ns is None


@pytest.mark.parametrize("name", ["j.stg", "j.dot", "j.txt"])
def test_a_missing_unit_is_asked_for(name, folder, capsys):
    with pytest.raises(FormatError, match="has no unit of its own: set ns_per_unit"):
        read_graph_file(name)
    assert main(["plan", f"graph={name}", "cluster=c.json", "planner=heft"]) == 2
    assert "set ns_per_unit=NUMBER" in capsys.readouterr().err
    if name != "j.stg":
        with pytest.raises(FormatError, match="set bytes_per_unit"):
            read_graph_file(name, 1)


def test_unknown_kinds_and_workflows_without_times(folder, capsys):
    with pytest.raises(FormatError, match=r"ends in one of .json, .stg"):
        read_graph_file("g.xml")
    document = json.loads(json.dumps(WORKFLOW))
    del document["workflow"]["execution"]
    (folder / "n.json").write_text(json.dumps(document))
    assert main(["plan", "graph=n.json", "cluster=c.json", "planner=heft"]) == 2
    assert "holds no times, so costs are needed" in capsys.readouterr().err


def test_convert_writes_graph_and_costs(folder, capsys):
    words = ["graph=j.dot", *UNITS]
    assert main(["convert", *words, "output=g.json", "cluster=c.json", "costs_output=t.json"]) == 0
    assert "3 ops, 2 edges: g.json" in capsys.readouterr().out
    imported = read_graph_file("j.dot", 1, 1)
    assert read_graph_file("g.json").graph.digest == imported.graph.digest
    problem = Problem(graph=imported.graph, cluster=equal_devices(2))
    assert load_costs("t.json", problem) == imported.costs(problem)
    assert main(["convert", "graph=g.json", "output=g.graphml"]) == 0
    assert read_graph_file("g.graphml").graph.digest == imported.graph.digest


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["output=g.json"], "convert needs graph=FILE"),
        (["graph=j.stg", "output=g.dot"], "output is 'g.dot'"),
        (["graph=j.stg", "output=g.json", "cluster=c.json"], "set both costs_output and cluster"),
    ],
)
def test_convert_refuses(words, message, folder, capsys):
    assert main(["convert", *words]) == 2
    assert message in capsys.readouterr().err
