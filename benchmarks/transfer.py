"""Few episodes on a machine and a graph that the policies have not seen, against all the others.

4x P100 -> 8x V100 and 8x A100 -> 8x H100 (`doppler.transfer`): the checkpoint is the pretrained
pair (or that of --policy) after stage II on a matrix chain on the source, the target graph is a
LLaMA block, whose ops are bound by arithmetic or by memory, so that its best plan is another one
on another generation.

    worst_few_shot_over_best       worst seed of the worst case: at most 200 episodes / best known
    mean_few_shot_over_best        the worst case's mean over seeds
    worst_ARM_over_best            worst case's mean over seeds of the other arms
    CASE_best_of_run_over_best     below 1: the run met a plan that is better than the best known

    python benchmarks/transfer.py [--seeds 5] [--seed 0] [--policy FOLDER] [--cases p100_to_v100]
                                  [--quick] [--update-best] [--output FOLDER]

The best known plans lie in `experiments/best_known/transfer`, one per case, and are scored again
when they are read; what a run meets does not change what it is compared with. `--update-best`
searches on from the best plan of the run and the stored one, with ten times the reference's
simulations, and stores what is better.

`--policy`: a pair made by `doppler pretrain`, such as one that has seen no transformer block
(`leave_out=[llama]`). `--quick`: one seed and a short reference. The table, its data and the chart
are written to the output folder.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from support.common import finish

from doppler.api import make_scorer
from doppler.experiment import Task
from doppler.experiment_best import BestKnown, load_best, store_best
from doppler.planners import portfolio
from doppler.planners.base import Budget
from doppler.planners.bounds import lower_bounds
from doppler.policy_config import TransferConfig
from doppler.provenance import revision
from doppler.results import command_text
from doppler.training.learner import torch_threads
from doppler.transfer import CASES as TRANSFERS
from doppler.transfer import ArmResult, measure_transfer, problem_of

BEST_KNOWN = Path(__file__).parents[1] / "experiments" / "best_known" / "transfer"

TARGETS = {"worst_few_shot_over_best": "<= 1.02", "few_shot_episodes": "<= 200"}
CASES = ["p100_to_v100", "a100_to_h100"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="seeds per case")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--policy", help="folder of the pair to start from")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--quick", action="store_true", help="one seed, a short reference")
    parser.add_argument("--update-best", action="store_true", help="store better plans")
    parser.add_argument("--output", default="results/transfer", help="folder of chart and table")
    arguments = parser.parse_args()
    config = TransferConfig(
        cases=arguments.cases.split(","),
        policy=arguments.policy,
        seed=arguments.seed,
        seeds=1 if arguments.quick else arguments.seeds,
        output=arguments.output,
        reference=4000 if arguments.quick else 20000,
    )
    command = [sys.executable, *sys.argv]
    tasks = {case: target_task(case) for case in config.cases}
    stored = {case: load_best(BEST_KNOWN, task) for case, task in tasks.items()}
    known = {case: best.value_ns for case, best in stored.items() if best is not None}
    with torch_threads(1):
        results, best = measure_transfer(config, command, known)
        if arguments.update_best:
            for case, task in tasks.items():
                rows = [row for row in results if row.case == case]
                update_best(task, rows, stored[case], 10 * config.reference, command)
    figures = {}
    for arm in dict.fromkeys(row.arm for row in results):
        ratios = {
            case: [
                row.value_ns / best[case] for row in results if (row.case, row.arm) == (case, arm)
            ]
            for case in config.cases
        }
        means = {case: float(np.mean(values)) for case, values in ratios.items()}
        if arm == "few_shot":
            figures["worst_few_shot_over_best"] = max(max(values) for values in ratios.values())
            figures["mean_few_shot_over_best"] = max(means.values())
            for case, mean in means.items():
                figures[f"{case}_few_shot_over_best"] = mean
        else:
            figures[f"worst_{arm}_over_best"] = max(means.values())
    for case in config.cases:
        met = min(row.value_ns for row in results if row.case == case)
        figures[f"{case}_best_of_run_over_best"] = met / best[case]
    figures["few_shot_episodes"] = max(row.simulations for row in results if row.arm == "few_shot")
    figures["seeds"] = config.seeds
    finish("transfer", figures, TARGETS, seed=config.seed)


def target_task(case: str) -> Task:
    """Returns the target of a case, named by the case."""
    graph, cluster = TRANSFERS[case].target_graph, TRANSFERS[case].target_cluster
    problem, costs = problem_of(graph, cluster)
    bound = lower_bounds(problem, costs).best_ns
    return Task(name=case, machine=cluster, problem=problem, costs=costs, bound_ns=bound)


def update_best(
    task: Task, rows: Sequence[ArmResult], stored: BestKnown | None, calls: int, command: list[str]
) -> None:
    """Stores the best plan of a run and of a search from it, where it beats the stored one."""
    row = min(rows, key=lambda row: row.value_ns)
    seeds = (row.plan,) if stored is None else (row.plan, stored.plan)
    scorer = make_scorer(task.problem, task.costs)
    plan = portfolio.search(
        task.problem, scorer, Budget(calls), np.random.default_rng(row.seed), seeds=seeds
    )
    value = int(make_scorer(task.problem, task.costs).score_plans([plan])[0])
    if stored is not None and stored.value_ns <= value:
        print(f"{task.name}: the best known plan stays, {stored.value_ns} ns ({value} ns met)")
        return
    made_by = f"{command_text(command)} (searched on from {row.arm}, seed {row.seed})"
    best = BestKnown(plan=plan, value_ns=value, command=made_by, revision=revision())
    print(f"{task.name}: {value} ns is the best known plan, {store_best(BEST_KNOWN, task, best)}")


if __name__ == "__main__":
    main()
