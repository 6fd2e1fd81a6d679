"""What each part of the learned planner is worth: policies, stages, elites, PPO, messages, search.

Every column plans from nothing with the same budget of simulations, so that none profits from the
pretrained pair; it is the table of `doppler experiment ablation`, made in pieces: a call goes on
where the last one stopped. A figure is the mean over graphs of the mean over seeds of
column / `dual`.

    python benchmarks/ablation.py [--simulations 600] [--seeds 5] [--graphs chainmm,llama_block]
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from support.common import finish

from doppler.experiment import Row, simulations_budget
from doppler.experiment_run import load_settings, result_lines, row_line, run_experiment
from doppler.experiment_summary import cell_lines, ratio

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
BASES = {"small_per_step": "small", "joint_no_elites": "no_elites"}
"""What a column is compared with, if not with `dual`."""


def figures(rows: Sequence[Row], simulations: int) -> dict[str, float]:
    """Returns the ratio of each column to its base, where both have runs."""
    budget = simulations_budget(simulations)
    graphs = dict.fromkeys(row.graph for row in rows)
    found: dict[str, float] = {}
    for name in dict.fromkeys(row.column for row in rows):
        base = BASES.get(name, "dual")
        ratios = [ratio(rows, graph, (name, budget), (base, budget)) for graph in graphs]
        means = [item.mean for item in ratios if item is not None]
        if means and name != base:
            found[f"{name}_over_{base}"] = sum(means) / len(means)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--columns", default="dual,select_only,place_only,joint")
    parser.add_argument("--simulations", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--graphs", default="chainmm")
    parser.add_argument("--limit", type=float, default=480.0, help="start no run after so many s")
    parser.add_argument("--rows", type=Path, default=Path("results/ablation.jsonl"))
    arguments = parser.parse_args()
    words = [
        f"graphs=[{arguments.graphs}]",
        f"columns=[{arguments.columns}]",
        f"simulations={arguments.simulations}",
        f"seeds={arguments.seeds}",
    ]
    result = run_experiment(
        load_settings(EXPERIMENTS, "ablation", words),
        arguments.rows,
        EXPERIMENTS / "best_known",
        f"doppler experiment ablation {' '.join(words)}",
        lambda row, known: print(f"  {row_line(row, known)}", flush=True),
        arguments.limit,
    )
    print("\n".join((*cell_lines(result.cells), *result_lines(result))))
    finish("ablation", figures(result.rows, arguments.simulations), {}, seed=0)


if __name__ == "__main__":
    main()
