"""DOPPLER's four graphs for real: every planner's plan on this machine's cores, measured.

CHAINMM, FFNN, LLAMA-BLOCK and LLAMA-LAYER at sizes that fit two cores, each a job like any other:
`doppler learn` calibrates it, plans at equal budget, learns (stages I, II and, on the running job,
III), measures every plan in turns and learned against the best baseline in ABBA blocks. An
iteration is one pass; the time of a plan is the makespan of a pass, as in the paper.

`learned_over_best_baseline` is the upper end of the ratio's 95 % interval, the worst of the graphs;
one device with all cores and a thread per core is among the baselines. Windows that choose never
judge: stage III's race chooses the learned plan; turns after it (`chosen on`), and a race of the
four fastest in them, the best baseline; and the ratio comes from blocks measured after all that
(`judged on`). So the luck that makes the fastest of many look faster than it is favours neither
side, and a slow baseline that looked fast once is not what the learned plan meets.
`stage3_iterations` are the passes that stage III ran for it, the race included. `spearman` is the
rank correlation of simulated and measured times, both relative to the learned plan's, over the
plans that can be told apart: in the order of measured time, one whose interval overlaps that of the
last one taken is left out. On two cores nearly all planners come within 1 % of the lower bound, so
random plans that load one core more than the other are measured, too, in turns of their own with
the learned and the single-device plan. Simulated times have stage III's term for operands that have
left the caches; `spearman_without_reuse` tells what the cost table alone is worth. `foreign_cores`
says how many cores other programs kept busy meanwhile: above about 0.1 the figures tell of them.
"""

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console
from scipy import stats
from support.common import finish

from doppler.api import score_plan, simulate
from doppler.compose import compose_config
from doppler.config import LearnConfig
from doppler.console import View
from doppler.core.plan import Plan, make_plan
from doppler.learn_run import LEARNED, WARMUP_ITERATIONS, LearnRun
from doppler.learning import learn
from doppler.measure import Interval, measured_period_ns, median_interval
from doppler.session import JobSession
from doppler.simple_plans import single_plan
from doppler.tensor_config import TENSOR_JOBS
from executor.host import cpu_times, foreign_cpu
from executor.options import ExecutorOptions

PLANNERS = (
    "single_device", "round_robin", "random_best", "critical_path", "heft", "perturbed_heft",
    "peft", "cpop", "etf", "m_etf", "earliest_start", "dmdas", "metis", "enumopt", "annealing",
    "portfolio", "placeto", "gdp",
)  # fmt: skip
"""All but `dp_only` (deep-RL jobs only), enumeration and proofs (graphs of tens of ops), parts of
the learned planner, and the searches whose best the portfolio is."""

RACE_SECONDS = 16.0
"""Twice the default, so that a race of these short passes has all the windows that it may have."""
FINALISTS = 4
"""Fastest baselines of the turns, which race for being the one that the learned plan meets."""
SKEWS = (0.6, 0.7, 0.8, 0.9)
"""Random plans: probability that an op is put on the first core."""
SKEWED_TURNS = 4
SKEWED_ITERATIONS = 4
MIN_PLANS = 3
"""Of fewer plans there is no rank correlation."""

TARGETS = {
    "learned_over_best_baseline": "<= 1.03 (upper bound, worst graph)",
    "spearman": "for information",
}


@dataclass(frozen=True)
class Point:
    """One plan: simulated and measured time of a pass in ns.

    Attributes:
        planner: Its name.
        simulated_ns: With the term for operands that have left the caches.
        table_ns: Without it.
        measured: Median over windows, with its interval.
    """

    planner: str
    simulated_ns: float
    table_ns: float
    measured: Interval


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", nargs="+", default=list(TENSOR_JOBS), choices=TENSOR_JOBS)
    parser.add_argument("--planners", nargs="+", default=list(PLANNERS))
    parser.add_argument("--budget", type=int, default=300, help="simulated plans per planner")
    parser.add_argument("--blocks", type=int, default=32, help="ABBA blocks at most")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    ratios: list[Interval] = []
    points: list[list[Point]] = []
    before = cpu_times()
    for graph in arguments.graphs:
        run = learn_graph(graph, arguments)
        assert run.comparison is not None
        ratios.append(run.comparison.ratio)
        rows = [
            point(run, c.name, c.result.plan, c.measured_ns)
            for c in run.candidates
            if c.measured_ns is not None
        ]
        show(graph, run, rows)
        points.append(rows)
        points.append(measure_skewed(run, arguments.seed))
        figures[f"learned_over_best_baseline_{graph}"] = ratios[-1].value
        if run.system is not None:
            figures[f"stage3_iterations_{graph}"] = run.system.iterations
    shown = [relative(rows) for rows in points]
    simulated, table, measured = (
        np.concatenate([np.empty(0), *(columns[side] for columns in shown)]) for side in range(3)
    )
    if len(simulated) >= MIN_PLANS:
        figures["spearman"] = float(stats.spearmanr(simulated, measured).statistic)
        figures["spearman_without_reuse"] = float(stats.spearmanr(table, measured).statistic)
    figures = {
        "learned_over_best_baseline": max(ratio.high for ratio in ratios),
        **figures,
        "spearman_plans": len(simulated),
        **pair_figures(points),
        "num_plans": sum(map(len, points)),
        "foreign_cores": foreign_cpu(before, cpu_times()),
    }
    finish("doppler_real", figures, TARGETS, seed=arguments.seed)


