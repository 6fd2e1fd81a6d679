"""The DOPPLER table: published graphs, planners at equal processor time and at equal simulations.

Times are the roofline of 4 P100 (8 V100 for the graphs with 8 shards) with true bytes on edges. The
columns are those of `doppler.columns`; `worst_policy_over_heuristics` judges `policy_drawn`, the
policies without any search, and `worst_sampled_policy_over_heuristics` `policy_only`. Every run is
a line of the resume file, so the table can be made in pieces: a call goes on where the last one
stopped. The figures cover what is in the table, and the script says what is missing. The best known
plans lie in `experiments/best_known`; `--update-best` stores better ones.

    python benchmarks/doppler_table.py [--graphs chainmm,ffnn] [--seconds 5] [--seeds 5]
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from support.common import finish

from doppler.experiment import Row, Task, calls_budget, seconds_budget
from doppler.experiment_run import load_settings, row_line, run_experiment
from doppler.experiment_summary import Cell, cell_lines, ratio
from doppler.graphs.published import counts_table

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
GRAPHS = "chainmm,ffnn,llama_block,llama_layer"
HEURISTICS = ("critical_path", "heft", "peft", "enumopt", "perturbed_heft")
LEARNED_BASELINES = ("placeto", "gdp", "placeto_stage1", "gdp_stage1")
POLICY_ONLY = {
    "worst_policy_over_heuristics": "policy_drawn",
    "worst_sampled_policy_over_heuristics": "policy_only",
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", default=GRAPHS)
    parser.add_argument("--columns", help="default: all of experiments/planner/table.yaml")
    parser.add_argument("--seconds", type=float, default=5.0, help="processor seconds per run")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=540.0, help="start no seed after so many s")
    parser.add_argument("--rows", type=Path, default=Path("results/doppler_table.jsonl"))
    parser.add_argument("--update-best", action="store_true")
    arguments = parser.parse_args()
    words = [
        f"graphs=[{arguments.graphs}]",
        f"seconds={arguments.seconds}",
        f"seeds={arguments.seeds}",
        f"update_best={str(arguments.update_best).lower()}",
    ]
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
    print("\n".join(cell_lines(result.cells)))
    for task in result.tasks:
        best = result.best_ns.get(task.name)
        value = "none stored" if best is None else f"{best / 1e6:.3f} ms"
        print(f"{task.name}: bound {task.bound_ns / 1e6:.3f} ms, best known {value}")
    for path in result.stored:
        print(f"new best plan: {path.name}")
    if result.missing:
        print(f"not all seeds of {', '.join(result.missing)}: run again to go on")
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
