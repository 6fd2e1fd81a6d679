"""The DOPPLER table: published graphs, planners at equal processor time and at equal simulations.

Times are the roofline of 4 P100 (8 V100 for the graphs with 8 shards) with true bytes on edges. The
columns are those of `doppler.columns`; `worst_policy_over_heuristics` judges `policy_drawn`, the
policies without any search, `worst_sampled_policy_over_heuristics` `policy_only`, and
`worst_no_network_over_heuristics` the drawing with nothing learned in it (`drawn_no_network`).

The whole table takes hours: six graphs, five seeds, five processor seconds for whatever uses them.
Every run is a line of the resume file, so the table is made in pieces of `--limit` seconds: the
same command goes on where the last one stopped, seed by seed over all graphs. The figures cover
what is in the table, and the script says what is missing. The best known plans and the bounds that
CP-SAT proved lie in `experiments/best_known`; `--update-best` stores better plans, and
`doppler experiment bounds` better bounds.

    python benchmarks/doppler_table.py [--graphs chainmm,ffnn] [--seconds 5] [--seeds 5]
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from support.common import finish

from doppler.columns import measure
from doppler.core.runtime import INFEASIBLE_NS
from doppler.experiment import Row, Task, calls_budget, seconds_budget
from doppler.experiment_run import load_settings, result_lines, row_line, run_experiment
from doppler.experiment_summary import Cell, cell_lines, ratio
from doppler.graphs.published import counts_table
from doppler.planners.critical_path import NUM_RUNS, CriticalPathPlanner

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
HEURISTICS = (
    "single_device",
    "round_robin",
    "random_best",
    "critical_path",
    "heft",
    "peft",
    "cpop",
    "earliest_start",
    "dmdas",
    "etf",
    "m_etf",
    "enumopt",
    "metis",
    "perturbed_heft",
)
LEARNED_BASELINES = ("placeto", "gdp", "placeto_stage1", "gdp_stage1")
POLICY_ONLY = {
    "worst_policy_over_heuristics": "policy_drawn",
    "worst_sampled_policy_over_heuristics": "policy_only",
    "worst_no_network_over_heuristics": "drawn_no_network",
}
PUBLISHED_REDUCTIONS = {"critical_path": 78.2, "gdp": 52.7, "placeto": 62.5, "enumopt": 13.8}
TARGETS = {
    "worst_over_portfolio_equal_time": "<= 1.00",
    "worst_over_portfolio_equal_time_upper": "<= 1.00",
    "worst_over_portfolio_equal_simulations": "<= 1.00",
    "worst_over_portfolio_equal_simulations_upper": "<= 1.00",
    "worst_over_heft_polish": "<= 1.00",
    "mean_gap_to_best": "<= 0.01",
    "worst_policy_over_heuristics": "<= 1.0",
}


def show(row: Row, known: bool) -> None:
    """One line per run."""
    print(f"  {row_line(row, known)}", flush=True)


def table_figures(
    rows: Sequence[Row], cells: Sequence[Cell], tasks: Sequence[Task], seconds: float
) -> dict[str, float]:
    """The figures that the rows allow."""
    timed, equal = seconds_budget(seconds), calls_budget(seconds)
    figures: dict[str, float] = {}
    for label, other in (
        ("worst_over_portfolio_equal_time", ("portfolio", timed)),
        ("worst_over_portfolio_equal_simulations", ("portfolio", equal)),
        ("worst_over_rules_polish", ("rules_polish", timed)),
        ("worst_over_heft_polish", ("heft_polish", timed)),
    ):
        found = [ratio(rows, task.name, ("policy_polish", timed), other) for task in tasks]
        ratios = [item for item in found if item is not None]
        if ratios:
            figures[label] = max(item.mean for item in ratios)
            figures[f"{label}_upper"] = max(item.upper for item in ratios)
    means = {(cell.graph, cell.column): cell for cell in cells if cell.budget == timed}
    gaps = [
        cell.gap_to_best
        for (_, name), cell in means.items()
        if name == "policy_polish" and cell.gap_to_best is not None
    ]
    if gaps:
        figures["mean_gap_to_best"] = sum(gaps) / len(gaps)
    baselines = (*HEURISTICS, *LEARNED_BASELINES)
    for label, policy in POLICY_ONLY.items():
        over = []
        for task in tasks:
            others = [means[task.name, n].mean_ns for n in baselines if (task.name, n) in means]
            if others and (task.name, policy) in means:
                over.append(means[task.name, policy].mean_ns / min(others))
        if over:
            figures[label] = max(over)
    for name in PUBLISHED_REDUCTIONS:
        cuts = [
            1.0 - means[task.name, "policy_polish"].mean_ns / means[task.name, name].mean_ns
            for task in tasks
            if {(task.name, "policy_polish"), (task.name, name)} <= set(means)
        ]
        if cuts:
            figures[f"reduction_max_vs_{name}"] = 100.0 * max(cuts)
    figures["graphs"] = len(tasks)
    figures["seeds_least"] = min((cell.seeds for cell in cells), default=0)
    return figures


def critical_path_lines(tasks: Sequence[Task], seeds: int) -> list[str]:
    """Mean and best of the runs of CRITICAL PATH, over the seeds; its column has the best ones."""
    lines = []
    for task in tasks:
        planner, values = CriticalPathPlanner(), []
        for seed in range(seeds):
            measure(planner, task.problem, task.costs, NUM_RUNS, seed)
            values.append(planner.values_ns)
        fits = np.ma.masked_equal(np.asarray(values), INFEASIBLE_NS)
        lines.append(
            f"{task.name}: critical_path, {NUM_RUNS} runs a seed, {seeds} seeds: mean of all "
            f"{fits.mean() / 1e6:.3f} ms, mean of the best {fits.min(axis=1).mean() / 1e6:.3f} ms"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", help="default: all of experiments/job/published.yaml")
    parser.add_argument("--columns", help="default: all of experiments/planner/table.yaml")
    parser.add_argument("--seconds", type=float, default=5.0, help="processor seconds per run")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=480.0, help="start no run after so many s")
    parser.add_argument("--rows", type=Path, default=Path("results/doppler_table.jsonl"))
    parser.add_argument("--update-best", action="store_true")
    arguments = parser.parse_args()
    words = [
        f"seconds={arguments.seconds}",
        f"seeds={arguments.seeds}",
        f"update_best={str(arguments.update_best).lower()}",
    ]
    if arguments.graphs:
        words.append(f"graphs=[{arguments.graphs}]")
    if arguments.columns:
        words.append(f"columns=[{arguments.columns}]")
    print(counts_table())
    result = run_experiment(
        load_settings(EXPERIMENTS, "doppler_table", words),
        arguments.rows,
        EXPERIMENTS / "best_known",
        f"doppler experiment doppler_table {' '.join(words)}",
        show,
        arguments.limit,
    )
    print("\n".join((*cell_lines(result.cells), *result_lines(result))))
    print("\n".join(critical_path_lines(result.tasks, arguments.seeds)))
    figures = table_figures(result.rows, result.cells, result.tasks, arguments.seconds)
    for name, published in PUBLISHED_REDUCTIONS.items():
        if f"reduction_max_vs_{name}" in figures:
            ours = figures[f"reduction_max_vs_{name}"]
            print(f"reduction against {name}: at most {ours:.1f} %, published {published} %")
    print(
        "The published reductions are measured on a real engine with five streams a GPU and a "
        "random ready queue; here every plan runs in priority order under one deterministic rule, "
        "and the baselines are strong versions, so less is left to gain."
    )
    finish("doppler_table", figures, TARGETS, seed=0)


if __name__ == "__main__":
    main()
