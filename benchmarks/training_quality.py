"""Does a faster plan cost reward? Reward against samples and against wall-clock, three seeds.

Three plans of one job on one core each: everything on one device, GMI-DRL's DP-only, the learned
plan. They live at the same time and run windows in turns, so that a change of the machine's speed
meets all alike; a plan's clock counts its own windows from the second on (not start-up, not the
first use of every kernel, not planning, which is printed). Returns are those that the job itself
reports, averaged over the last iterations.

The learned plan is verified on the job before training, as by stage III: the faster of the other
two plans is left only if the policy's is faster in all six rounds (`keep_or_leave`). Where it is
kept, learned is that plan and has its curve; how often is a figure.

`worst_reward_ratio`: learned over single device at equal samples, the lowest of all seeds. Seeds of
environments, permutations and the order of sums belong to the graph, so all plans must learn alike:
`curves_equal` is the part of curves that equal the single device's in every bit.
`worst_time_ratio`: time of the learned plan over that of the single device to the same return
(90 % of the single device's rise), the highest of all seeds. As curves are equal, it is how long
the same iterations take: `worst_window_ratio` is the median over the neighbouring windows of all
seeds, of the worse job, `worst_window_ratio_high` the upper end of its exact 95 % interval.

`--resume FILE` keeps finished runs, so that the whole may be cut into pieces; `foreign_cores` says
how many cores other programs kept busy in the last piece.
"""

import argparse
import dataclasses
import itertools
import json
import math
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from support.common import finish, machine

from doppler.calibration import load_or_calibrate
from doppler.config import JOBS, CalibrationSettings, JobConfig
from doppler.core.layout import per_core_layout
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.jobs import RLJob, build_job
from doppler.measure import (
    MIN_RATIOS,
    in_turns,
    keep_or_leave,
    measured_period_ns,
    ratio_interval,
)
from doppler.planners.base import Budget
from doppler.planners.learned import LearnedPlanner
from doppler.session import JobSession, mean_return
from doppler.simple_plans import job_problem, single_plan, spread_plan
from doppler.training.config import Start
from executor.host import cpu_times, foreign_cpu
from executor.options import ExecutorOptions
from executor.probe import probe
from simulator.scorer import CompiledScorer

ITERATIONS = {"ppo_pendulum": 60, "ppo_ball_balance": 40}
WINDOW, SMOOTH = 5, 10
VERIFY_ITERATIONS = 4
BUDGET = 500
PLANS = ("single_device", "dp_only", "learned")
COLORS = {"single_device": "#0072b2", "dp_only": "#e69f00", "learned": "#009e73"}
LABELS = {"single_device": "single device", "dp_only": "DP-only", "learned": "learned plan"}

