"""A program takes half of one core from the running job: the job re-plans, and back again.

`iterations`: from the start of the hog to the adoption of a new plan. `speedup`: period of the old
plan over the new one while the hog runs, lower bound from ABBA blocks. `recovery`: period of the
last windows after the hog is gone over the period before it came.
"""

import argparse
import multiprocessing
import os

import numpy as np
from common import finish

from doppler.adapt import AdaptiveJob
from doppler.calibration import cache_folder, job_problem, load_or_calibrate
from doppler.config import JOBS, CalibrationSettings
from doppler.core.costs import Costs
from doppler.core.layout import per_core_layout
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.jobs import build_job
from doppler.measure import interleave, measured_period_ns
from doppler.planners.base import Budget
from doppler.planners.learned import LearnedPlanner
from doppler.session import JobSession
from executor.options import ExecutorOptions
from executor.probe import probe
from simulator.scorer import CompiledScorer

TARGETS = {"iterations": "<= 30", "speedup": ">= 1.15 (lower bound)", "recovery": "<= 1.05"}
WINDOW = 5
SETTLE_WINDOWS = 6
RECOVERY_WINDOWS = 12
BUDGET = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", default="ppo_ant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--blocks", type=int, default=12)
    arguments = parser.parse_args()
    settings = JOBS[arguments.job]
    hardware = probe().hardware
    options = ExecutorOptions()
    calibration, _ = load_or_calibrate(
        settings,
        hardware,
        CalibrationSettings(),
        cache_folder(None),
        seed=arguments.seed,
        options=options,
        progress=lambda note: print("calibrate:", note, flush=True),
    )
    hardware = calibration.hardware(hardware)
    cpu = next(p for p in hardware.processors if p.kind == "cpu")
    job = build_job(settings, arguments.seed)
    problem = job_problem(job, hardware, per_core_layout(cpu))
    planner = LearnedPlanner()
    rng = np.random.default_rng(arguments.seed)

    def replan(problem: Problem, costs: Costs, present: Plan) -> Plan:
        return planner(problem, CompiledScorer(problem, costs), Budget(BUDGET), rng)

    table = calibration.table()
    plan = replan(problem, table.costs(problem), None)
    core = problem.cluster.devices[-1].cores[0]
    with JobSession(job, problem, options) as session:
        session.run(plan, WINDOW)
        adaptive = AdaptiveJob(session.run, problem, table, plan, replan)
        before = steps(adaptive, SETTLE_WINDOWS)
        old = adaptive.plan
        with Hog(core):
            iterations = until_replanned(adaptive)
            steps(adaptive, SETTLE_WINDOWS)
            new = adaptive.plan
            compared = interleave(
                lambda: measured_period_ns(session.run(old, WINDOW)),
                lambda: measured_period_ns(session.run(new, WINDOW)),
                min_blocks=3,
                max_blocks=arguments.blocks,
                half_width=0.03,
            )
        after = steps(adaptive, RECOVERY_WINDOWS)
    for record in adaptive.records:
        print(
            f"iteration {record.first_iteration:4d}: measured {record.measured_ns / 1e6:7.1f} ms, "
            f"predicted {record.predicted_ns / 1e6:7.1f} ms"
            + (f"  re-planned in {record.learning_seconds:.1f} s" if record.replanned else "")
        )
    finish(
        "adapt_to_slow_core",
        {
            "iterations": iterations,
            "speedup": compared.ratio.low,
            "speedup_mean": compared.ratio.value,
            "recovery": float(np.median(after[-4:]) / np.median(before[-4:])),
        },
        TARGETS,
    )


def steps(adaptive: AdaptiveJob, windows: int) -> list[float]:
    """Runs windows; returns their periods in ns."""
    return [measured_period_ns(adaptive.step(WINDOW)) for _ in range(windows)]


def until_replanned(adaptive: AdaptiveJob) -> int:
    """Runs windows until a new plan is adopted; returns the iterations that it took."""
    for window in range(1, RECOVERY_WINDOWS + 1):
        adaptive.step(WINDOW)
        if adaptive.records[-1].replanned:
            return window * WINDOW
    return (RECOVERY_WINDOWS + 1) * WINDOW


class Hog:
    """A process of our own that keeps one core busy."""

    def __init__(self, core: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_burn, args=(core,), daemon=True)

    def __enter__(self) -> "Hog":
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()


def _burn(core: int) -> None:
    os.sched_setaffinity(0, {core})
    while True:
        sum(range(10_000))


if __name__ == "__main__":
    main()
