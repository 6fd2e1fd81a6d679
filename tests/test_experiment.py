"""Planner tables: resume, budgets, ratios, best known plans, and the config files themselves."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from doppler.api import make_scorer
from doppler.cli import main
from doppler.columns import calls_for, column, measure
from doppler.core.errors import ConfigError, FormatError
from doppler.experiment import (
    Row,
    Table,
    Task,
    calls_budget,
    seconds_budget,
    simulations_budget,
)
from doppler.experiment_run import GROUPS, load_settings
from doppler.experiment_sources import DECIDING, Sources, digest_of
from doppler.experiment_summary import cell_lines, ratio, summarise
from doppler.graphs.families import generate
from doppler.graphs.published import PUBLISHED
from doppler.planners.base import Budget
from doppler.planners.bounds import lower_bounds

EXPERIMENTS = Path(__file__).parent.parent / "experiments"


@pytest.fixture(scope="module")
def task():
    instance = generate("layered", 30, 3, ccr=1.0, heterogeneity=0.5, seed=4)
    bound = lower_bounds(instance.problem, instance.costs).best_ns
    return Task(
        name="small",
        machine="none",
        problem=instance.problem,
        costs=instance.costs,
        bound_ns=bound,
    )


def rows_of(path, task, names, seeds=(0, 1), seconds=0.02, sources=None):
    seen = []
    table = Table(path, lambda row, known: seen.append((row, known)), sources=sources)
    for name in names:
        table.by_seconds(task, name, seeds, seconds)
    return table, seen


def test_a_second_call_takes_finished_runs_from_the_file(tmp_path, task):
    path = tmp_path / "rows.jsonl"
    first, _ = rows_of(path, task, ["heft", "perturbed_heft"], seeds=(0,))
    again, seen = rows_of(path, task, ["heft", "perturbed_heft"])
    assert [known for _, known in seen] == [True, False, True, False]
    assert again.rows[0] == first.rows[0]
    assert len(path.read_text().splitlines()) == 4
    # other times are another task
    costs = replace(task.costs, dispatch_ns=(1,) * 3)
    _, seen = rows_of(path, replace(task, costs=costs), ["heft"], seeds=(0,))
    assert not seen[0][1]


def test_runs_of_other_sources_are_counted_and_made_again(tmp_path, task):
    path = tmp_path / "rows.jsonl"
    old, new = (Sources(revision=name, digest=name) for name in ("old", "new"))
    table, seen = rows_of(path, task, ["heft"], sources=old)
    assert {(row.revision, row.sources) for row in table.rows} == {("old", "old")}
    table, seen = rows_of(path, task, ["heft"], seeds=(0,), sources=new)
    assert (table.num_older, [known for _, known in seen]) == (2, [False])
    assert [row.sources for row in table.rows] == ["new"]
    # each state of the sources finds its own lines again
    for sources, older in ((old, 1), (new, 2)):
        table, seen = rows_of(path, task, ["heft"], seeds=(0,), sources=sources)
        assert (table.num_older, [known for _, known in seen]) == (older, [True])
        assert table.rows[0].sources == sources.digest


def test_lines_without_sources_are_older_ones(tmp_path, task):
    path = tmp_path / "rows.jsonl"
    rows_of(path, task, ["heft"], seeds=(0,))
    line = json.loads(path.read_text())
    path.write_text(
        json.dumps({k: v for k, v in line.items() if k not in ("given", "revision", "sources")})
        + "\n"
    )
    table, seen = rows_of(path, task, ["heft"], seeds=(0,))
    assert (table.num_older, [known for _, known in seen]) == (1, [False])


def test_the_digest_is_of_code_and_weights_that_decide_a_value(tmp_path):
    package, simulator = tmp_path / "doppler", tmp_path / "simulator"
    for name in (*DECIDING, "policies/pretrained", "report"):
        (package / name).mkdir(parents=True, exist_ok=True)
        (package / name / "a.py").write_text("")
    simulator.mkdir()
    weights = package / "policies/pretrained/tensors.safetensors"
    for path in (simulator / "a.py", package / "columns.py", package / "cli.py", weights):
        path.write_text("")
    seen = {digest_of(package, [simulator])}
    for path in (package / "report/a.py", package / "cli.py"):
        path.write_text("x = 1")
    assert {digest_of(package, [simulator])} == seen
    changed = [package / name / "a.py" for name in DECIDING]
    bundle = weights.with_name("bundle.json")
    for path in (*changed, simulator / "a.py", package / "columns.py", weights, bundle):
        path.write_text("x = 1")
        digest = digest_of(package, [simulator])
        assert digest not in seen, path
        seen.add(digest)


def test_what_a_run_made_is_handed_over_before_its_line_is_written(tmp_path, task):
    """A run that is killed while its plan is stored is made again; seen to fail the other way."""
    path, plans = tmp_path / "rows.jsonl", []

    def killed(task, row, plan):
        plans.append((row.value_ns, plan))
        raise KeyboardInterrupt

    table = Table(path, lambda *_: None, on_plan=killed)
    with pytest.raises(KeyboardInterrupt):
        table.by_simulations(task, "heft", (0,), 5)
    assert not path.exists()
    assert make_scorer(task.problem, task.costs).score_plans([plans[0][1]]) == [plans[0][0]]


def test_a_late_table_has_what_the_file_has(tmp_path, task):
    path = tmp_path / "rows.jsonl"
    rows_of(path, task, ["heft"], seeds=(0,))
    table = Table(path, lambda *_: None, is_late=lambda: True)
    table.by_seconds(task, "heft", (0, 1), 0.02)
    assert [row.seed for row in table.rows] == [0]


def test_calls_of_a_budget_in_seconds_are_measured_once_per_file(tmp_path, task, monkeypatch):
    path = tmp_path / "rows.jsonl"
    first, _ = rows_of(path, task, ["random_best"], seeds=(0,))
    monkeypatch.setattr("doppler.experiment.calls_for", None)
    again, _ = rows_of(path, task, ["random_best"], seeds=(1,))
    assert again.rows[0].given == first.rows[0].given == first.rows[0].calls


def test_a_line_that_was_cut_short_is_run_again(tmp_path, task):
    path = tmp_path / "rows.jsonl"
    rows_of(path, task, ["heft"])
    path.write_text(path.read_text()[:-20])
    _, seen = rows_of(path, task, ["heft"])
    assert [known for _, known in seen] == [True, False]
    assert [json.loads(line)["seed"] for line in path.read_text().splitlines()] == [0, 1]
    path.write_text('{"task": 1}\n' + path.read_text())
    with pytest.raises(FormatError, match="line 1 is no row"):
        rows_of(path, task, ["heft"])


def test_equal_calls_are_those_of_the_reference_seed_by_seed(tmp_path, task, monkeypatch):
    monkeypatch.setattr("doppler.experiment.REFERENCE_COLUMN", "perturbed_heft")
    table, _ = rows_of(tmp_path / "rows.jsonl", task, ["perturbed_heft"])
    table.by_calls_of(task, "random_best", (0, 1), 0.02)
    calls = {(row.column, row.seed): row.calls for row in table.rows}
    for seed in (0, 1):
        assert calls["random_best", seed] == calls["perturbed_heft", seed]
    assert table.rows[-1].budget == calls_budget(0.02)


def test_a_budget_of_simulations_is_given_whole_and_kept_apart(tmp_path, task, monkeypatch):
    warm = []
    monkeypatch.setattr("doppler.experiment.warm_up", warm.append)
    path = tmp_path / "rows.jsonl"
    table, _ = rows_of(path, task, [])
    table.by_simulations(task, "random_best", (0, 1), 30)
    table.by_simulations(task, "random_best", (0,), 20)
    assert [row.calls for row in table.rows] == [30, 30, 20]
    assert [row.budget for row in table.rows[1:]] == [simulations_budget(30), "20 simulations"]
    assert len(warm) == 1  # not per run, and not at all where nothing is missing
    again, _ = rows_of(path, task, [])
    again.by_simulations(task, "random_best", (0, 1), 30)
    assert again.rows == table.rows[:2]
    assert len(warm) == 1


def test_budgets_in_seconds_grow_with_the_seconds_and_fixed_planners_keep_theirs(task):
    make = column("random_best")
    few, many = (calls_for(make, task.problem, task.costs, s) for s in (0.02, 0.2))
    assert few * 3 < many

    def in_batches(problem, scorer, budget, rng):
        return make(problem, scorer, Budget(budget.calls // 50 * 50), rng)

    assert calls_for(in_batches, task.problem, task.costs, 0.2) > 128
    assert calls_for(column("heft"), task.problem, task.costs, 5.0) == 128


@pytest.mark.parametrize(
    "name",
    [
        "heft_polish",
        "rules_polish",
        "policy_only",
        "policy_drawn",
        "drawn_no_network",
        "policy_polish",
    ],
)
def test_own_columns_keep_to_their_budget_and_repeat(name, task):
    make = column(name)
    runs = [measure(make, task.problem, task.costs, 70, 3) for _ in range(2)]
    assert runs[0].plan == runs[1].plan
    assert 0 < runs[0].calls <= 70
    assert runs[0].value_ns >= task.bound_ns


def test_the_polish_of_the_rules_is_the_portfolio_at_equal_calls(task):
    """Where a tenth of the calls pays for all rules; HEFT's polish walks from another start."""
    by_rules, by_heft, portfolio = (
        measure(column(name), task.problem, task.costs, 700, 3)
        for name in ("rules_polish", "heft_polish", "portfolio")
    )
    assert by_rules.plan.placement == portfolio.plan.placement
    assert by_rules.plan.priority == portfolio.plan.priority
    assert by_heft.plan.priority != portfolio.plan.priority


