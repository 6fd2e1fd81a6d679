"""What-if: the same plans on a changed machine, scored by hand; the commands about hardware."""

import json
from pathlib import Path

import pytest

from doppler.cli import main
from doppler.core.costs import make_costs
from doppler.core.errors import ConfigError
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.plan import make_plan
from doppler.core.problem import Objective, Problem
from doppler.core.serialize import load_hardware, save
from doppler.planners import registry
from doppler.what_if import what_if
from simulator.hardware.catalogue import load_catalogue
from simulator.hardware.machines import named_cluster, named_hardware
from simulator.hardware.page import catalogue_page

MB = 1_000_000
ROOT = Path(__file__).parents[1]
TOPOLOGIES = Path(__file__).parent / "simulator" / "topologies"

GRAPH = DataflowGraph(
    name="pair",
    ops=(
        Op(name="a", kind="mul", flop=10, outputs=(300 * MB,)),
        Op(name="b", kind="mul", flop=10),
        Op(name="c", kind="mul", flop=10),
    ),
    edges=(Edge(0, 0, 1), Edge(0, 0, 2)),
)


@pytest.fixture
def planners(monkeypatch):
    """`apart` moves b to gpu1, `together` does not; all ops take 1 ms."""

    def fixed(placement):
        return lambda problem, *_: make_plan(problem, placement, (0, 0, 0), "hand")

    known = {"apart": fixed((0, 1, 0)), "together": fixed((0, 0, 0))}
    monkeypatch.setattr("doppler.api.get_planner", known.__getitem__)


def costs_of(machine, time_ns=MB):
    problem = Problem(graph=GRAPH, cluster=named_cluster(load_catalogue(), machine))
    return make_costs(problem, ((time_ns,) * problem.cluster.num_devices,) * 3)


def ask(*changes, machine="dgx_a100", **options):
    return what_if(
        GRAPH,
        machine,
        changes,
        planners=["together", "apart"],
        costs=costs_of(machine),
        replan=False,
        **options,
    )


def rows_of(answer):
    return [
        (row.planner, row.rank_before, row.before_ns, row.rank_after, row.after_ns)
        for row in answer.rows
    ]


def test_a_change_moves_exactly_what_holds_the_wire_and_ranks_anew(planners):
    # 300 MB over 12 links of 25 GB/s take 1 ms, and 1.9 us of latency: a and b end at 3.0019 ms
    # apart, a, b and c at 3 ms together. Twice the bandwidth takes 0.5 ms off the former.
    answer = ask("nvlink.bytes_per_s*2")
    assert rows_of(answer) == [
        ("apart", 2, 3_001_900, 1, 2_501_900),
        ("together", 1, 3_000_000, 2, 3_000_000),
    ]
    assert [(c.entry, c.before, c.after) for c in answer.changes] == [
        ("nvlink3", 25 * 10**9, 50 * 10**9)
    ]
    assert answer.objective is Objective.makespan


def test_changes_add_up_and_equal_plans_share_a_rank(planners):
    answer = ask("nvlink.latency_ns:0", "nvlink.bytes_per_s/1")
    assert rows_of(answer) == [
        ("together", 1, 3_000_000, 1, 3_000_000),
        ("apart", 2, 3_001_900, 1, 3_000_000),
    ]
    assert len(answer.changes) == 2


def test_other_machines_do_not_hold_the_wire(planners):
    answer = ask("socket.bytes_per_s*2", machine="dgx1_v100")
    assert [row.before_ns for row in answer.rows] == [row.after_ns for row in answer.rows]


def test_without_given_costs_the_roofline_of_the_changed_machine_counts(planners):
    answer = what_if(GRAPH, "dgx_a100", ["gpu.launch_ns+1000"], planners=["together"], replan=True)
    (row,) = answer.rows
    assert row.after_ns == row.before_ns + 3 * 1000
    assert row.replanned_ns == row.after_ns


def test_what_is_no_question_is_refused():
    with pytest.raises(ConfigError, match="no change is given"):
        what_if(GRAPH, "dgx_a100", [])
    with pytest.raises(ConfigError, match=r"one of its machines, and 'c\.json' is none"):
        what_if(GRAPH, "c.json", ["nvlink.bytes_per_s*2"])


