"""The plans on the running job: stage III, every plan measured, learned against best baseline."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from doppler.adapt import RunPlan
from doppler.calibration import job_problem, save_calibration
from doppler.console import Advance, View
from doppler.core.errors import ConfigError
from doppler.core.layout import Layout
from doppler.core.plan import Plan
from doppler.core.trace import Trace
from doppler.learn_run import LEARNED, WARMUP_ITERATIONS, Candidate, Clock, LearnRun
from doppler.measure import (
    compare_interleaved,
    iteration_times_ns,
    measured_period_ns,
    median_interval,
)
from doppler.results import COSTS_FILE
from doppler.running import save_checkpoint
from doppler.session import JobSession
from doppler.stage3 import tune_on_job
from executor.options import ExecutorOptions

BASELINE_WINDOWS = 2


def run_for_real(
    run: LearnRun,
    layouts: Sequence[Layout],
    options: ExecutorOptions,
    folder: Path,
    view: View,
    clock: Clock,
) -> None:
    """Runs the job under the plans of a run and fills in what was measured.

    Args:
        run: Plans and costs; gets stage III, measured periods, comparison, rewards.
        layouts: The main layout, then others.
        options: The executor's.
        folder: Result folder; gets checkpoint and cost table.
        view: What the user sees.
        clock: Time per step.
    """
    rng = np.random.default_rng(run.config.seed)
    learned = _named(run.candidates, LEARNED)
    with JobSession(run.job, run.problem, options) as session:
        session.run(learned.result.plan, WARMUP_ITERATIONS)
        view.section("5  Learn on the running job (stage III)")
        run.learned_plan = _stage_three(run, session, learned.result.plan, rng, view)
        clock.mark("stage III")
        view.section("6  Measure the plans, interleaved")
        _measure_baselines(run, layouts, session, options, view)
        _compare(run, layouts, session, options, rng, view)
        run.rewards = session.rewards
        switches = session.executor.switches
        run.num_switches = len(switches)
        run.switch_ns = sum(switch.time_ns for switch in switches)
        save_checkpoint(session.executor.checkpoint(), folder)
    save_calibration(folder / COSTS_FILE, run.calibration)
    clock.mark("measure")


def _stage_three(
    run: LearnRun, session: JobSession, plan: Plan, rng: np.random.Generator, view: View
) -> Plan:
    training = run.config.training
    if training.stage3_windows == 0:
        return plan
    with view.progress("windows", None) as advance:
        run.system = tune_on_job(
            session.run,
            run.problem,
            run.calibration.table(),
            run.planner,
            plan,
            num_windows=training.stage3_windows,
            window_iterations=training.window_iterations,
            replan_budget=max(100, training.sim_episodes // 4),
            rng=rng,
            on_record=run.system_records.append,
            on_window=lambda w: advance(1, f"{w.purpose}: {w.period_ns / 1e6:.1f} ms"),
        )
    system = run.system
    view.line(
        f"  exploration cost: {system.worse_iterations} of {system.iterations} iterations on "
        f"slower plans, {system.extra_ns / 1e9:.2f} s; learning {system.learning_seconds:.1f} s"
    )
    return system.plan


def _measure_baselines(
    run: LearnRun,
    layouts: Sequence[Layout],
    session: JobSession,
    options: ExecutorOptions,
    view: View,
) -> None:
    """Measures every plan of the main layout in turn, twice; other layouts after them."""
    rng = np.random.default_rng(run.config.seed)
    length = run.config.training.window_iterations
    times: dict[str, list[float]] = {candidate.name: [] for candidate in run.candidates}
    main = [c for c in run.candidates if c.layout == run.layout]
    with view.progress("plans", BASELINE_WINDOWS * len(run.candidates)) as advance:
        for turn in range(BASELINE_WINDOWS):
            for candidate in main if turn % 2 == 0 else reversed(main):
                plan = candidate.result.plan
                if candidate.name == LEARNED and run.learned_plan is not None:
                    plan = run.learned_plan
                trace = session.run(plan, length)
                times[candidate.name] += iteration_times_ns(trace)
                advance(1, f"{candidate.name} {measured_period_ns(trace) / 1e6:.1f} ms")
        for layout in layouts[1:]:
            candidate = _named(run.candidates, layout.name)
            with JobSession(run.job, job_problem(run.job, run.hardware, layout), options) as other:
                other.run(candidate.result.plan, WARMUP_ITERATIONS)
                for _ in range(BASELINE_WINDOWS):
                    trace = other.run(candidate.result.plan, length)
                    times[candidate.name] += iteration_times_ns(trace)
                    advance(1, f"{candidate.name} {measured_period_ns(trace) / 1e6:.1f} ms")
    run.candidates = [
        replace(
            candidate,
            measured_ns=median_interval(times[candidate.name], rng),
            windows=BASELINE_WINDOWS,
        )
        for candidate in run.candidates
    ]


def _compare(
    run: LearnRun,
    layouts: Sequence[Layout],
    session: JobSession,
    options: ExecutorOptions,
    rng: np.random.Generator,
    view: View,
) -> None:
    """Measures learned plan and best baseline in ABBA blocks on the running job."""
    baselines = [c for c in run.candidates if c.name != LEARNED]
    if not baselines:
        raise ConfigError("a comparison needs a baseline, and `planners` names none")
    best = min(baselines, key=_measured)
    run.best_baseline = best.name
    assert run.learned_plan is not None
    settings = run.config.comparison
    with view.progress(f"{LEARNED} against {best.name}", 4 * settings.max_blocks) as advance:
        if best.layout == run.layout:
            run.comparison = compare_interleaved(
                _counted(session.run, advance),
                run.learned_plan,
                best.result.plan,
                iterations=run.config.training.window_iterations,
                min_blocks=settings.min_blocks,
                max_blocks=settings.max_blocks,
                half_width=settings.half_width,
                rng=rng,
            )
        else:
            layout = next(x for x in layouts if x.name == best.layout)
            problem = job_problem(run.job, run.hardware, layout)
            with JobSession(run.job, problem, options) as other:
                other.run(best.result.plan, WARMUP_ITERATIONS)
                run.comparison = compare_interleaved(
                    _counted(_by_cluster((session, other)), advance),
                    run.learned_plan,
                    best.result.plan,
                    iterations=run.config.training.window_iterations,
                    min_blocks=settings.min_blocks,
                    max_blocks=settings.max_blocks,
                    half_width=settings.half_width,
                    rng=rng,
                )
    run.learned_trace = run.comparison.traces[0]


def _by_cluster(sessions: Sequence[JobSession]) -> RunPlan:
    """Runs a plan on the session whose cluster it was made for."""
    by_digest = {session.problem.cluster.digest: session for session in sessions}

    def run(plan: Plan, iterations: int) -> Trace:
        return by_digest[plan.cluster_digest].run(plan, iterations)

    return run


def _counted(run: RunPlan, advance: Advance) -> RunPlan:
    def counted(plan: Plan, iterations: int) -> Trace:
        trace = run(plan, iterations)
        advance(1, f"{plan.source} {measured_period_ns(trace) / 1e6:.1f} ms")
        return trace

    return counted


def _measured(candidate: Candidate) -> float:
    return float("inf") if candidate.measured_ns is None else candidate.measured_ns.value


def _named(candidates: Sequence[Candidate], name: str) -> Candidate:
    return next(candidate for candidate in candidates if candidate.name == name)
