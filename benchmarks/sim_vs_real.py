"""Simulated against measured periods of 22 plans that calibration has not seen.

The test plans are heuristic, searched, learned and random ones within 2x of the best simulated
plan. Every plan is measured once per round, in random order, and each order also backwards. The
machine's speed drifts by tens of per cent within minutes, so the two calibration plans (one device,
and DP-only) run in every round too: the simulator that is judged knows nothing but their spans.
Figures that end in `_before` are those of the table measured before the first round, by which the
test plans were chosen.
"""

import argparse
import dataclasses
import itertools
import statistics
from pathlib import Path

import numpy as np
from scipy import stats
from support.common import finish

from doppler.api import plan_problem, score_plan
from doppler.calibration import Calibration, DispatchCost, calibrate
from doppler.config import JOBS, CalibrationSettings
from doppler.core.costs import Costs
from doppler.core.hardware import Hardware
from doppler.core.layout import per_core_layout
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Problem
from doppler.core.trace import Trace
from doppler.jobs import RealJob, build_job
from doppler.measure import Interval, measured_period_ns, median_interval
from doppler.planners.mask import Mask, make_mask
from doppler.session import JobSession
from doppler.simple_plans import job_problem, single_plan, spread_plan
from executor.options import ExecutorOptions
from executor.probe import probe
from simulator.calibrate import Observation, fit_dispatch_ns, fit_latency_ns, observe
from simulator.costs.measured import fit_entries
from simulator.scorer import CompiledScorer

TARGETS = {
    "median_error": "<= 0.10",
    "spearman": ">= 0.85",
    "pair_accuracy": ">= 0.9",
    "regret": "<= 1.05",
}
PLANNERS = (
    ("heft", 1), ("critical_path", 50), ("round_robin", 1), ("annealing", 500), ("learned", 1000),
)  # fmt: skip
NUM_PLANS = 22
WITHIN = 2.0
MAX_DRAWS = 20_000
WARMUP_ITERATIONS = 5

NamedPlan = tuple[str, Plan]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", default="ppo_ant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=4, help="per window")
    parser.add_argument("--plot", type=Path, help="PNG of predicted against measured")
    arguments = parser.parse_args()
    bare = probe().hardware
    earlier = calibrate(
        JOBS[arguments.job],
        bare,
        CalibrationSettings(iterations=20, env_counts=[1.0]),
        seed=arguments.seed,
        options=ExecutorOptions(),
        progress=lambda note: print("calibrate:", note, flush=True),
    )
    job = build_job(JOBS[arguments.job], arguments.seed)
    problem = problem_with(job, bare, earlier)
    calibration_plans = [single_plan(problem), spread_plan(problem)]
    plans = choose_plans(problem, earlier.table().costs(problem), calibration_plans, arguments.seed)
    check_plans(plans, calibration_plans)
    windows: list[list[float]] = [[] for _ in plans]
    session_bench = SessionCalibration(problem)
    rng = np.random.default_rng(arguments.seed)
    order = np.arange(len(plans) + len(calibration_plans))
    with JobSession(job, problem, ExecutorOptions()) as session:
        session.run(plans[0][1], WARMUP_ITERATIONS)
        for turn in range(arguments.rounds):
            # Every order is run forwards, then backwards: drift during two rounds hits all alike.
            order = rng.permutation(len(order)) if turn % 2 == 0 else order[::-1]
            for index in order.tolist():
                if index < len(plans):
                    trace = session.run(plans[index][1], arguments.iterations)
                    windows[index].append(measured_period_ns(trace))
                else:
                    plan = calibration_plans[index - len(plans)]
                    session_bench.add(session.run(plan, arguments.iterations))
            print(f"round {turn + 1} of {arguments.rounds}", flush=True)
    measured = [median_interval(row, rng) for row in windows]
    before = simulate(problem, earlier, plans)
    present = session_bench.calibration(earlier)
    simulated = simulate(problem_with(job, bare, present), present, plans)
    show(plans, simulated, before, measured)
    if arguments.plot is not None:
        draw(arguments.plot, [name for name, _ in plans], simulated, measured)
    figures = figures_of(simulated, measured)
    shared = ("num_pairs", "num_plans")
    figures.update(
        {
            f"{name}_before": value
            for name, value in figures_of(before, measured).items()
            if name not in shared
        }
    )
    finish("sim_vs_real", figures, TARGETS, seed=arguments.seed)


def problem_with(job: RealJob, bare: Hardware, calibration: Calibration) -> Problem:
    """Returns the job on one device per core, with the latency that was measured."""
    hardware = calibration.hardware(bare)
    cpu = next(p for p in hardware.processors if p.kind == "cpu")
    return job_problem(job, hardware, per_core_layout(cpu))