def learn_graph(graph: str, arguments: argparse.Namespace) -> LearnRun:
    """Returns what `doppler learn` found out about a graph."""
    with TemporaryDirectory() as folder:
        words = [
            f"job={graph}",
            f"seed={arguments.seed}",
            f"planners=[{','.join(arguments.planners)}]",
            f"training.sim_episodes={arguments.budget}",
            f"comparison.max_blocks={arguments.blocks}",
            "comparison.half_width=0.01",
            f"comparison.finalists={FINALISTS}",
            f"training.race_seconds={RACE_SECONDS}",
            f"results='{folder}'",
            f"cost_cache='{folder}/cost_tables'",
        ]
        config = compose_config(LearnConfig, words)
        view = View(Console(stderr=True))
        return learn(config, ["doppler", "learn", *words], lambda *_: Path(folder), view)


def measure_skewed(run: LearnRun, seed: int) -> list[Point]:
    """Measures random plans, the learned one and the single-device one in turns."""
    rng = np.random.default_rng(seed)
    problem, learned = run.problem, run.learned_plan
    assert learned is not None
    plans = {LEARNED: learned, "single_device": single_plan(problem)}
    for skew in SKEWS:
        placement = (rng.random(problem.graph.num_ops) > skew).astype(int) * (
            problem.cluster.num_devices - 1
        )
        plans[f"random {skew:.0%}"] = make_plan(
            problem, tuple(placement.tolist()), learned.priority, "random"
        )
    windows: dict[str, list[float]] = {name: [] for name in plans}
    with JobSession(run.job, problem, ExecutorOptions()) as session:
        session.run(learned, WARMUP_ITERATIONS)
        for turn in range(SKEWED_TURNS):
            for name in plans if turn % 2 == 0 else reversed(plans):
                trace = session.run(plans[name], SKEWED_ITERATIONS)
                windows[name].append(measured_period_ns(trace))
    rows = [
        point(run, name, plan, median_interval(windows[name], rng)) for name, plan in plans.items()
    ]
    print_rows(rows)
    return rows


def point(run: LearnRun, name: str, plan: Plan, measured: Interval) -> Point:
    """Returns what is known of a plan; of one for another layout without the term of stage III."""
    if plan.cluster_digest != run.problem.cluster.digest:
        value = next(float(c.result.value_ns) for c in run.candidates if c.name == name)
        return Point(name, value, value, measured)
    costs = run.calibration.table().costs(run.problem)
    table_ns = simulated_ns = float(score_plan(run.problem, costs, plan))
    if run.system is not None and run.system.reuse is not None:
        trace = simulate(run.problem, plan, costs)
        costs = run.system.reuse.costs(run.problem, costs, trace)
        simulated_ns = float(score_plan(run.problem, costs, plan))
    return Point(name, simulated_ns, table_ns, measured)


def distinct(rows: Sequence[Point]) -> list[Point]:
    """Plans whose measured intervals do not overlap, from the fastest on."""
    taken: list[Point] = []
    for row in sorted(rows, key=lambda point: point.measured.value):
        if not taken or row.measured.low > taken[-1].measured.high:
            taken.append(row)
    return taken


def relative(rows: Sequence[Point]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Simulated times, those by the table alone, and measured ones of plans that can be told apart.

    Each over the learned plan's.
    """
    learned = next(row for row in rows if row.planner == LEARNED)
    told_apart = distinct(rows) if len(distinct(rows)) > 1 else []
    simulated = np.array([row.simulated_ns for row in told_apart])
    table = np.array([row.table_ns for row in told_apart])
    measured = np.array([row.measured.value for row in told_apart])
    return (
        simulated / learned.simulated_ns,
        table / learned.table_ns,
        measured / learned.measured.value,
    )


def pair_figures(points: Sequence[Sequence[Point]]) -> dict[str, float]:
    """Share of pairs of one graph, told apart by measuring, that the simulator orders so, too."""
    right = total = 0
    errors = [abs(p.simulated_ns / p.measured.value - 1) for rows in points for p in rows]
    for rows in points:
        for a, b in itertools.combinations(rows, 2):
            if a.measured.low > b.measured.high or b.measured.low > a.measured.high:
                total += 1
                right += (a.simulated_ns > b.simulated_ns) == (a.measured.value > b.measured.value)
    return {
        "pair_accuracy": right / max(1, total),
        "num_pairs": total,
        "median_error": float(np.median(errors)),
    }


def show(graph: str, run: LearnRun, rows: Sequence[Point]) -> None:
    """Prints a graph's plans, fastest first."""
    assert run.comparison is not None
    judged = run.comparison.ratio
    measured = {row.planner: row.measured.value for row in rows}
    print(f"\n{graph}: {run.job.graph.num_ops} ops, {run.job.size}")
    print_rows(rows)
    print(
        f"  learned over {run.best_baseline}: chosen on turns "
        f"{measured[LEARNED] / measured[run.best_baseline]:.3f}, judged on "
        f"{run.comparison.blocks} blocks {judged.value:.3f} [{judged.low:.3f}, {judged.high:.3f}]"
    )
    if run.system is not None:
        names = "; ".join(plan.source for plan in run.system.ranking[:3])
        print(
            f"  stage III: {run.system.iterations} passes in {len(run.system.windows)} windows, "
            f"{run.system.race_windows} of them a race of {len(run.system.ranking)} plans; in "
            f"front: {names}"
        )
    print("  seconds:", {k: round(v, 1) for k, v in run.seconds.items()}, flush=True)


def print_rows(rows: Sequence[Point]) -> None:
    """Prints plans, fastest first."""
    for row in sorted(rows, key=lambda point: point.measured.value):
        seen = row.measured
        print(
            f"  {row.planner:20s} simulated {row.simulated_ns / 1e6:8.2f} ms   measured "
            f"{seen.value / 1e6:8.2f} ms [{seen.low / 1e6:.2f}, {seen.high / 1e6:.2f}]"
        )


if __name__ == "__main__":
    main()
