"""Which times a command plans with: precedence of files, and where each time comes from."""

from dataclasses import replace

import pytest
from test_calibration import one_op_problem, stored

from doppler.calibration import save_calibration
from doppler.core.cluster import Cluster
from doppler.core.costs import make_costs
from doppler.core.errors import ConfigError, DopplerError, FormatError
from doppler.core.graph import DataflowGraph, Op
from doppler.core.problem import Problem
from doppler.core.serialize import save
from doppler.cost_choice import CostChoice
from doppler.graphs.imported import ImportedGraph
from simulator.costs.roofline import RooflineModel

PROBLEM = one_op_problem()


def choice(path=None, fallback=False, **imported):
    return CostChoice(
        path=None if path is None else str(path),
        fallback=fallback,
        imported=ImportedGraph(graph=PROBLEM.graph, **imported),
        roofline=RooflineModel(),
    )


def two_kinds():
    """`mul`, which the stored table knows, and `add`, which it does not, on a core with a rate."""
    device = replace(PROBLEM.cluster.devices[0], flop_per_s=10**9)
    ops = (*PROBLEM.graph.ops, Op(name="new", kind="add", flop=5))
    return Problem(
        graph=DataflowGraph(name="g", ops=ops, edges=()),
        cluster=Cluster(name="c", devices=(device,)),
    )


def test_a_cost_file_or_table_comes_before_all_else(tmp_path):
    save_calibration(tmp_path / "table.json", stored())
    table = choice(tmp_path / "table.json", op_ns=((9,),))
    assert table.costs(PROBLEM) == make_costs(PROBLEM, ((700,),), dispatch_ns=(30,))
    assert [(o.model, o.detail) for o in table.origins(PROBLEM)] == [("measured", "as measured")]
    save(table.costs(PROBLEM), tmp_path / "costs.json", PROBLEM)
    file = choice(tmp_path / "costs.json", op_ns=((9,),))
    assert file.costs(PROBLEM) == table.costs(PROBLEM)
    assert [(o.model, o.min_ns) for o in file.origins(PROBLEM)] == [("cost file", 700)]
    assert table.is_given
    assert file.is_given


def test_then_the_times_of_the_graph_file_then_the_roofline():
    graph_file = choice(op_ns=((9,),))
    assert graph_file.costs(PROBLEM) == make_costs(PROBLEM, ((9,),))
    assert [(o.model, o.max_ns) for o in graph_file.origins(PROBLEM)] == [("graph file", 9)]
    problem = two_kinds()
    model = choice()
    assert not model.is_given
    assert model.costs(problem) == RooflineModel().costs(problem)
    assert {o.model for o in model.origins(problem)} == {"roofline"}


def test_a_fallback_fills_what_the_table_lacks_and_says_so(tmp_path):
    save_calibration(tmp_path / "table.json", stored())
    problem = two_kinds()
    with pytest.raises(DopplerError, match="no op kind 'add'"):
        choice(tmp_path / "table.json").costs(problem)
    filled = choice(tmp_path / "table.json", fallback=True)
    assert [row[0] for row in filled.costs(problem).op_ns] == [700, 5]
    assert [(o.kind, o.model) for o in filled.origins(problem)] == [
        ("mul", "measured"),
        ("add", "roofline"),
    ]


def test_a_fallback_without_a_table_is_refused(tmp_path):
    save(make_costs(PROBLEM, ((1,),)), tmp_path / "costs.json", PROBLEM)
    for path in (None, tmp_path / "costs.json"):
        with pytest.raises(ConfigError, match="fallback fills what a measured cost table lacks"):
            choice(path, fallback=True).costs(PROBLEM)


def test_files_that_are_no_costs_are_refused(tmp_path):
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(FormatError, match=r"x\.json"):
        choice(tmp_path / "x.json").costs(PROBLEM)
    save_calibration(tmp_path / "z.json", stored(kind="add"))
    with pytest.raises(DopplerError, match="no op kind 'mul'"):
        choice(tmp_path / "z.json").costs(PROBLEM)
