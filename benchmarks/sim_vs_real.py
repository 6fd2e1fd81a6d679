"""Simulated against measured periods of at least 20 plans that calibration has not seen.

Calibration runs the single-device and the DP-only plan; the test plans are others: heuristic,
searched, learned, and random ones within 2x of the best simulated plan. Every plan is measured in
several rounds, the order reversed every other round, so that drift hits all alike.
"""

import argparse
from pathlib import Path

import numpy as np
from common import finish
from scipy import stats

from doppler.api import plan_problem, score_plan
from doppler.calibration import calibrate, job_problem
from doppler.config import JOBS, CalibrationSettings
from doppler.core.costs import Costs
from doppler.core.layout import per_core_layout
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Problem
from doppler.jobs import build_job
from doppler.measure import Interval, measured_period_ns, median_interval
from doppler.planners.mask import make_mask
from doppler.session import JobSession
from executor.options import ExecutorOptions
from executor.probe import probe

TARGETS = {
    "median_error": "<= 0.10",
    "spearman": ">= 0.85",
    "pair_accuracy": ">= 0.9",
    "regret": "<= 1.05",
}
PLANNERS = (
    ("heft", 1), ("critical_path", 50), ("round_robin", 1), ("annealing", 500), ("learned", 1000),
)  # fmt: skip
NUM_RANDOM = 17
WITHIN = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", default="ppo_ant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=6, help="per window")
    parser.add_argument("--plot", type=Path, help="PNG of predicted against measured")
    arguments = parser.parse_args()
    hardware = probe().hardware
    settings = CalibrationSettings(iterations=20, env_counts=[1.0])
    calibration = calibrate(
        JOBS[arguments.job],
        hardware,
        settings,
        seed=arguments.seed,
        options=ExecutorOptions(),
        progress=lambda note: print("calibrate:", note, flush=True),
    )
    hardware = calibration.hardware(hardware)
    job = build_job(JOBS[arguments.job], arguments.seed)
    cpu = next(p for p in hardware.processors if p.kind == "cpu")
    problem = job_problem(job, hardware, per_core_layout(cpu))
    costs = calibration.table().costs(problem)
    plans = test_plans(problem, costs, arguments.seed)
    simulated = np.array([score_plan(problem, costs, plan) for _, plan in plans], dtype=float)
    windows: list[list[float]] = [[] for _ in plans]
    with JobSession(job, problem, ExecutorOptions()) as session:
        session.run(plans[0][1], 5)
        for turn in range(arguments.rounds):
            order = range(len(plans)) if turn % 2 == 0 else reversed(range(len(plans)))
            for index in order:
                trace = session.run(plans[index][1], arguments.iterations)
                windows[index].append(measured_period_ns(trace))
            print(f"round {turn + 1} of {arguments.rounds}", flush=True)
    rng = np.random.default_rng(arguments.seed)
    measured = [median_interval(row, rng) for row in windows]
    print(f"{'plan':20s} {'simulated ms':>12s} {'measured ms':>24s} {'error':>8s}")
    for (name, _), sim, seen in zip(plans, simulated, measured, strict=True):
        span = f"{seen.value / 1e6:.1f} [{seen.low / 1e6:.1f}, {seen.high / 1e6:.1f}]"
        print(f"{name:20s} {sim / 1e6:12.1f} {span:>24s} {sim / seen.value - 1:8.1%}")
    if arguments.plot is not None:
        draw(arguments.plot, [name for name, _ in plans], simulated, measured)
    finish("sim_vs_real", figures_of(simulated, measured), TARGETS)


def test_plans(problem: Problem, costs: Costs, seed: int) -> list[tuple[str, Plan]]:
    """Plans of planners, one single-device plan, and random plans within 2x of the best."""
    plans = [
        (name, plan_problem(problem, costs, name, budget, seed).plan) for name, budget in PLANNERS
    ]
    best = min(score_plan(problem, costs, plan) for _, plan in plans)
    base = plans[-1][1]
    last = problem.cluster.num_devices - 1
    alone = make_plan(problem, (last,) * problem.graph.num_ops, base.priority, "one_core")
    plans.append((f"all on core{last}", alone))
    mask = make_mask(problem)
    rng = np.random.default_rng(seed)
    while sum(name.startswith("random") for name, _ in plans) < NUM_RANDOM:
        placement = np.array(base.placement)
        for unit in np.flatnonzero(rng.random(mask.num_units) < rng.uniform(0.05, 0.8)):
            placement[list(mask.members[unit])] = rng.integers(problem.cluster.num_devices)
        priority = rng.permutation(problem.graph.num_ops)
        plan = make_plan(problem, tuple(placement), tuple(priority), "random")
        if score_plan(problem, costs, plan) <= WITHIN * best:
            plans.append((f"random {len(plans)}", plan))
    return plans


def figures_of(simulated: np.ndarray, measured: list[Interval]) -> dict[str, float]:
    """Error, rank correlation, accuracy on separable pairs, and regret of the favourite."""
    values = np.array([seen.value for seen in measured])
    errors = np.abs(simulated / values - 1)
    right = total = 0
    for i in range(len(values)):
        for j in range(i):
            apart = measured[i].low > measured[j].high or measured[j].low > measured[i].high
            if apart:
                total += 1
                right += (simulated[i] > simulated[j]) == (values[i] > values[j])
    return {
        "median_error": float(np.median(errors)),
        "p90_error": float(np.percentile(errors, 90)),
        "spearman": float(stats.spearmanr(simulated, values).statistic),
        "pair_accuracy": right / max(1, total),
        "num_pairs": total,
        "regret": float(values[int(np.argmin(simulated))] / values.min()),
        "num_plans": len(values),
    }


def draw(path: Path, names: list[str], simulated: np.ndarray, measured: list[Interval]) -> None:
    """Draws predicted against measured periods with their intervals."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    values = np.array([seen.value for seen in measured]) / 1e6
    low = values - np.array([seen.low for seen in measured]) / 1e6
    high = np.array([seen.high for seen in measured]) / 1e6 - values
    figure, axes = pyplot.subplots(figsize=(6, 6), layout="constrained")
    kinds = {"random": [n.startswith("random") for n in names]}
    kinds["planner"] = [not flag for flag in kinds["random"]]
    for label, flags in kinds.items():
        rows = np.flatnonzero(flags)
        axes.errorbar(
            values[rows], simulated[rows] / 1e6, xerr=(low[rows], high[rows]), fmt="o", label=label
        )
    ends = [
        0.95 * min(values.min(), simulated.min() / 1e6),
        1.05 * max(values.max(), simulated.max() / 1e6),
    ]
    axes.plot(ends, ends, color="gray", linestyle="--", label="equal")
    axes.set_xlabel("measured period (ms), 95 % interval")
    axes.set_ylabel("simulated period (ms)")
    axes.set_title("Simulated against measured period, one point per plan")
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