def test_drawing_without_a_network_asks_no_pretrained_policy(task, monkeypatch):
    with_network = measure(column("policy_drawn"), task.problem, task.costs, 70, 3)
    monkeypatch.setattr("doppler.planners.guided.load_pretrained", None)
    without = measure(column("drawn_no_network"), task.problem, task.costs, 70, 3)
    assert without.plan.source == "drawn_no_network"
    assert without.plan.priority != with_network.plan.priority


@pytest.mark.parametrize(
    "name", ["policy_only", "policy_drawn", "drawn_no_network", "policy_tuned"]
)
def test_policies_on_their_own_never_search(name, task, monkeypatch):
    def searched(*_, **__):
        raise AssertionError("searched")

    for search in ("learned_run.LearnedRun.search", "predicted_walk.Walk", "guided._Walk._changed"):
        monkeypatch.setattr(f"doppler.planners.{search}", searched)
    measure(column(name), task.problem, task.costs, 70, 0)
    with pytest.raises(AssertionError, match="searched"):
        measure(column("policy_polish"), task.problem, task.costs, 70, 0)


def test_unknown_columns_get_a_suggestion():
    with pytest.raises(ConfigError, match="heft_polish"):
        column("heft_polsh")


def row(column_name, seed, value, budget="1 s"):
    return Row(
        task="k",
        graph="small",
        column=column_name,
        seed=seed,
        budget=budget,
        calls=1,
        cpu_seconds=1.0,
        value_ns=value,
    )


