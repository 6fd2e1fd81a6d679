"""Best known plans and their bounds: stored at once, scored again, with what made them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from doppler import experiment_run
from doppler.columns import measure
from doppler.core.errors import ConfigError, FormatError
from doppler.core.plan import make_plan
from doppler.experiment import Task, make_task
from doppler.experiment_best import BestKnown, SolverBound, load_best, store_best
from doppler.experiment_bounds import improve_bound
from doppler.experiment_sources import present_sources
from doppler.graphs.families import generate
from doppler.planners import heft
from doppler.planners.bounds import lower_bounds

BEST_KNOWN = Path(__file__).parent.parent / "experiments" / "best_known"
DOCS = Path(__file__).parent.parent / "docs"


def task_of(num_ops, num_devices, ccr=1.0):
    instance = generate("layered", num_ops, num_devices, ccr=ccr, heterogeneity=0.5, seed=104)
    bound = lower_bounds(instance.problem, instance.costs).best_ns
    return Task(
        name="small",
        machine="none",
        problem=instance.problem,
        costs=instance.costs,
        bound_ns=bound,
    )


@pytest.fixture(scope="module")
def task():
    return task_of(30, 3)


def best_of(task, make=None):
    def dealt(problem, *_):
        num_ops, num_devices = problem.graph.num_ops, problem.cluster.num_devices
        return make_plan(
            problem, tuple(v % num_devices for v in range(num_ops)), (0,) * num_ops, "t"
        )

    found = measure(make or dealt, task.problem, task.costs, 2, 0)
    return BestKnown(plan=found.plan, value_ns=found.value_ns, command="by hand", revision="abc+")


def bound_of(task, bound_ns):
    return SolverBound(
        task=task.key, bound_ns=bound_ns, seconds=1.0, command="doppler experiment", revision="abc"
    )


def test_a_best_known_plan_is_scored_again_when_it_is_read(tmp_path, task):
    best = best_of(task)
    path = store_best(tmp_path, task, best)
    assert load_best(tmp_path, task) == best
    document = json.loads(path.read_text())
    assert max(document["bounds_ns"].values()) == task.bound_ns
    assert document["revision"] == "abc+"
    path.write_text(json.dumps(document | {"value_ns": best.value_ns - 1}))
    with pytest.raises(FormatError, match="its plan scores"):
        load_best(tmp_path, task)
    path.write_text(json.dumps({"plan": document["plan"]}))
    with pytest.raises(FormatError, match="lacks value_ns, command"):
        load_best(tmp_path, task)
    assert load_best(tmp_path, replace(task, name="none")) is None


def test_plans_of_before_revisions_were_kept_say_so(tmp_path, task):
    path = store_best(tmp_path, task, best_of(task))
    document = json.loads(path.read_text())
    path.write_text(json.dumps({key: document[key] for key in ("plan", "value_ns", "command")}))
    found = load_best(tmp_path, task)
    assert (found.revision, found.solver_bound) == ("unknown", None)
    assert found.bound_ns(task) == task.bound_ns


def test_a_bound_above_the_plan_is_refused_when_written_and_when_read(tmp_path, task):
    best = best_of(task)
    for bound_ns in (task.bound_ns - 1, best.value_ns):
        kept = replace(best, solver_bound=bound_of(task, bound_ns))
        path = store_best(tmp_path, task, kept)
        assert load_best(tmp_path, task) == kept
        assert kept.bound_ns(task) == max(task.bound_ns, bound_ns)
    assert json.loads(path.read_text())["gap"] == 0.0
    with pytest.raises(FormatError, match="the bound is wrong"):
        store_best(tmp_path, task, replace(best, solver_bound=bound_of(task, best.value_ns + 1)))
    document = json.loads(path.read_text())
    document["solver_bound"]["bound_ns"] = best.value_ns + 1
    path.write_text(json.dumps(document))
    with pytest.raises(FormatError, match="the bound is wrong"):
        load_best(tmp_path, task)


def test_a_bound_of_other_times_is_refused(tmp_path, task):
    bound = replace(bound_of(task, task.bound_ns), task="another")
    path = store_best(tmp_path, task, replace(best_of(task), solver_bound=bound))
    with pytest.raises(FormatError, match="is of task another"):
        load_best(tmp_path, task)
    document = json.loads(path.read_text())
    for damaged in ({"bound_ns": 1}, document["solver_bound"] | {"bound_ns": "5"}):
        path.write_text(json.dumps(document | {"solver_bound": damaged}))
        with pytest.raises(FormatError, match="solver_bound in"):
            load_best(tmp_path, task)


def test_the_solver_closes_the_gap_of_a_small_graph_and_says_how(tmp_path):
    task = task_of(9, 2, ccr=2.0)
    with pytest.raises(ConfigError, match="none of 'small'"):
        improve_bound(tmp_path, task, 5.0, "made by")
    store_best(tmp_path, task, best_of(task, heft.plan))
    before = load_best(tmp_path, task)
    assert before.value_ns > task.bound_ns
    assert improve_bound(tmp_path, task, 5.0, "made by") == tmp_path / "small.json"
    found = load_best(tmp_path, task)
    assert task.bound_ns < found.solver_bound.bound_ns <= found.value_ns
    assert found.value_ns <= before.value_ns
    proof = found.solver_bound
    assert (proof.command, proof.seconds, proof.task) == ("made by", 5.0, task.key)
    assert proof.revision == present_sources().revision
    # what is no better is not stored
    assert improve_bound(tmp_path, task, 5.0, "again") is None
    assert load_best(tmp_path, task) == found


def test_a_schedule_of_the_solver_that_is_better_is_stored_too(tmp_path):
    task = task_of(9, 2, ccr=2.0)
    worst = best_of(task)
    store_best(tmp_path, task, worst)
    improve_bound(tmp_path, task, 5.0, "made by")
    found = load_best(tmp_path, task)
    assert found.solver_bound.bound_ns <= found.value_ns < worst.value_ns
    assert found.command == "made by (CP-SAT, from the best plan before it)"
    assert found.revision == present_sources().revision


@pytest.mark.parametrize("path", sorted(BEST_KNOWN.glob("*.json")), ids=lambda path: path.stem)
def test_the_best_known_plans_score_what_they_say(path):
    """Fails where the engine, the times or the graphs have changed since a plan was stored."""
    document = json.loads(path.read_text())
    task = make_task(path.stem, document["machine"])
    best = load_best(path.parent, task)
    assert best.value_ns == document["value_ns"] >= best.bound_ns(task) >= task.bound_ns
    assert max(document["bounds_ns"].values()) == task.bound_ns
    assert document["gap"] == round(best.value_ns / best.bound_ns(task) - 1.0, 6)


def run(monkeypatch, task, folder, rows, on_row=lambda *_: None, **settings):
    monkeypatch.setattr(experiment_run, "_task", lambda *_: task)
    return experiment_run.run_experiment(
        experiment_run.ExperimentSettings(
            graphs=["small"], seconds=0.05, update_best=True, **settings
        ),
        folder / rows,
        folder,
        "made by",
        on_row,
    )


def test_a_better_plan_is_stored_and_a_worse_one_is_not(tmp_path, task, monkeypatch):
    columns = {"seeds": 1, "columns": ["single_device"]}
    assert len(run(monkeypatch, task, tmp_path, "a", **columns).stored) == 1
    worse = run(monkeypatch, task, tmp_path, "b", **columns)
    assert worse.stored == ()
    better = run(monkeypatch, task, tmp_path, "c", seeds=1, columns=["annealing"])
    assert len(better.stored) == 1
    assert better.best_ns["small"] < worse.best_ns["small"]
    best = load_best(tmp_path, task)
    assert "column annealing, seed 0" in best.command
    assert best.revision == present_sources().revision == better.rows[0].revision


def test_the_plans_of_a_table_that_was_killed_are_stored(tmp_path, task, monkeypatch):
    def killed(row, known):
        if row.column == "heft":
            raise KeyboardInterrupt

    columns = ["single_device", "heft", "round_robin"]
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, task, tmp_path, "a", killed, seeds=1, columns=columns)
    assert "column heft" in load_best(tmp_path, task).command


def test_gaps_are_to_the_better_bound_and_it_outlives_a_better_plan(tmp_path, task, monkeypatch):
    worst = best_of(task)
    bound = bound_of(task, task.bound_ns + 1)
    store_best(tmp_path, task, replace(worst, solver_bound=bound))
    found = run(monkeypatch, task, tmp_path, "a", seeds=1, columns=["heft"])
    assert found.best_ns["small"] < worst.value_ns
    assert load_best(tmp_path, task).solver_bound == bound
    assert found.tasks[0].bound_ns == bound.bound_ns
    assert found.cells[0].gap_to_bound == found.rows[0].value_ns / bound.bound_ns - 1.0


def test_an_experiment_of_bounds_has_no_runs(tmp_path, monkeypatch):
    task = task_of(9, 2, ccr=2.0)
    store_best(tmp_path, task, best_of(task, heft.plan))
    found = run(monkeypatch, task, tmp_path, "a", seeds=1, columns=[], bound_seconds=5.0)
    assert (found.rows, found.missing) == ((), ())
    assert found.stored == (tmp_path / "small.json",)
    words = "\n".join(experiment_run.result_lines(found))
    assert f"bound {load_best(tmp_path, task).solver_bound.bound_ns / 1e6:.3f} ms" in words
    with pytest.raises(ConfigError, match="bound_seconds"):
        experiment_run.ExperimentSettings(bound_seconds=-1.0)


def test_the_pages_have_the_best_known_values():
    names = ["chainmm", "ffnn", "llama_block", "llama_layer", "llama_block_8", "llama_layer_8"]
    known = {
        name: f"{json.loads((BEST_KNOWN / f'{name}.json').read_text())['value_ns'] / 1e6:.3f}"
        for name in names
    }
    table = (DOCS / "doppler_table.md").read_text("utf-8").splitlines()
    (row,) = (line for line in table if line.startswith("| best known"))
    assert [cell.split()[0] for cell in row.strip("| ").split(" | ")[1:]] == list(known.values())
    ablation = (DOCS / "ablation.md").read_text("utf-8")
    assert f"best known plan takes {known['llama_block']} ms" in ablation