@pytest.fixture
def graph_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    save(GRAPH, "g.json")
    return tmp_path


def test_the_command_prints_both_rankings_and_writes_them(graph_file, capsys):
    words = ["graph=g.json", "cluster=dgx_a100", "change=nvlink.bytes_per_s*2"]
    names = "planners=[single_device,heft]"
    assert main(["what-if", *words, names, "budget=5", "output=w.json"]) == 0
    out = capsys.readouterr().out
    assert "nvlink3.bytes_per_s: 25,000,000,000 -> 50,000,000,000" in out
    assert "rank before" in out
    document = json.loads((graph_file / "w.json").read_text())
    assert {row["planner"] for row in document["rows"]} == {"single_device", "heft"}
    assert document["changes"][0]["after"] == 50 * 10**9


def test_costs_are_shown_with_the_model_that_gave_them(graph_file, capsys):
    assert main(["costs", "graph=g.json", "cluster=dgx_a100", "output=c.json"]) == 0
    out = capsys.readouterr().out
    assert "roofline: 100.0% of the times" in out
    assert "bound by arithmetic" in out
    words = ["graph=g.json", "cluster=dgx_a100", "costs=c.json"]
    assert main(["costs", *words]) == 0
    assert "cost file: 100.0% of the times" in capsys.readouterr().out
    assert main(["what-if", *words, "change=gpu.launch_ns*2", "planners=[heft]"]) == 0
    assert "the change moves transfers only" in capsys.readouterr().out


def test_machines_are_listed_shown_and_written(graph_file, capsys):
    assert main(["hardware", "output=page.md"]) == 0
    assert "two_dgx_a100_ib" in capsys.readouterr().out
    assert (graph_file / "page.md").read_text() == catalogue_page(load_catalogue())
    assert main(["hardware", "dgx1_v100@fp16", "output=h.json"]) == 0
    assert "route" in capsys.readouterr().out
    assert load_hardware("h.json") == named_hardware(load_catalogue(), "dgx1_v100@fp16")


def test_a_topology_is_imported_onto_the_models_of_a_machine(graph_file):
    topology = TOPOLOGIES / "dgx_a100.txt"
    assert main(["hardware", "dgx_a100_80", f"topology={topology}", "output=h.json"]) == 0
    found = load_hardware("h.json")
    named = named_hardware(load_catalogue(), "dgx_a100_80")
    assert (found.processors, found.links, found.routes) == (
        named.processors,
        named.links,
        named.routes,
    )
    assert main(["plan", "graph=g.json", "cluster=h.json", "planner=heft", "budget=1"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hardware", "topology=t.txt"], "a topology states no GPU"),
        (["hardware", "dgx_a100", "topology=t.txt"], "t.txt cannot be read as text"),
        (["hardware", "cpu_8", "topology=dgx1_v100.txt"], "joins GPUs, and 'cpu_8' has none"),
        (["hardware", "two_dgx_a100_ib", "topology=dgx1_v100.txt"], "a topology is that of one"),
        (["hardware", "l40s_pcie_4", "topology=dgx1_v100.txt"], "are joined by NV1, and NVIDIA"),
        (["hardware", "dgx_a10"], "did you mean 'dgx_a100'"),
        (["plan", "graph=g.json"], "this command needs a cluster"),
        (["what-if", "graph=g.json", "cluster=dgx_a100"], "no change is given"),
    ],
)
def test_mistakes_are_refused_in_one_sentence(graph_file, capsys, words, message):
    text = (TOPOLOGIES / "dgx1_v100.txt").read_text()
    (graph_file / "dgx1_v100.txt").write_text(text)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_page_of_the_documentation_is_the_catalogue():
    """Made by `doppler hardware output=docs/hardware.md`."""
    assert (ROOT / "docs" / "hardware.md").read_text() == catalogue_page(load_catalogue())


def test_default_planners_of_the_command_exist():
    from doppler.graph_config import WhatIfConfig

    assert set(WhatIfConfig().planners) <= set(registry.planner_names())
