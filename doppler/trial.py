"""The plans on the running job: stage III, every plan measured, learned against best baseline."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from doppler.adapt import RunPlan
from doppler.api import summarise
from doppler.calibration import save_calibration
from doppler.config import TrainingSettings
from doppler.console import Advance, View
from doppler.core.errors import ConfigError
from doppler.core.layout import Layout
from doppler.core.plan import Plan
from doppler.core.trace import Trace
from doppler.field import distinct
from doppler.learn_run import LEARNED, WARMUP_ITERATIONS, Candidate, Clock, LearnRun
from doppler.measure import (
    NO_MARGINS,
    Margins,
    compare_interleaved,
    measured_period_ns,
    median_interval,
)
from doppler.race import race
from doppler.results import COSTS_FILE
from doppler.running import save_checkpoint
from doppler.session import JobSession
from doppler.simple_plans import job_problem
from doppler.stage3 import tune_on_job
from doppler.training.metrics import OnRecord, TrainingRecord
from executor.options import ExecutorOptions

TURNS = 10
TURN_ITERATIONS = 4
"""Windows per plan of the table, and iterations per window."""
FINALIST_WINDOWS = 8
"""Windows of a race of baselines, per finalist."""
RANKED = 3
"""Plans of the race that are named."""
REPLAN_CALLS = 200
"""Simulations of stage III, if not more than half of all: cheap planners take about 100 for what
they make of any budget, and the learned one plans again twice."""


def run_for_real(
    run: LearnRun,
    layouts: Sequence[Layout],
    options: ExecutorOptions,
    folder: Path,
    view: View,
    clock: Clock,
    on_record: OnRecord,
) -> None:
    """Runs the job under the plans of a run and fills in what was measured.

    Args:
        run: Plans and costs; gets stage III, measured periods, comparison, rewards.
        layouts: The main layout, then others.
        options: The executor's.
        folder: Result folder; gets checkpoint and cost table.
        view: What the user sees.
        clock: Time per step.
        on_record: Called after every update of stage III.
    """
    rng = np.random.default_rng(run.config.seed)
    learned = _named(run.candidates, LEARNED)
    with ExitStack() as stack:
        session = stack.enter_context(JobSession(run.job, run.problem, options))
        session.run(learned.result.plan, WARMUP_ITERATIONS)
        view.section("5  Learn on the running job (stage III)")
        run.learned_plan = _stage_three(run, session, learned, rng, view, on_record)
        clock.mark("stage III")
        view.section("6  Measure the plans in turns")
        sessions = {run.layout: session}
        for layout in layouts[1:]:
            problem = job_problem(run.job, run.hardware, layout)
            other = stack.enter_context(JobSession(run.job, problem, options))
            other.run(_named(run.candidates, layout.name).result.plan, WARMUP_ITERATIONS)
            sessions[layout.name] = other
        _measure_all(run, sessions, view)
        _compare(run, sessions, rng, view)
        run.rewards = session.rewards
        save_checkpoint(session.executor.checkpoint(), folder)
    calibration = run.calibration
    if run.system is not None:
        calibration = calibration.with_factors_of(run.system.table)
    save_calibration(folder / COSTS_FILE, calibration)
    clock.mark("measure")


def replan_budget(training: TrainingSettings) -> int:
    """Part of the learned planner's simulations that stage III plans again with.

    A fifth, or `REPLAN_CALLS` if that is more, and half at most.
    """
    if not training.stage3_windows:
        return 0
    return min(max(training.sim_episodes // 5, REPLAN_CALLS), training.sim_episodes // 2)


def _stage_three(
    run: LearnRun,
    session: JobSession,
    learned: Candidate,
    rng: np.random.Generator,
    view: View,
    on_record: OnRecord,
) -> Plan:
    training = run.config.training
    if training.stage3_windows == 0:
        return learned.result.plan
    known = len(session.executor.switches)

    def note(record: TrainingRecord) -> None:
        run.system_records.append(record)
        on_record(record)

    with view.progress("windows", None) as advance:
        run.system = tune_on_job(
            session.run,
            run.problem,
            run.calibration.table(),
            run.planner,
            learned.result.plan,
            num_windows=training.stage3_windows,
            window_iterations=training.window_iterations,
            replan_budget=replan_budget(training),
            rng=rng,
            seed=run.config.seed,
            race_seconds=training.race_seconds,
            margins=run.job.margins,
            on_record=note,
            on_window=lambda w: advance(1, f"{w.purpose}: {w.period_ns / 1e6:.1f} ms"),
        )
    system = run.system
    switches = session.executor.switches[known:]
    run.stage3_switches = len(switches)
    run.stage3_switch_ns = sum(switch.time_ns for switch in switches)
    view.line(
        f"  exploration cost: {system.worse_iterations} of {system.iterations} iterations on "
        f"slower plans, {system.extra_ns / 1e9:.2f} s; {len(switches)} changes of plan "
        f"{run.stage3_switch_ns / 1e9:.2f} s; learning {system.learning_seconds:.1f} s"
    )
    window = training.window_iterations + run.job.margins.num_iterations
    ranked = "; ".join(plan.source for plan in system.ranking[:RANKED])
    view.line(
        f"  race: {len(system.ranking)} plans, {system.race_windows} windows, "
        f"{system.race_windows * window} iterations; in front: {ranked}"
    )
    reuse = system.reuse
    if reuse is not None:
        view.line(
            f"  cold operands: {reuse.cold_ns_per_byte:.4f} ns a byte, once others have written "
            f"{reuse.capacity_bytes >> 20} MiB; left-out op times {reuse.error:.1%} off, without "
            f"the term {reuse.error_without:.1%}"
        )
    costs = run.calibration.table().costs(run.problem)
    result = summarise(
        run.problem,
        costs,
        LEARNED,
        system.plan,
        learned.result.num_calls + system.simulations,
        learned.result.seconds + system.learning_seconds,
    )
    _replace(run, replace(learned, result=result))
    return system.plan


def _measure_all(run: LearnRun, sessions: Mapping[str, JobSession], view: View) -> None:
    """Measures every plan in turns, the order reversed every other turn."""
    rng = np.random.default_rng(run.config.seed)
    periods: dict[str, list[float]] = {candidate.name: [] for candidate in run.candidates}
    margins = run.job.margins
    iterations = TURN_ITERATIONS + margins.num_iterations
    with view.progress("plans", TURNS * len(run.candidates)) as advance:
        for turn in range(TURNS):
            for candidate in run.candidates if turn % 2 == 0 else reversed(run.candidates):
                trace = sessions[candidate.layout].run(candidate.result.plan, iterations)
                period_ns = measured_period_ns(trace, margins)
                periods[candidate.name].append(period_ns)
                advance(1, f"{candidate.name} {period_ns / 1e6:.1f} ms")
    for candidate in tuple(run.candidates):
        interval = median_interval(periods[candidate.name], rng)
        _replace(run, replace(candidate, measured_ns=interval, windows=TURNS))


def _compare(
    run: LearnRun, sessions: Mapping[str, JobSession], rng: np.random.Generator, view: View
) -> None:
    """Measures learned plan and best baseline in ABBA blocks on the running job."""
    baselines = [c for c in run.candidates if c.name != LEARNED]
    if not baselines:
        raise ConfigError("a comparison needs a baseline, and `planners` names none")
    settings, iterations = run.config.comparison, run.config.training.window_iterations
    anywhere = _by_cluster(tuple(sessions.values()))
    margins = run.job.margins
    best = best_baseline(baselines, anywhere, settings.finalists, iterations, rng, margins)
    run.best_baseline = best.name
    assert run.learned_plan is not None
    with view.progress(f"{LEARNED} against {best.name}", 4 * settings.max_blocks) as advance:
        run.comparison = compare_interleaved(
            _counted(anywhere, advance, margins),
            run.learned_plan,
            best.result.plan,
            iterations=iterations,
            min_blocks=settings.min_blocks,
            max_blocks=settings.max_blocks,
            half_width=settings.half_width,
            rng=rng,
            margins=margins,
        )
    run.learned_trace = run.comparison.traces[0]


def best_baseline(
    baselines: Sequence[Candidate],
    run: RunPlan,
    num_finalists: int,
    iterations: int,
    rng: np.random.Generator,
    margins: Margins = NO_MARGINS,
) -> Candidate:
    """Returns the baseline that was fastest in the turns, or that wins a race of the fastest few.

    Of many near-equals the turns may show a slow one as the fastest, against which a comparison is
    easier to win.

    Args:
        baselines: Measured candidates.
        run: Runs the job on under a plan.
        num_finalists: Different plans in the race; 1 = no race.
        iterations: Iterations per window beside its margins.
        rng: Source of the order within a turn.
        margins: Iterations that a window runs besides, and leaves out.
    """
    ranked = sorted(baselines, key=_measured)
    plans = distinct([candidate.result.plan for candidate in ranked])[:num_finalists]
    found = race(
        lambda index: measured_period_ns(
            run(plans[index], iterations + margins.num_iterations), margins
        ),
        len(plans),
        FINALIST_WINDOWS * len(plans),
        rng,
    )
    return next(c for c in ranked if c.result.plan is plans[found.winner])


def _replace(run: LearnRun, candidate: Candidate) -> None:
    run.candidates = [candidate if c.name == candidate.name else c for c in run.candidates]


def _by_cluster(sessions: Sequence[JobSession]) -> RunPlan:
    """Runs a plan on the session whose cluster it was made for."""
    by_digest = {session.problem.cluster.digest: session for session in sessions}

    def run(plan: Plan, iterations: int) -> Trace:
        return by_digest[plan.cluster_digest].run(plan, iterations)

    return run


def _counted(run: RunPlan, advance: Advance, margins: Margins) -> RunPlan:
    def counted(plan: Plan, iterations: int) -> Trace:
        trace = run(plan, iterations)
        advance(1, f"{plan.source} {measured_period_ns(trace, margins) / 1e6:.1f} ms")
        return trace

    return counted


def _measured(candidate: Candidate) -> float:
    return float("inf") if candidate.measured_ns is None else candidate.measured_ns.value


def _named(candidates: Sequence[Candidate], name: str) -> Candidate:
    return next(candidate for candidate in candidates if candidate.name == name)
