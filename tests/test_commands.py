"""Commands on files: what they write, and what they refuse before they start."""

import dataclasses
import json

import pytest
from test_calibration import stored

from doppler import commands
from doppler.api import plan_problem
from doppler.calibration import save_calibration
from doppler.cli import INTERRUPTED, main
from doppler.compose import flat_keys
from doppler.config import Algorithm, StageTwoSettings, StageTwoValues
from doppler.core.cluster import Cluster, Device, Link
from doppler.core.graph import DataflowGraph, Op
from doppler.core.serialize import save
from doppler.graph_config import CompareConfig, PlanConfig, SimulateConfig
from doppler.plan_learned import with_stage_two
from doppler.planners.gdp import GdpConfig, GdpPlanner
from doppler.planners.learned import TUNED
from doppler.planners.placeto import PlacetoConfig, PlacetoPlanner
from doppler.policies.config import MessagePassing
from doppler.training.config import PAPER, PPOConfig, ReinforceConfig, Schedule, TrainingConfig
from doppler.training.reinforce import reinforce, reinforce_update


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder with a graph of two ops and a cluster of two cores; it is the current one."""
    monkeypatch.chdir(tmp_path)
    ops = tuple(Op(name=name, kind="mul", flop=10) for name in "ab")
    save(DataflowGraph(name="g", ops=ops, edges=()), "g.json")
    devices = tuple(
        Device(
            name=f"d{core}",
            kind="cpu",
            parent="cpu",
            share=0.5,
            cores=(core,),
            flop_per_s=10**9,
            memory_bytes_per_s=10**9,
        )
        for core in (0, 1)
    )
    links = (Link(src="d0", dst="d1"), Link(src="d1", dst="d0"))
    save(Cluster(name="c", devices=devices, links=links), "c.json")
    return tmp_path


GRAPH = ["graph=g.json", "cluster=c.json"]


@pytest.mark.parametrize("start", ["pretrained", "scratch"])
def test_stage_two_learns_by_the_algorithm_that_is_asked_for(files, monkeypatch, capsys, start):
    used = []

    def spied(learner, evaluate, config, *rest, **named):
        used.append(config)
        reinforce(learner, evaluate, config, *rest, **named)

    monkeypatch.setattr("doppler.planners.stage_two.reinforce", spied)
    words = ["plan", *GRAPH, "mode=tune", f"start={start}", "budget=64"]
    ppo = ["training.algorithm=ppo", "training.ppo_epochs=2", "training.ppo_clip=0.3"]
    assert main(words) == 0
    assert main([*words, *ppo]) == 0
    plain, clipped = used
    assert type(plain) is ReinforceConfig
    assert (type(clipped), clipped.epochs, clipped.clip) == (PPOConfig, 2, 0.3)
    assert clipped.batch == plain.batch
    assert clipped.learning_rate.start == plain.learning_rate.start / 2
    for refused in ("mode=greedy", "planner=heft"):
        others = [word for word in words if not word.startswith(("mode=", "start="))]
        assert main([*others, *ppo, refused]) == 2
    error = capsys.readouterr().err
    assert "training is about stage II, and mode=greedy has none" in error
    assert "checkpoint and seconds are settings of planner=learned, and planner is 'heft'" in error


def test_ppo_on_the_command_line_is_the_librarys():
    settings = StageTwoSettings(algorithm=Algorithm.ppo)
    expected = TrainingConfig(reinforce=PPOConfig())
    assert with_stage_two(TrainingConfig(), settings) == expected
    assert with_stage_two(TUNED, StageTwoSettings()) is TUNED
    assert TUNED.learn_share == 0.0  # and an algorithm that is asked for has its part
    assert with_stage_two(TUNED, settings).learn_share == expected.learn_share


def test_settings_of_stage_two_are_those_of_the_library():
    """Each names one field; what is not given is as `values` says."""
    settings = StageTwoSettings(
        batch=6,
        learning_rate=[2e-3, 1e-3],
        entropy=[0.02, 0.01],
        temperature=[0.9, 0.2],
        gamma=0.99,
        elites=7,
        restarts=3,
    )
    training = with_stage_two(TUNED, settings)
    assert training.restarts == 3
    assert training.learn_share > 0.0  # who asks for it gets a stage II
    assert training.reinforce == ReinforceConfig(
        batch=6,
        learning_rate=Schedule(2e-3, 1e-3),
        entropy_weight=Schedule(0.02, 0.01),
        temperature=Schedule(0.9, 0.2),
        gamma=0.99,
        num_elites=7,
    )
    none = with_stage_two(TUNED, StageTwoSettings(elites=0)).reinforce
    assert (none.elite_weight, none.elite_batch) == (0.0, 0)
    paper = StageTwoSettings(values=StageTwoValues.paper)
    assert with_stage_two(TUNED, paper).reinforce == PAPER
    batch = with_stage_two(TUNED, dataclasses.replace(paper, batch=8)).reinforce
    assert batch == dataclasses.replace(PAPER, batch=8)
    ppo = StageTwoSettings(algorithm=Algorithm.ppo, learning_rate=[2e-3, 1e-3])
    assert with_stage_two(TUNED, ppo).reinforce.learning_rate == Schedule(2e-3, 1e-3)
    assert with_stage_two(TUNED, StageTwoSettings(tensorboard=True)) is TUNED


def test_settings_of_stage_two_reach_its_updates(files):
    words = ["plan", *GRAPH, "mode=tune", "budget=64", "checkpoint=c"]
    given = ["training.values=paper", "training.batch=4", "training.learning_rate=[0.01,0.001]"]
    assert main([*words, *given]) == 0
    lines = [json.loads(line) for line in (files / "c" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == (64 - 17) // 4
    assert (lines[0]["learning_rate"], lines[-1]["learning_rate"]) == (0.01, 0.001)
    assert {line["temperature"] for line in lines} == {1.0}


def test_a_plan_goes_on_from_its_checkpoint(files, monkeypatch, capsys):
    words = ["plan", *GRAPH, "mode=tune", "budget=100", "checkpoint=c", "checkpoint_every=1"]
    assert main([*words[:-2], "checkpoint=whole", "output=whole.json"]) == 0
    updates = []

    def stopped(learner, evaluate, config, reference_ns):
        if len(updates) == 3:
            raise KeyboardInterrupt
        updates.append(learner.progress.update)
        return reinforce_update(learner, evaluate, config, reference_ns)

    with monkeypatch.context() as patch:
        patch.setattr("doppler.training.reinforce.reinforce_update", stopped)
        assert main([*words, "output=part.json"]) == INTERRUPTED
    metrics = files / "c" / "metrics.jsonl"
    assert len(metrics.read_text().splitlines()) == 3
    assert main([*words, "training.tensorboard=true", "output=part.json"]) == 0
    assert metrics.read_text() == (files / "whole" / "metrics.jsonl").read_text()
    assert (files / "part.json").read_text() == (files / "whole.json").read_text()
    assert (files / "c" / "tensorboard").is_dir()
    capsys.readouterr()
    assert main([*words, "training.gamma=0.9"]) == 2
    assert "training.reinforce.gamma=1.0 where this start has 0.9" in capsys.readouterr().err


def test_a_plan_is_made_and_simulated_under_a_measured_cost_table(files, capsys):
    save_calibration(files / "cost_table.json", stored())
    words = [*GRAPH, "costs=cost_table.json"]
    assert main(["plan", *words, "planner=heft", "output=p.json"]) == 0
    assert main(["simulate", *words, "plan=p.json", "output=t.json"]) == 0
    assert "0.001 ms" in capsys.readouterr().out  # 700 ns and 30 ns of dispatch
    assert (files / "t.json").exists()


def test_a_plan_for_the_slow_tail_and_its_robustness(files, capsys):
    """Two ops of 10 ns on two cores: 10 ns; both tables' entries are at most 20 % wrong."""
    tail = [*GRAPH, "objective=p95", "noise=0.1"]
    assert main(["plan", *tail, "planner=annealing", "budget=20", "output=p.json"]) == 0
    out = capsys.readouterr().out
    assert "p95 (ms)" in out
    assert "gap to bound without noise" in out
    assert main(["compare", *tail, "planners=[heft]", "budget=2"]) == 0
    assert "lower bound without noise: " in capsys.readouterr().out
    words = [*tail, "plan=p.json", "robustness=0.2"]
    assert main(["simulate", *words]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "with noise 0.1: mean 0.000 ms, standard deviation 0.000 ms, 95th percentile" in out
    assert "with 20% error in the cost table: mean 0.000 ms" in out
    assert "1.20 x at worst" in out
    assert main(["simulate", *words[:-1], "robustness=1.5"]) == 2
    assert "robustness is below 1 (0.2 = 20 %), and it is 1.5" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", *GRAPH, "output=absent/p.json"], "output is a file in a folder that exists"),
        (["compare", *GRAPH, "output=absent/p.json"], "output is a file in a folder that exists"),
        (["simulate", *GRAPH, "output=."], "output is a file, and '.' is a folder"),
        (["probe", "output=absent/h.json"], "output is a file in a folder that exists"),
        (["plan", *GRAPH, "planner=hefft"], "did you mean 'heft'"),
        (["compare", *GRAPH, "planners=[heft,hefft]"], "did you mean 'heft'"),
        (["compare", *GRAPH, "planners=[]"], "planners names at least one of"),
        (["learn", "planners=[]"], "planners names at least one of"),
        (["learn", "planners=[learned]"], "planners=[learned] names none beside 'learned'"),
        (["learn", "planners=[hefft]"], "did you mean 'heft'"),
        (["plan", *GRAPH, "planner=heft", "imitation=3"], "placeto and gdp, and planner is 'heft'"),
        (["plan", *GRAPH, "planner=gdp", "messages=once"], "planner=placeto, and planner is 'gdp'"),
        (["plan", *GRAPH, "planner=gdp", "imitation=-1"], "imitation is at least 0"),
        (["plan", *GRAPH, "objective=p95"], "needs the spread of op times: set noise=0.1"),
        (["plan", *GRAPH, "objective=perod"], "did you mean 'period'"),
        (["plan", *GRAPH, "noise=0.1"], "and the objective is left open"),
        (["plan", *GRAPH, "seed=-1"], "seed is at least 0, and it is -1"),
        (["plan", *GRAPH, "seconds=nan"], "seconds is finite and above 0, and it is nan"),
        (["plan", *GRAPH, "seconds=-1"], "seconds is finite and above 0, and it is -1"),
        (["simulate", *GRAPH, "robustness=nan"], "robustness is at least 0, and it is nan"),
        (["simulate", *GRAPH, "robustness=1.5"], "robustness is below 1 (0.2 = 20 %)"),
        (["probe", "output=/proc/nothing.json"], "a file cannot be read or written"),
        (["simulate", *GRAPH, "noise=0.1", "objective=makespan"], "and the objective is makespan"),
        (["plan", *GRAPH, "training.batch=1"], "batch is at least 2, and it is 1"),
        (["plan", *GRAPH, "training.restarts=0"], "restarts is at least 1, and it is 0"),
        (["plan", *GRAPH, "training.entropy=[0.1]"], "entropy is [start, end], both above 0"),
        (["plan", *GRAPH, "training.temperature=[0,1]"], "temperature is [start, end], both"),
        (["plan", *GRAPH, "training.gamma=1.5"], "gamma is above 0 and at most 1, and it is 1.5"),
        (["plan", *GRAPH, "mode=sample", "training.elites=3"], "mode=sample has none"),
        (["plan", *GRAPH, "training.tensorboard=true"], "set checkpoint=FOLDER"),
        (["plan", *GRAPH, "planner=heft", "checkpoint=c"], "are settings of planner=learned"),
        (["plan", *GRAPH, "checkpoint=c", "checkpoint_every=0"], "checkpoint_every is at least 1"),
        (["plan", *GRAPH, "policy=paper"], "policy=paper needs start=scratch"),
        (["plan", *GRAPH, "planner=heft", "start=scratch"], "are settings of planner=learned"),
        (["what-if", *GRAPH, "objective=p95", "noise=0.1"], "ranks by makespan or period"),
        (["plan", *GRAPH, "costs=g.json"], "type is 'costs' here"),
        (["report", "a", "b"], "takes one folder, and 'b' is a second one"),
        (["run", "a", "b", "seed=1"], "takes one plan, and 'b' is a second one"),
        (["plan", "iterations=3"], "setting 'iterations' is unknown"),
        (["learn", "run.iterations=3"], "setting 'run.iterations' is unknown"),
    ],
)
def test_mistakes_are_refused_in_one_sentence_before_anything_starts(
    files, monkeypatch, capsys, words, message
):
    def started(*_):
        raise AssertionError("it has started")

    monkeypatch.setattr(commands, "learn_job", started)
    monkeypatch.setattr(commands, "plan_problem", started)
    if "output=/proc/nothing.json" not in words:
        monkeypatch.setattr(commands, "probe_machine", started)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_an_objective_can_be_left_open_or_set_to_null(files, capsys):
    words = [*GRAPH, "planner=heft", "objective=null"]
    assert main(["plan", *words]) == 0
    assert "makespan (ms)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "planner"),
    [
        (
            ["planner=placeto", "messages=once", "imitation=3"],
            PlacetoPlanner(config=PlacetoConfig(messages=MessagePassing.once, imitation=3)),
        ),
        (["planner=gdp", "imitation=2"], GdpPlanner(config=GdpConfig(imitation=2))),
        (["planner=heft"], "heft"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_settings_reach_the_planner(files, monkeypatch, words, planner):
    seen = []

    def note(problem, costs, chosen, *rest, **named):
        seen.append(chosen)
        return plan_problem(problem, costs, "heft", 1, 0)

    monkeypatch.setattr(commands, "plan_problem", note)
    assert main(["plan", *GRAPH, *words]) == 0
    assert seen == [planner]


def test_commands_on_graphs_accept_only_what_they_read():
    scales = {"ns_per_unit", "bytes_per_unit"}
    machine = {"cluster", "layout"}
    common = {"graph", "costs", "fallback", "objective", "noise", "output", *scales, *machine}
    learned = {"mode", "start", "policy", "seconds", "messages", "imitation", "training"}
    learned |= {"checkpoint", "checkpoint_every", "first_plans"}
    learned |= {f"training.{item.name}" for item in dataclasses.fields(StageTwoSettings)}
    assert set(flat_keys(PlanConfig)) == common | learned | {"planner", "budget", "seed"}
    compared = {"planners", "budget", "seed", "seeds", "table", "bound_effort"}
    assert set(flat_keys(CompareConfig)) == common | compared
    assert set(flat_keys(SimulateConfig)) == common | {"plan", "iterations", "robustness", "seed"}