TARGETS = {
    "worst_reward_ratio": ">= 0.95",
    "worst_time_ratio": "<= 1.0",
    "worst_window_ratio_high": "<= 1.0",
    "curves_equal": "== 1",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """One run of one plan, by iteration.

    Attributes:
        job, seed, plan: Which run.
        samples: Environment steps so far.
        seconds: Wall-clock of the plan's own windows so far.
        values: Mean return of the episodes that ended in the last iterations; None before the
            first one ended.
        plan_seconds: How long planning took, verifying included.
        kept: Learned only: the other plan that it is, empty if it is the policy's own.
    """

    job: str
    seed: int
    plan: str
    samples: list[int]
    seconds: list[float]
    values: list[float | None]
    plan_seconds: float
    kept: str = ""

    def windows(self) -> list[float]:
        """Returns the seconds of every window that the clock counts."""
        ends = self.seconds[WINDOW - 1 :: WINDOW]
        return [end - start for start, end in itertools.pairwise(ends)]


def plans_of(
    problem: Problem, settings: JobConfig, cache: Path, seed: int
) -> dict[str, tuple[Plan, float]]:
    """Returns every plan, and how long it took to make."""
    calibration, _ = load_or_calibrate(
        settings,
        probe().hardware,
        CalibrationSettings(warmup=2, iterations=6, env_counts=[1.0]),
        cache,
        seed=seed,
        options=ExecutorOptions(),
        progress=lambda note: None,
    )
    start = time.perf_counter()
    scorer = CompiledScorer(problem, calibration.table().costs(problem))
    learned = LearnedPlanner(start=Start.pretrained)(
        problem, scorer, Budget(BUDGET), np.random.default_rng(seed)
    )
    seconds = time.perf_counter() - start
    return {
        "single_device": (single_plan(problem), 0.0),
        "dp_only": (spread_plan(problem), 0.0),
        "learned": (learned, seconds),
    }


def verified(
    job: RLJob, problem: Problem, plans: dict[str, tuple[Plan, float]]
) -> tuple[str, float]:
    """Returns the name of the plan that is left over when all are measured, and the seconds."""
    start = time.perf_counter()
    names = list(plans)
    periods: list[list[float]] = [[] for _ in names]
    with JobSession(job, problem, ExecutorOptions()) as session:
        for index, counts in in_turns(len(names), MIN_RATIOS):
            trace = session.run(plans[names[index]][0], VERIFY_ITERATIONS)
            if counts:
                periods[index].append(measured_period_ns(trace))
    others = [index for index, name in enumerate(names) if name != "learned"]
    incumbent = min(others, key=lambda index: statistics.median(periods[index]))
    pair = [periods[incumbent], periods[names.index("learned")]]
    chosen = "learned" if keep_or_leave(pair, 0) else names[incumbent]
    return chosen, time.perf_counter() - start


def train(name: str, seed: int, cache: Path) -> list[Curve]:
    """Trains one job with one seed under every plan."""
    settings = JOBS[name]
    hardware = probe().hardware
    (cpu,) = (p for p in hardware.processors if p.kind == "cpu")
    job = build_job(settings, seed)
    problem = job_problem(job, hardware, per_core_layout(cpu))
    plans = plans_of(problem, settings, cache, seed)
    chosen, verify_seconds = verified(job, problem, plans)
    plan_seconds = plans["learned"][1] + verify_seconds
    if chosen != "learned":
        del plans["learned"]
    seconds: dict[str, list[float]] = {plan: [] for plan in plans}
    with ExitStack() as stack:
        sessions = {
            plan: stack.enter_context(JobSession(job, problem, ExecutorOptions())) for plan in plans
        }
        for turn in range(ITERATIONS[name] // WINDOW):
            order = list(plans) if turn % 2 == 0 else list(reversed(plans))
            for plan in order:
                trace = sessions[plan].run(plans[plan][0], WINDOW)
                if turn == 0:
                    seconds[plan] = [0.0] * WINDOW
                    continue
                base = seconds[plan][-1]
                seconds[plan] += [base + end / 1e9 for end in trace.iteration_ends_ns()]
    curves = []
    for plan in PLANS:
        run = plan if plan in sessions else chosen
        rewards = sessions[run].rewards
        ends = range(1, len(rewards) + 1)
        curves.append(
            Curve(
                job=name,
                seed=seed,
                plan=plan,
                samples=[record.env_steps for record in rewards],
                seconds=seconds[run],
                values=[mean_return(rewards[max(0, end - SMOOTH) : end]) for end in ends],
                plan_seconds=plan_seconds if plan == "learned" else 0.0,
                kept="" if run == plan else run,
            )
        )
    return curves


def time_to(curve: Curve, value: float) -> float:
    """Returns the seconds until the smoothed return is at least `value`, infinite if never."""
    for seconds, reached in zip(curve.seconds, curve.values, strict=True):
        if reached is not None and reached >= value:
            return seconds
    return math.inf


def figures_of(curves: Sequence[Curve]) -> dict[str, float]:
    """Returns the figures, and prints a row per run."""
    by_run: dict[tuple[str, int], dict[str, Curve]] = {}
    for curve in curves:
        by_run.setdefault((curve.job, curve.seed), {})[curve.plan] = curve
    rewards, times, dp_times, rises, equal = [], [], [], [], []
    kept = 0
    windows: dict[str, list[float]] = {}
    for (job, seed), runs in by_run.items():
        single = runs["single_device"]
        known = [value for value in single.values if value is not None]
        first, last = known[0], known[-1]
        goal = first + 0.9 * (last - first)
        learned = runs["learned"]
        assert learned.values[-1] is not None
        rewards.append(learned.values[-1] / last)
        rises.append(last / first)
        reached = {plan: time_to(curve, goal) for plan, curve in runs.items()}
        times.append(reached["learned"] / reached["single_device"])
        dp_times.append(reached["learned"] / reached["dp_only"])
        kept += bool(learned.kept)
        pairs = zip(learned.windows(), single.windows(), strict=True)
        windows.setdefault(job, []).extend(own / other for own, other in pairs)
        equal += [runs[plan].values == single.values for plan in ("dp_only", "learned")]
        print(
            f"{job}, seed {seed}: return {first:.1f} -> {last:.1f} (learned plan "
            f"{learned.values[-1]:.1f}); {goal:.0f} after "
            + ", ".join(f"{seconds:.1f} s {LABELS[plan]}" for plan, seconds in reached.items())
            + f"; planned and verified in {learned.plan_seconds:.1f} s"
            + (f"; learned is {LABELS[learned.kept]}" if learned.kept else "")
        )
    ratios = {job: ratio_interval(values) for job, values in windows.items()}
    for job, ratio in ratios.items():
        print(
            f"{job}: windows of the learned plan over those of one device {ratio.value:.3f} "
            f"[{ratio.low:.3f}, {ratio.high:.3f}], {len(windows[job])} pairs"
        )
    return {
        "worst_reward_ratio": min(rewards),
        "worst_time_ratio": max(times),
        "median_time_ratio": statistics.median(times),
        "worst_window_ratio": max(ratio.value for ratio in ratios.values()),
        "worst_window_ratio_high": max(ratio.high for ratio in ratios.values()),
        "runs_that_kept_another_plan": kept,
        "median_time_over_dp_only": statistics.median(dp_times),
        "least_rise_of_return": min(rises),
        "curves_equal": sum(equal) / len(equal),
        "num_runs": len(curves),
    }


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Writes the figure: a row per job; mean over seeds, with the range of all seeds."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    jobs = list(dict.fromkeys(curve.job for curve in curves))
    figure, axes = pyplot.subplots(
        len(jobs), 2, figsize=(10, 3.6 * len(jobs)), squeeze=False, layout="constrained"
    )
    for row, job in zip(axes, jobs, strict=True):
        for plan in PLANS:
            runs = [curve for curve in curves if (curve.job, curve.plan) == (job, plan)]
            values = np.array([[np.nan if v is None else v for v in c.values] for c in runs])
            shown = ~np.isnan(values).any(axis=0)
            low, mean, high = values.min(0), values.mean(0), values.max(0)
            seconds = np.mean([curve.seconds for curve in runs], axis=0)
            style = {"single_device": "-", "dp_only": "--", "learned": ":"}[plan]
            for axis, x in zip(row, (np.array(runs[0].samples) / 1000, seconds), strict=True):
                axis.plot(
                    x[shown], mean[shown], style, color=COLORS[plan], label=LABELS[plan], lw=2
                )
                axis.fill_between(
                    x[shown], low[shown], high[shown], color=COLORS[plan], alpha=0.12, lw=0
                )
        row[0].set_xlabel("environment steps (thousands)")
        row[1].set_xlabel("wall-clock of the plan's windows, first one left out (s)")
        for axis in row:
            axis.set_ylabel(f"mean return, last {SMOOTH} iterations")
            axis.set_title(job)
            axis.grid(alpha=0.3)
            axis.set_axisbelow(True)
            axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].legend(title="mean of seeds; band: range", frameon=False)
    figure.suptitle(f"Reward under three plans, one core per device. {machine()}", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def read(path: Path | None) -> list[Curve]:
    """Returns the runs of an earlier piece."""
    if path is None or not path.exists():
        return []
    stored: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))
    return [Curve(**curve) for curve in stored]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first of the seeds")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--resume", type=Path, help="file of finished runs, read and written")
    parser.add_argument("--figure", type=Path, default=Path("results/training_quality.png"))
    arguments = parser.parse_args()
    before = cpu_times()
    curves = read(arguments.resume)
    done = {(curve.job, curve.seed) for curve in curves}
    with TemporaryDirectory() as folder:
        cache = Path(f"{arguments.resume}.costs" if arguments.resume else folder)
        for name in ITERATIONS:
            for seed in range(arguments.seed, arguments.seed + arguments.seeds):
                if (name, seed) in done:
                    continue
                curves += train(name, seed, cache)
                print(f"{name}, seed {seed}: done", flush=True)
                if arguments.resume:
                    stored = [dataclasses.asdict(curve) for curve in curves]
                    arguments.resume.write_text(json.dumps(stored))
    figures = figures_of(curves)
    figures["foreign_cores"] = foreign_cpu(before, cpu_times())
    draw(curves, arguments.figure)
    print(f"figure: {arguments.figure}")
    finish("training_quality", figures, TARGETS, seed=arguments.seed)


if __name__ == "__main__":
    main()
