"""The shipped instances hold, and a damaged copy is refused by the rule that it breaks."""

import json
from dataclasses import replace

import pytest

from doppler.cli import main
from doppler.console import View
from doppler.core.plan import make_plan
from doppler.instances.definitions import DEFINITIONS
from doppler.instances.make import make_instance
from doppler.instances.suite import (
    content_digest,
    find_instances,
    load_instance,
    save_instance,
    shipped_folder,
)
from doppler.verify import verify_file

NAMES = [path.stem for path in find_instances([], shipped_folder())]


def test_the_suite_is_complete():
    assert set(NAMES) == set(DEFINITIONS)
    assert len(NAMES) >= 12


@pytest.mark.parametrize("name", NAMES)
def test_every_instance_holds_and_says_what_made_it(name):
    path = shipped_folder() / f"{name}.json"
    verdict = verify_file(path)
    assert verdict.broken == ""
    assert verdict.instance.name == name
    assert verdict.instance.command.startswith(f"python -m doppler.instances.make {name} ")


@pytest.mark.parametrize("name", NAMES)
def test_the_problems_are_still_those_of_the_definitions(name):
    """Else the files tell of problems that nobody can make any more."""
    stored, made = load_instance(shipped_folder() / f"{name}.json"), DEFINITIONS[name]()
    assert stored.problem.graph.digest == made.problem.graph.digest
    assert stored.problem.cluster.digest == made.problem.cluster.digest


@pytest.fixture
def copy(tmp_path):
    """Writes a changed copy of an instance; the digest is made anew unless it is given."""

    def write(name="hold", digest=None, **changes):
        document = json.loads((shipped_folder() / f"{name}.json").read_text())
        document |= changes
        document["digest"] = content_digest(document) if digest is None else digest
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(document))
        return path

    return write


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value_ns": 11}, "value_ns is the plan's makespan (12), and the file has 11"),
        ({"bound_ns": 13}, "bound_ns is the critical_path bound (12), and the file has 13"),
        ({"bound_ns": 13, "bound": "cp_sat"}, "no plan is below a bound"),
        ({"bound_ns": 9, "bound": "cp_sat"}, "a quick one is 12"),
        ({"bound_ns": 9, "digest": "0" * 32}, "digest is that of the content"),
        ({"schema_version": 2}, "an instance of schema_version 1 is read"),
        ({"type": "plan"}, "an instance of schema_version 1 is read"),
        ({"value": 3}, "unknown key 'value'; did you mean 'value_ns'"),
        ({"value_ns": "12"}, "value_ns is an integer"),
        ({"pins": {"P": "d0"}}, "and its kinds and pins allow d0"),
        ({"pins": []}, "pins is an object"),
    ],
)
def test_a_damaged_copy_is_refused_by_name(changes, message, copy):
    verdict = verify_file(copy(**changes))
    assert message in verdict.broken


def test_another_plan_has_another_value(tmp_path):
    """Without its hold the plan takes 21, as worked out by hand; the claim of 12 is refused."""
    instance = load_instance(shipped_folder() / "hold.json")
    plan = make_plan(instance.problem, instance.plan.placement, instance.plan.priority, "x")
    save_instance(replace(instance, plan=plan), tmp_path / "hold.json")
    assert "(21), and the file has 12" in verify_file(tmp_path / "hold.json").broken


def test_an_instance_comes_back_as_it_was_written(tmp_path):
    instance = load_instance(shipped_folder() / "mosaic_workflow.json")
    save_instance(instance, tmp_path / "i.json")
    assert load_instance(tmp_path / "i.json") == instance


def test_the_command_shows_a_table_and_the_status_tells(copy, tmp_path, capsys):
    assert main(["verify", "hold", "join_transfer_10"]) == 0
    out = capsys.readouterr().out
    assert "2 of 2 instances hold" in out
    assert "join_transfer_10" in out
    copy(value_ns=11)
    copy("join_transfer_10")
    assert main(["verify", f"folder={tmp_path}"]) == 1
    out = capsys.readouterr().out
    assert "hold: value_ns is the plan's makespan (12), and the file has 11" in out
    assert "1 of 2 instances hold" in out


def test_unknown_names_and_empty_folders_are_refused(tmp_path, capsys):
    assert main(["verify", "holt"]) == 2
    assert "did you mean 'hold'" in capsys.readouterr().err
    assert main(["verify", f"folder={tmp_path}"]) == 2
    assert "holds no instance" in capsys.readouterr().err


def test_an_instance_is_made_with_its_best_plan_and_bound():
    pytest.importorskip("ortools")
    made = make_instance("hold", 10, 0, 1.0, "command", View())
    assert (made.value_ns, made.bound_ns, made.bound) == (12, 12, "critical_path")
