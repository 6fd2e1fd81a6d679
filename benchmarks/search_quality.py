"""What the searches reach on generated graphs with communication, and the portfolio against all.

Layered graphs, in-trees and fork-joins of 100 ops on 8 devices that differ per op (heterogeneity
0.5), a bus per ordered pair of devices, CCR 0.1, 1 and 10. Per row: mean percent above the best
plan of all columns, and in brackets that of the worst seed. Budgets are scored plans; the
portfolio's share is that of all its members. The reference of a row includes every column.

Usage: python benchmarks/search_quality.py [--seeds 1] [--seed 0] [--portfolio 90000]
       [--rows layered:10 in_tree:1] [--long]
"""

import argparse
import statistics
import time

import numpy as np
from support.common import finish

from doppler.core.runtime import INFEASIBLE_NS
from doppler.graphs.families import generate
from doppler.planners.base import Budget
from doppler.planners.registry import get_planner
from simulator.scorer import CompiledScorer

NUM_OPS, NUM_DEVICES = 100, 8
FAMILIES, RATIOS = ("layered", "in_tree", "fork_join"), (0.1, 1.0, 10.0)
COLUMNS = {
    "single_device": 8,
    "heft": 4,
    "peft": 4,
    "etf": 4,
    "dmdas": 4,
    "perturbed_heft": 1_000,
    "annealing_keys": 20_000,
    "annealing_placement": 100_000,
    "brkga": 20_000,
}
LONG = "annealing_placement x3"
PORTFOLIO = "portfolio"
TARGETS = {"worst_row_portfolio_percent": "<= 1"}


def values_of(
    family: str, ratio: float, seed: int, budgets: dict[str, int]
) -> tuple[dict[str, int], dict[str, float], str]:
    """Returns value per column in ns, CPU seconds per column, and who made the portfolio's plan."""
    instance = generate(
        family, NUM_OPS, NUM_DEVICES, ccr=ratio, heterogeneity=0.5, seed=seed, topology="wires"
    )
    values, seconds, maker = {}, {}, ""
    for name, calls in budgets.items():
        scorer = CompiledScorer(instance.problem, instance.costs)
        rng = np.random.default_rng(seed)
        start = time.process_time()
        plan = get_planner(name.split()[0])(instance.problem, scorer, Budget(calls), rng)
        seconds[name] = time.process_time() - start
        (values[name],) = scorer.score([plan.placement], [plan.priority]).tolist()
        assert values[name] < INFEASIBLE_NS
        maker = plan.source if name == PORTFOLIO else maker
    return values, seconds, maker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--portfolio", type=int, default=90_000)
    parser.add_argument("--rows", nargs="*", default=[])
    parser.add_argument("--long", action="store_true", help=f"a column {LONG!r} as well")
    arguments = parser.parse_args()
    budgets = dict(COLUMNS)
    if arguments.long:
        budgets[LONG] = 3 * COLUMNS["annealing_placement"]
    budgets[PORTFOLIO] = arguments.portfolio
    values_of("layered", 1.0, 0, dict.fromkeys(budgets, 200))  # compiles
    rows = [(f, r) for f in FAMILIES for r in RATIOS]
    if arguments.rows:
        rows = [(f, r) for f, r in rows if f"{f}:{r:g}" in arguments.rows]
    print("percent above the best:", ", ".join(f"{n} ({c:,})" for n, c in budgets.items()))
    means, spent = {}, dict.fromkeys(budgets, 0.0)
    for family, ratio in rows:
        gaps: dict[str, list[float]] = {name: [] for name in budgets}
        makers = []
        for seed in range(arguments.seed, arguments.seed + arguments.seeds):
            values, seconds, maker = values_of(family, ratio, seed, budgets)
            best = min(values.values())
            makers.append(maker.removeprefix("portfolio:"))
            for name in budgets:
                gaps[name].append(100.0 * (values[name] / best - 1.0))
                spent[name] += seconds[name]
        means[family, ratio] = {name: statistics.mean(gap) for name, gap in gaps.items()}
        cells = [f"{statistics.mean(gap):5.1f} ({max(gap):.0f})" for gap in gaps.values()]
        print(f"{family}, CCR {ratio:g}:", " ".join(cells), *makers, flush=True)
    runs = len(rows) * arguments.seeds
    print("CPU seconds a run:", ", ".join(f"{n} {s / runs:.2f}" for n, s in spent.items()))
    figures = {
        "worst_row_portfolio_percent": max(row[PORTFOLIO] for row in means.values()),
        "mean_portfolio_percent": statistics.mean(row[PORTFOLIO] for row in means.values()),
        "portfolio_cpu_s": spent[PORTFOLIO] / runs,
    }
    finish("search_quality", figures, TARGETS, seed=arguments.seed)


if __name__ == "__main__":
    main()
