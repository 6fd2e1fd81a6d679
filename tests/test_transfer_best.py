import json
from pathlib import Path

import pytest

from doppler.experiment import Task
from doppler.experiment_best import load_best
from doppler.planners.bounds import lower_bounds
from doppler.policy_config import TransferConfig
from doppler.transfer import CASES, measure_transfer, problem_of

BEST_KNOWN = Path(__file__).parents[1] / "experiments" / "best_known" / "transfer"


@pytest.mark.parametrize("case", ["p100_to_v100", "a100_to_h100"])
def test_the_best_known_transfers_score_what_they_say(case):
    """Fails where the engine, the times or the graphs have changed since a plan was stored."""
    document = json.loads((BEST_KNOWN / f"{case}.json").read_text())
    problem, costs = problem_of(CASES[case].target_graph, CASES[case].target_cluster)
    bound = lower_bounds(problem, costs).best_ns
    machine = CASES[case].target_cluster
    task = Task(name=case, machine=machine, problem=problem, costs=costs, bound_ns=bound)
    best = load_best(BEST_KNOWN, task)
    assert best.value_ns == document["value_ns"] >= bound
    assert document["machine"] == machine
    assert document["command"].startswith("python benchmarks/transfer.py")


def test_what_a_run_meets_does_not_change_what_it_is_compared_with(tmp_path):
    case = "p100_to_v100"
    config = TransferConfig(
        cases=[case],
        seeds=1,
        source_episodes=64,
        few_shot=12,
        predictions=20,
        scratch=64,
        reference=40,
        output=str(tmp_path),
    )
    results, best = measure_transfer(config, ["test"], {case: 1000, "graph_to_graph": 2000})
    document = json.loads((tmp_path / "transfer.json").read_text())
    assert best == document["best_known_ns"] == {case: 1000}
    assert document["best_of_run_ns"] == {case: min(row.value_ns for row in results)}
    assert all("plan" not in row for row in document["rows"])
