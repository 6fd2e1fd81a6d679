import json
import re

import pytest

from doppler.cli import main
from doppler.policies.pretrained import FOLDER, load_pretrained
from doppler.policies.storage import load_policy

SMALL = ["epochs=2", "updates=1", "lessons=2", "validation=2", "validate_every=1"]


def test_a_training_in_two_pieces_leaves_policy_and_record(tmp_path, capsys):
    folder = tmp_path / "training"
    words = ["pretrain", f"output={folder}", *SMALL]
    assert main([*words, "seconds=0"]) == 0
    assert json.loads((folder / "policy" / "training.json").read_text())["epochs"] == 0
    assert main(words) == 2
    assert "holds a training already" in capsys.readouterr().err
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"record": "EpochRecord", "epoch": 1}\n')  # of an epoch that was not stored
    assert main([*words, "resume=true"]) == 0
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(line["record"], line["epoch"]) for line in lines] == [
        ("ValidationRecord", 0),
        ("EpochRecord", 1),
        ("ValidationRecord", 1),
        ("EpochRecord", 2),
        ("ValidationRecord", 2),
    ]
    record = json.loads((folder / "policy" / "training.json").read_text())
    assert record["epochs"] == 2
    assert record["command"].startswith("doppler pretrain")
    assert [row["epoch"] for row in record["validation"]] == [0, 1, 2]
    assert record["cpu_seconds"] > 0
    load_policy(folder / "policy")


def test_resume_without_a_training_is_refused(tmp_path, capsys):
    assert main(["pretrain", f"output={tmp_path / 'none'}", "resume=true", *SMALL]) == 2
    assert "resume goes on with a training" in capsys.readouterr().err


def test_a_training_goes_on_with_the_lessons_that_it_began_with(tmp_path, capsys):
    folder = tmp_path / "training"
    words = ["pretrain", f"output={folder}", *SMALL, "seconds=0"]
    assert main([*words, "leave_out=[llama]"]) == 0
    record = json.loads((folder / "policy" / "training.json").read_text())
    assert record["curriculum"]["leave_out"] == ["llama"]
    assert record["jobs"] == ["matmul_chain", "ffnn", "moe", "ppo"]
    assert main([*words, "resume=true"]) == 2
    assert "leave_out=['llama'] where this is []" in capsys.readouterr().err
    assert main([*words, "resume=true", "leave_out=[llama]"]) == 0


def test_the_pretrained_policy_comes_with_the_record_of_its_training():
    record = json.loads((FOLDER / "training.json").read_text())
    assert record["command"].startswith("doppler pretrain")
    assert record["epochs"] >= 1
    assert record["cpu_seconds"] > 0
    assert re.fullmatch(r"[0-9a-f]{12}", record["revision"])
    assert load_pretrained().config.kind.value == "improved"


def test_mode_is_a_setting_of_the_learned_planner(tmp_path, capsys):
    words = ["plan", "graph=g.json", "cluster=c.json", "planner=heft", "mode=greedy"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "first_plans, checkpoint and seconds are settings of planner=learned" in error


@pytest.mark.parametrize("case", ["p100_to_v100"])
def test_transfer_writes_table_and_chart(tmp_path, case):
    words = [f"cases=[{case}]", f"output={tmp_path}", "seeds=1", "source_episodes=64"]
    budgets = ["few_shot=20", "predictions=40", "scratch=64", "reference=80"]
    assert main(["transfer", *words, *budgets]) == 0
    document = json.loads((tmp_path / "transfer.json").read_text())
    values = {row["arm"]: row["value_ns"] for row in document["rows"]}
    assert set(values) == {
        "zero_shot",
        "few_shot",
        "few_shot_simulated",
        "few_shot_heft",
        "few_shot_tuned",
        "pretrained",
        "scratch",
        "heft",
        "perturbed_heft_few",
        "annealing_few",
        "annealing_many",
        "portfolio_long",
        "stale_plan",
    }
    assert min(values.values()) == document["best_known_ns"][case]
    assert document["bounds_ns"][case] <= document["best_known_ns"][case]
    for row in document["rows"]:
        steps = [point[1] for point in row["curve"]]
        assert steps == sorted(steps, reverse=True)
        assert steps[-1] == row["value_ns"]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    # the source's policies and those from scratch learn; the few episodes are less than a batch
    assert {(line["case"], line["arm"], line["seed"]) for line in lines} == {
        (case, arm, 0) for arm in ("source", "scratch")
    }
    assert (tmp_path / "transfer.png").read_bytes().startswith(b"\x89PNG")


def test_unknown_transfer_cases_are_refused(tmp_path, capsys):
    assert main(["transfer", "cases=[p100_to_v10]", f"output={tmp_path}"]) == 2
    assert "did you mean 'p100_to_v100'" in capsys.readouterr().err
