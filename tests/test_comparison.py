"""Planners compared from several seeds: mean, least and most, in the table and in the file."""

import json

import numpy as np
import pytest

from doppler.api import plan_problem
from doppler.cli import main
from doppler.comparison import compare_seeds, spread_document
from doppler.core.errors import ConfigError
from doppler.core.serialize import load_plan, save
from doppler.graphs.families import generate
from doppler.planners.bounds import lower_bounds


@pytest.fixture(scope="module")
def case():
    instance = generate("layered", 20, 3, ccr=1.0, heterogeneity=0.5, seed=107)
    return instance.problem, instance.costs


def test_every_planner_runs_from_every_seed_and_the_best_mean_leads(case):
    seen = []
    spreads = compare_seeds(
        *case, ["random_best", "heft"], 10, (4, 5, 6), on_result=lambda r: seen.append(r.planner)
    )
    assert seen == ["random_best"] * 3 + ["heft"] * 3
    assert [spread.planner for spread in spreads] == ["heft", "random_best"]
    alone = [plan_problem(*case, "random_best", 10, seed).value_ns for seed in (4, 5, 6)]
    drawn = spreads[1]
    assert drawn.values_ns == alone
    assert len(set(alone)) > 1
    assert drawn.mean_ns == np.mean(alone)
    bound_ns = lower_bounds(*case).best_ns
    assert drawn.gap == pytest.approx(np.mean(alone) / bound_ns - 1.0)
    assert drawn.best.value_ns == min(alone)
    assert drawn.num_calls == 10
    document = spread_document(case[0], spreads, 10, (4, 5, 6))
    entry = document["planners"][1]
    assert (entry["least_ns"], entry["most_ns"]) == (min(alone), max(alone))
    assert (entry["values_ns"], document["seeds"]) == (alone, [4, 5, 6])
    assert document["bound_ns"] == bound_ns


def test_without_a_seed_there_is_nothing_to_compare(case):
    with pytest.raises(ConfigError, match="at least one seed"):
        compare_seeds(*case, ["heft"], 10, ())


def test_the_command_writes_the_table_and_the_best_plan_of_all_seeds(
    case, tmp_path, monkeypatch, capsys
):
    problem, costs = case
    monkeypatch.chdir(tmp_path)
    for name, value in (("g", problem.graph), ("c", problem.cluster)):
        save(value, tmp_path / f"{name}.json")
    save(costs, tmp_path / "t.json", problem)
    words = ["compare", "graph=g.json", "cluster=c.json", "costs=t.json"]
    words += ["planners=[random_best,single_device]", "budget=10", "seed=4"]
    assert main([*words, "seeds=3", "table=o.json", "output=p.json"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "3 seeds" in out
    assert all(word in out for word in ("mean", "least", "most"))
    document = json.loads((tmp_path / "o.json").read_text())
    rows = {row["planner"]: row for row in document["planners"]}
    spreads = compare_seeds(problem, costs, ["random_best"], 10, (4, 5, 6))
    assert rows["random_best"]["values_ns"] == spreads[0].values_ns
    assert len(set(rows["single_device"]["values_ns"])) == 1
    assert document["command"].startswith("doppler compare")
    assert load_plan(tmp_path / "p.json", problem).placement == spreads[0].best.plan.placement
    assert main([*words, "seeds=0"]) == 2
    assert "seeds is at least 1, and it is 0" in capsys.readouterr().err
    assert main([*words, "table=absent/o.json"]) == 2
