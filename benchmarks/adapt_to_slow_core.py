"""A program takes half of one core from the running job: the job re-plans, and back again.

`iterations`: from the moment the program is busy on the core to the adoption of a new plan.
`speedup`: period of the old plan over that new plan while the program runs, lower bound from ABBA
blocks. `recovery`: periods of the last windows after it is gone over those of the last windows
before it came, in pairs, median with its 95 % interval. -1 stands for what was not reached: no plan
was adopted; the exit status is then 1.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from support.common import finish

from doppler.adapt import AdaptiveJob
from doppler.calibration import Calibration, cache_folder, load_or_calibrate
from doppler.config import JOBS, CalibrationSettings
from doppler.core.costs import Costs
from doppler.core.hardware import Hardware
from doppler.core.layout import per_core_layout
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.jobs import build_job
from doppler.measure import Interval, interleave, measured_period_ns, median_interval
from doppler.planners.base import Budget
from doppler.planners.learned import LearnedPlanner
from doppler.session import JobSession
from doppler.simple_plans import job_problem
from executor.options import ExecutorOptions
from executor.probe import probe
from simulator.scorer import CompiledScorer

TARGETS = {"iterations": "<= 30", "speedup": ">= 1.15 (lower bound)", "recovery": "<= 1.05"}
WINDOW = 5
SETTLE_WINDOWS = 10
ADOPTION_WINDOWS = 12
RECOVERY_WINDOWS = 14
COMPARED_WINDOWS = 8
"""Last windows before and after that `recovery` compares."""
BUDGET = 600
NONE = -1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", default="ppo_ant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--blocks", type=int, default=12)
    arguments = parser.parse_args()
    options = ExecutorOptions()
    calibration, hardware = calibrated(arguments.job, arguments.seed, options)
    cpu = next(p for p in hardware.processors if p.kind == "cpu")
    job = build_job(JOBS[arguments.job], arguments.seed)
    problem = job_problem(job, hardware, per_core_layout(cpu))
    rng = np.random.default_rng(arguments.seed)
    replan = planning(rng)
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
            speedup = None
            if iterations is not None:
                speedup = compare(session, old, adaptive.plan, arguments.blocks)
        after = steps(adaptive, RECOVERY_WINDOWS)
    show(adaptive)
    pairs = zip(after[-COMPARED_WINDOWS:], before[-COMPARED_WINDOWS:], strict=True)
    recovery = median_interval([late / early for late, early in pairs], rng)
    print(f"recovery {recovery.value:.3f} [{recovery.low:.3f}, {recovery.high:.3f}]")
    if speedup is None:
        print(f"no plan was adopted within {ADOPTION_WINDOWS * WINDOW} iterations")
    else:
        print(f"speedup {speedup.value:.3f} [{speedup.low:.3f}, {speedup.high:.3f}]")
    figures = {
        "iterations": NONE if iterations is None else iterations,
        "speedup": NONE if speedup is None else speedup.low,
        "speedup_mean": NONE if speedup is None else speedup.value,
        "recovery": recovery.value,
        "recovery_low": recovery.low,
        "recovery_high": recovery.high,
    }
    finish("adapt_to_slow_core", figures, TARGETS, seed=arguments.seed)
    return int(speedup is None)


def calibrated(name: str, seed: int, options: ExecutorOptions) -> tuple[Calibration, Hardware]:
    """Returns the calibration of a job, and the hardware with its measured latency."""
    hardware = probe().hardware
    calibration, _ = load_or_calibrate(
        JOBS[name],
        hardware,
        CalibrationSettings(),
        cache_folder(None),
        seed=seed,
        options=options,
        progress=lambda note: print("calibrate:", note, flush=True),
    )
    return calibration, calibration.hardware(hardware)


def planning(rng: np.random.Generator) -> Callable[[Problem, Costs, Plan | None], Plan]:
    """Returns what makes a plan for corrected costs: the learned planner."""
    planner = LearnedPlanner()

    def replan(problem: Problem, costs: Costs, present: Plan | None) -> Plan:
        return planner(problem, CompiledScorer(problem, costs), Budget(BUDGET), rng)

    return replan


def steps(adaptive: AdaptiveJob, windows: int) -> list[float]:
    """Runs windows; returns their periods in ns."""
    return [measured_period_ns(adaptive.step(WINDOW)) for _ in range(windows)]


def until_replanned(adaptive: AdaptiveJob) -> int | None:
    """Runs windows until a new plan is adopted; returns the iterations, None if none was."""
    for window in range(1, ADOPTION_WINDOWS + 1):
        adaptive.step(WINDOW)
        if adaptive.records[-1].replanned:
            return window * WINDOW
    return None


def compare(session: JobSession, old: Plan, new: Plan, max_blocks: int) -> Interval:
    """Returns the period of the old plan over that of the new one."""
    return interleave(
        lambda: measured_period_ns(session.run(old, WINDOW)),
        lambda: measured_period_ns(session.run(new, WINDOW)),
        min_blocks=3,
        max_blocks=max_blocks,
        half_width=0.03,
    ).ratio


def show(adaptive: AdaptiveJob) -> None:
    """Prints every window of the running job."""
    for record in adaptive.records:
        print(
            f"iteration {record.first_iteration:4d}: measured {record.measured_ns / 1e6:7.1f} ms, "
            f"predicted {record.predicted_ns / 1e6:7.1f} ms"
            + (f"  re-planned in {record.learning_seconds:.1f} s" if record.replanned else "")
        )


class Hog:
    """A process of our own that keeps one core busy; entered when it does."""

    def __init__(self, core: int) -> None:
        self._core = core

    def __enter__(self) -> "Hog":
        script = Path(__file__).parent / "support" / "hog.py"
        self._process = subprocess.Popen(
            [sys.executable, "-S", str(script), str(self._core)], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        if answer != "ready":
            self._process.kill()
            self._process.wait()
            raise RuntimeError(f"the hog of core {self._core} answered {answer!r}, not 'ready'")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


if __name__ == "__main__":
    sys.exit(main())