def test_ratios_are_paired_by_seed_with_students_upper_end():
    rows = [row("a", 0, 110), row("b", 0, 100), row("a", 1, 90), row("b", 1, 100), row("a", 2, 5)]
    found = ratio(rows, "small", ("a", "1 s"), ("b", "1 s"))
    assert found.mean == pytest.approx(1.0)
    # two values 1.1 and 0.9: s = 0.1414, t(0.975, 1) = 12.706
    assert found.upper == pytest.approx(1.0 + 12.7062 * np.sqrt(0.02) / np.sqrt(2), rel=1e-4)
    assert ratio(rows, "small", ("a", "1 s"), ("c", "1 s")) is None
    assert ratio(rows, "other", ("a", "1 s"), ("b", "1 s")) is None


def test_cells_by_hand(task):
    tied = replace(task, bound_ns=100)
    rows = [row("portfolio", 0, 100), row("portfolio", 1, 104), row("heft", 0, 150)]
    cells = summarise(rows, [tied], {"small": 96})
    assert [(c.mean_ns, c.least_ns, c.most_ns, c.seeds) for c in cells] == [
        (102.0, 100, 104, 2),
        (150.0, 150, 150, 1),
    ]
    assert cells[0].gap_to_bound == pytest.approx(0.02)
    assert cells[0].gap_to_best == pytest.approx(102 / 96 - 1)
    assert cells[0].tied_at_bound
    assert not summarise(rows, [replace(task, bound_ns=99)], {})[0].tied_at_bound
    lines = cell_lines(summarise(rows, [tied], {}))
    assert len(lines) == 3
    assert lines[1].split()[:2] == ["small", "portfolio"]


@pytest.mark.parametrize("path", sorted((EXPERIMENTS / "experiment").glob("*.yaml")), ids=str)
def test_every_experiment_file_is_complete(path):
    settings = load_settings(EXPERIMENTS, path.stem, [])
    assert set(settings.graphs) <= set(PUBLISHED)
    assert settings.graphs
    assert bool(settings.columns) != bool(settings.bound_seconds)
    for graph in settings.graphs:
        assert PUBLISHED[graph].num_devices in settings.machines
    assert all((EXPERIMENTS / group).is_dir() for group in GROUPS)


def test_groups_and_settings_can_be_overridden():
    changed = load_settings(EXPERIMENTS, "doppler_table", ["training=long", "seeds=2"])
    assert (changed.seconds, changed.seeds) == (60.0, 2)
    with pytest.raises(ConfigError, match="at least 1 seed"):
        load_settings(EXPERIMENTS, "smoke", ["seeds=0"])
    with pytest.raises(ConfigError, match="did you mean 'smoke'"):
        load_settings(EXPERIMENTS, "smok", [])
    assert load_settings(EXPERIMENTS, "ablation", ["simulations=null"]).simulations is None
    with pytest.raises(ConfigError, match="at least 1 simulation per run, and simulations is 0"):
        load_settings(EXPERIMENTS, "ablation", ["simulations=0"])
    with pytest.raises(ConfigError, match="compares with runs of so many seconds"):
        load_settings(EXPERIMENTS, "doppler_table", ["simulations=9"])


def test_the_command_makes_a_table_and_goes_on(tmp_path, capsys, monkeypatch):
    words = ["experiment", "smoke", f"folder={EXPERIMENTS}", f"results={tmp_path}"]
    words += ["columns=[heft,critical_path]", "seeds=1"]
    assert main(words) == 0
    assert "from the file" not in capsys.readouterr().out
    assert main(words) == 0
    assert " ".join(capsys.readouterr().out.split()).count("from the file") == 2
    rows = (tmp_path / "smoke.jsonl").read_text().splitlines()
    assert [json.loads(line)["budget"] for line in rows] == [seconds_budget(0.2)] * 2