class SessionCalibration:
    """What the windows of the calibration plans say, measured among those of the test plans."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._observations: list[Observation] = []
        self._dispatch: list[int] = []
        self._latency: list[int] = []

    def add(self, trace: Trace) -> None:
        """Takes in one window; its first iteration, which fills the pipeline, is left out."""
        self._observations += observe(self._problem, trace, 1)
        if len({span.device for span in trace.op_spans}) == 1:
            self._dispatch.append(fit_dispatch_ns(trace, 1))
        latency = fit_latency_ns(self._problem, trace, 1)
        if latency is not None:
            self._latency.append(latency)

    def calibration(self, earlier: Calibration) -> Calibration:
        """Returns an earlier calibration with all that was measured on one core replaced."""
        device = self._problem.cluster.devices[0]
        cost = DispatchCost(
            device_kind=device.kind,
            cores=len(device.cores),
            time_ns=round(statistics.median(self._dispatch)),
        )
        return dataclasses.replace(
            earlier,
            entries=fit_entries(self._observations),
            dispatch=(cost,),
            publish_ns=(
                round(statistics.median(self._latency)) if self._latency else earlier.publish_ns
            ),
        )


def simulate(problem: Problem, calibration: Calibration, plans: list[NamedPlan]) -> np.ndarray:
    """Returns the simulated period of every plan under a calibration, in ns."""
    costs = calibration.table().costs(problem)
    digest = problem.cluster.digest
    return np.array(
        [
            score_plan(problem, costs, dataclasses.replace(plan, cluster_digest=digest))
            for _, plan in plans
        ],
        dtype=float,
    )


def choose_plans(
    problem: Problem, costs: Costs, calibration_plans: list[Plan], seed: int
) -> list[NamedPlan]:
    """Plans of planners, all ops on the last core, then random ones up to `NUM_PLANS`.

    Left out are placements that calibration runs, repetitions, a second single-device plan, and
    what the simulator puts beyond 2x of the best.
    """
    found = [
        (name, plan_problem(problem, costs, name, budget, seed).plan) for name, budget in PLANNERS
    ]
    base = found[-1][1]
    last = problem.cluster.num_devices - 1
    alone = make_plan(problem, (last,) * problem.graph.num_ops, base.priority, "one_core")
    found.append((f"all on core{last}", alone))
    rng = np.random.default_rng(seed)
    scorer = CompiledScorer(problem, costs)
    taken = {plan.placement for plan in calibration_plans}
    mask = make_mask(problem)
    plans: list[NamedPlan] = []
    values: list[int] = []
    for draw_index in range(MAX_DRAWS):
        if draw_index < len(found):
            name, plan = found[draw_index]
        else:
            name, plan = f"random {draw_index}", random_plan(problem, mask, base, rng)
        repeated = any(identity(plan) == identity(other) for _, other in plans)
        second_single = is_single(plan) and any(is_single(other) for _, other in plans)
        if plan.placement in taken or repeated or second_single:
            continue
        plans.append((name, plan))
        values.append(int(scorer.score_plans([plan])[0]))
        near = [value <= WITHIN * min(values) for value in values]
        plans = list(itertools.compress(plans, near))
        values = list(itertools.compress(values, near))
        if len(plans) == NUM_PLANS:
            kept = {name for name, _ in plans}
            print("left out:", ", ".join(n for n, _ in found if n not in kept) or "none")
            return plans
    raise RuntimeError(f"{MAX_DRAWS} draws gave {len(plans)} of {NUM_PLANS} different plans")


def random_plan(problem: Problem, mask: Mask, base: Plan, rng: np.random.Generator) -> Plan:
    """Returns a plan with 5 to 80 % of the colocation units moved at random, in random order."""
    placement = np.array(base.placement)
    for unit in np.flatnonzero(rng.random(mask.num_units) < rng.uniform(0.05, 0.8)):
        placement[list(mask.members[unit])] = rng.integers(problem.cluster.num_devices)
    priority = rng.permutation(problem.graph.num_ops)
    return make_plan(problem, tuple(placement.tolist()), tuple(priority.tolist()), "random")


def check_plans(plans: list[NamedPlan], calibration_plans: list[Plan]) -> None:
    """Stops where a test plan was seen by calibration, or stands twice."""
    seen = {plan.placement for plan in calibration_plans}
    assert all(plan.placement not in seen for _, plan in plans), "calibration knows a test plan"
    assert len({identity(plan) for _, plan in plans}) == len(plans) == NUM_PLANS, "plans repeat"
    assert sum(is_single(plan) for _, plan in plans) <= 1, "two test plans use one device only"


def identity(plan: Plan) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What makes two plans the same: placement and order."""
    return tuple(plan.placement), plan.ranks()


def is_single(plan: Plan) -> bool:
    """True if one device runs all ops."""
    return len(set(plan.placement)) == 1


def show(
    plans: list[NamedPlan], simulated: np.ndarray, before: np.ndarray, measured: list[Interval]
) -> None:
    """Prints one line per plan."""
    print(
        f"{'plan':20s} {'before ms':>10s} {'simulated ms':>12s} {'measured ms':>24s} {'error':>8s}"
    )
    for (name, _), old, sim, seen in zip(plans, before, simulated, measured, strict=True):
        span = f"{seen.value / 1e6:.1f} [{seen.low / 1e6:.1f}, {seen.high / 1e6:.1f}]"
        error = sim / seen.value - 1
        print(f"{name:20s} {old / 1e6:10.1f} {sim / 1e6:12.1f} {span:>24s} {error:8.1%}")


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
