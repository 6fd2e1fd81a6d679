"""`doppler graph`: every workload with its counts, its knobs, and the files that it writes."""

import re
from collections import Counter
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from doppler.cli import main
from doppler.config import JOBS
from doppler.core.graph import DataflowGraph
from doppler.core.problem import Problem
from doppler.core.serialize import load_cluster, load_costs, load_graph
from doppler.graph_command import build_workload
from doppler.graphs import skeleton
from doppler.graphs.builder import GraphBuilder
from doppler.graphs.counts import KindCount, count_graph, total_graph
from doppler.graphs.families import Topology, generate
from doppler.graphs.ffnn import ffnn
from doppler.graphs.llama import LlamaShape, llama_block, llama_layer
from doppler.graphs.matmul_chain import matmul_chain
from doppler.graphs.moe import moe_block
from doppler.graphs.published import PUBLISHED
from doppler.jobs import build_job
from doppler.workload_config import (
    FAMILY_WORKLOADS,
    WORKLOADS,
    ElementType,
    FamilyConfig,
    WorkloadConfig,
)

PAGE = (Path(__file__).parents[1] / "docs" / "workloads.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("|")
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def built(name, **changes):
    return build_workload(WORKLOADS[name](name=name, **changes))


def test_the_page_has_the_counts_of_every_workload():
    rows = [row for row in ROWS if len(row) == 13 and row[0].startswith("`")]
    for name, row in zip(WORKLOADS, rows, strict=True):
        graph = built(name).graph
        counts, totals = asdict(count_graph(graph)), total_graph(graph)
        work = f"{totals.flop / 1e9:,.2f}" if totals.flop else "-"
        expected = [
            f"`{name}`",
            *(str(counts[key]) for key in ("n", "inputs", "placed", "edges", "roots", "sinks")),
            *map(str, (counts["depth"], totals.width, counts["max_in"], counts["max_out"])),
            work,
            f"{totals.edge_bytes / 1e6:,.1f}",
        ]
        assert row == expected


def kind_counts(graph):
    """(einsum, formation, complex conversion, selection) as the paper divides ops."""
    kinds = Counter(op.kind for op in graph.ops if not op.is_input)
    formations = kinds["sum"] + kinds["concat_rows"] + kinds["concat_cols"]
    conversions, selections = kinds["to_complex"] + kinds["to_real"], kinds["select_last"]
    rest = kinds.total() - formations - conversions - selections
    return rest, formations, conversions, selections


@pytest.mark.parametrize("name", ["chainmm", "ffnn", "llama_block", "moe", "layered", "ppo_ant"])
def test_the_page_names_every_setting_of_a_workload(name):
    (row,) = (
        line
        for line in PAGE.splitlines()
        if line.startswith(f"| `{name}`") and line.count("|") == 4
    )
    named = set(re.findall(r"`(\w+)`", row.split("|")[3]))
    settings = {item.name for item in fields(WORKLOADS[name])}
    assert {word for word in settings if word != "name" and not word.endswith("output")} <= named


def test_the_page_compares_the_llama_graphs_with_the_papers():
    table = {row[0]: row[1:] for row in ROWS if len(row) == 5}
    names = ("llama_block", "llama_layer", "llama_block_8", "llama_layer_8")
    graphs = [PUBLISHED[name].build().graph for name in names]
    for column, (name, graph) in enumerate(zip(names, graphs, strict=True)):
        published = PUBLISHED[name].published
        for key, value in asdict(count_graph(graph)).items():
            assert table[key][column] == f"{value} / {published.get(key, '?')}"
    kinds = [kind_counts(graph) for graph in graphs]
    assert kinds[:2] == [(132, 33, 16, 0), (156, 37, 16, 1)]
    for row, label in enumerate(("einsum", "formation", "complex conversion")):
        assert [cell.split(" / ")[0] for cell in table[label]] == [str(kind[row]) for kind in kinds]
    eight = [
        count_graph(build(LlamaShape(shards=8, row_blocks=8)).graph)
        for build in (llama_block, llama_layer)
    ]
    assert [(counts.placed, counts.roots) for counts in eight] == [(361, 8), (418, 8)]


def test_counts_by_hand():
    builder = GraphBuilder("loop")
    x = builder.input("x", 7)
    a = builder.op("a", "mul", [x], [2], flop=10, group="state")
    b = builder.op("b", "mul", [x], [3], flop=20)
    c = builder.op("c", "add", [a, b], [4], flop=5)
    builder.loop(c, a)
    builder.group("state", 100)
    graph = builder.build()
    counts, totals = count_graph(graph), total_graph(graph)
    assert (counts.edges, counts.roots, counts.sinks, counts.depth) == (3, 2, 1, 2)
    assert (totals.width, totals.loop_edges, totals.flop) == (2, 1, 35)
    assert (totals.edge_bytes, totals.input_bytes, totals.state_bytes) == (2 + 3 + 4, 7, 100)
    # a reads x and c's result of the iteration before, b reads x; both write
    assert totals.kinds == (
        KindCount(kind="mul", num_ops=2, flop=30, bytes_moved=7 + 4 + 2 + 7 + 3),
        KindCount(kind="add", num_ops=1, flop=5, bytes_moved=2 + 3 + 4),
    )


def test_defaults_are_those_of_the_builders():
    graphs: dict[str, DataflowGraph] = {
        "chainmm": matmul_chain().graph,
        "ffnn": ffnn().graph,
        "llama_block": llama_block().graph,
        "llama_layer": llama_layer().graph,
        "moe": moe_block(),
        "ppo_pendulum": build_job(JOBS["ppo_pendulum"], seed=0).graph,
    }
    for name, graph in graphs.items():
        assert built(name).graph.digest == graph.digest, name
    for name, schema in FAMILY_WORKLOADS.items():
        made = generate(name, 100, 4, ccr=1.0)
        assert built(name).graph.digest == made.graph.digest
        assert built(name).costs == made.costs
        shared = {item.name for item in fields(FamilyConfig)}
        own = {item.name: item.default for item in fields(schema) if item.name not in shared}
        assert own == (getattr(skeleton, name).__kwdefaults__ if own else {})


def test_every_argument_of_a_shape_can_be_set():
    shapes = {name: getattr(skeleton, name, None) for name in FAMILY_WORKLOADS}
    for name, shape in shapes.items():
        known = {item.name for item in fields(FAMILY_WORKLOADS[name])}
        assert set(shape.__kwdefaults__ if shape else ()) <= known, name
    assert [name for name, shape in shapes.items() if shape is None] == ["cholesky", "lu", "qr"]


OTHER = {
    "dtype": ElementType.float64,
    "capacity_factor": "2",
    "ccr": 2.0,
    "heterogeneity": 0.3,
    "speed_spread": 2.0,
    "topology": Topology.bus,
    "layers": 7,
    "width": 7,
    "branches": 5,
    "most_predecessors": 2,
    "reach": 1,
    "parallel_percent": 10,
    "radius": 2,
    "seed": 1,
    "hidden": [8],
    "fused": False,
    "all_reduce": "ring",
}
KNOBS = [
    (name, item.name)
    for name in ("chainmm", "ffnn", "llama_layer", "moe", *FAMILY_WORKLOADS, "ppo_pendulum")
    for item in fields(WORKLOADS[name])
    if item.name not in {item.name for item in fields(WorkloadConfig)}
    and not item.name.endswith("_output")
    and item.name not in {"mode", "staleness", "importance", "independent_trainers"}  # together
    and item.name != "trainer_groups"  # for compositions that tell groups apart, see below
]


@pytest.mark.parametrize(("name", "key"), KNOBS)
def test_every_knob_changes_the_problem(name, key):
    schema = WORKLOADS[name]
    default = getattr(schema(), key)
    value = OTHER.get(key, default * 2 if isinstance(default, int) else None)
    if key == "hidden" and name != "ppo_pendulum":
        value = default * 2
    if name == "ffnn" and key == "batch_blocks":
        value = 2
    plain, changed = built(name), built(name, **{key: value})
    same_graph = plain.graph.digest == changed.graph.digest
    same_cluster = plain.problem is None or (
        plain.problem.cluster.digest == changed.problem.cluster.digest
    )
    is_drawn = key == "seed" and name in {"cholesky", "lu", "qr"}
    assert not (same_graph and same_cluster and plain.costs == changed.costs) or is_drawn


def test_groups_of_trainers_change_a_composition_that_tells_them_apart():
    found = {
        groups: built("ppo_ant", all_reduce="local_leader", trainer_groups=groups).graph.digest
        for groups in (1, 2)
    }
    assert found[1] != found[2]


def test_modes_of_a_job_differ_in_edges():
    later = {
        mode: total_graph(built("ppo_pendulum", mode=mode, staleness=staleness).graph).loop_edges
        for mode, staleness in (("synchronous", 0), ("asynchronous", 2), ("serving", 0))
    }
    assert later["synchronous"] == later["asynchronous"] > later["serving"] > 0
    weighed = {
        word: built("ppo_pendulum", mode="asynchronous", staleness=2, importance=word).graph.digest
        for word in ("none", "truncated", "vtrace")
    }
    # Advantages wait for the weights that are to be trained.
    assert weighed["none"] != weighed["truncated"] == weighed["vtrace"]


def test_files_of_a_family_are_read_by_the_other_commands(folder, capsys):
    words = ["graph", "layered", "num_ops=30", "num_devices=3", "seed=101", "topology=bus"]
    outputs = ["output=g.json", "cluster_output=c.json", "costs_output=t.json"]
    assert main([*words, *outputs]) == 0
    made = generate("layered", 30, 3, ccr=1.0, seed=101, topology="bus")
    graph, cluster = load_graph("g.json"), load_cluster("c.json")
    assert (graph.digest, cluster.digest) == (made.graph.digest, made.cluster.digest)
    assert load_costs("t.json", Problem(graph=graph, cluster=cluster)) == made.costs
    assert main(["plan", "graph=g.json", "cluster=c.json", "costs=t.json", "planner=heft"]) == 0
    assert "30" in capsys.readouterr().out
    assert main(["graph", "layered", "output=g.json"]) == 0
    assert "costs_output=FILE.json writes them" in capsys.readouterr().out


def test_a_tensor_graph_is_timed_by_a_machine_of_the_catalogue(folder, capsys):
    words = ["graph", "llama_block", "tokens=256", "hidden=512", "heads=8", "feed_forward=1376"]
    assert main([*words, "dtype=float16", "output=g.json"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"depth .* 40 ", out)
    assert re.search(r"to_complex .* 8 ", out)
    assert main(["plan", "graph=g.json", "cluster=dgx1_v100", "planner=heft"]) == 0


def test_without_a_name_all_workloads_are_listed(capsys):
    assert main(["graph"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in WORKLOADS)
    assert main(["graph", "stencil", "--help"]) == 0
    assert "neighbours on each side" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lama_block"], "name 'lama_block' is unknown; did you mean 'llama_block'?"),
        (["name=lama_block"], "name 'lama_block' is unknown; did you mean 'llama_block'?"),
        (["llama_block", "shard=8"], "setting 'shard' is unknown; did you mean 'shards'?"),
        (["chainmm", "cluster_output=c.json"], "setting 'cluster_output' is unknown"),
        (["moe", "dtype=float23"], "dtype has no value 'float23'; did you mean 'float32'?"),
        (["layered", "topology=buss"], "did you mean 'bus'?"),
        (["output=g.json"], "name the workload to write: chainmm"),
        (["chainmm", "moe"], "takes one name, and 'moe' is a second one"),
        (["chainmm", "output=none/g.json"], "output is a file in a folder that exists"),
        (["layered", "cluster_output=none/c.json"], "in a folder that exists"),
        (["layered", "layers=0"], "layers of a generated graph is from 1 to 100, and it is 0"),
        (["llama_layer", "shards=5"], "shards is a divisor of 32, and it is 5"),
        (["ppo_ant", "num_shards=0"], "num_shards is at least 1, and it is 0"),
    ],
)
def test_mistakes_are_refused_with_a_suggestion(folder, capsys, words, message):
    assert main(["graph", *words]) == 2
    assert message in capsys.readouterr().err
    assert not list(folder.iterdir())
