"""The main job, end to end: probe, calibrate, learn in the simulator, learn on the job, compare."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from doppler.adapt import RunPlan
from doppler.api import PlannerResult, compare_problem, plan_problem, summarise
from doppler.calibration import (
    Calibration,
    cache_folder,
    job_problem,
    load_or_calibrate,
    save_calibration,
)
from doppler.config import LayoutName, LearnConfig
from doppler.console import Advance, View
from doppler.core.errors import ConfigError
from doppler.core.hardware import Hardware, Processor
from doppler.core.layout import Layout, all_cores_layout, per_core_layout
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.trace import Trace
from doppler.jobs import RealJob, build_job
from doppler.measure import (
    Comparison,
    Interval,
    compare_interleaved,
    iteration_times_ns,
    measured_period_ns,
    median_interval,
)
from doppler.planners.base import Budget
from doppler.planners.learned import LearnedPlanner
from doppler.results import COSTS_FILE
from doppler.running import save_checkpoint
from doppler.session import JobSession, RewardRecord
from doppler.stage3 import SystemResult, tune_on_job
from doppler.training.metrics import TrainingRecord
from executor.options import ExecutorOptions
from executor.probe import ProbeResult, probe
from simulator.scorer import CompiledScorer

SCORING_THREADS = 2
LEARNED = "learned"
ALL_CORES = "all_cores"
WARMUP_ITERATIONS = 5
BASELINE_WINDOWS = 2

FolderOf = Callable[[str, str], Path]
"""Makes the result folder of a job on a cluster."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One plan of the comparison.

    Attributes:
        name: Planner, with the layout where it is not the main one.
        layout: Name of the layout that the plan is for.
        result: What its planner made, simulated with the calibrated costs.
        measured_ns: Median time per iteration with its interval, None if not run.
        windows: Windows measured.
    """

    name: str
    layout: str
    result: PlannerResult
    measured_ns: Interval | None = None
    windows: int = 0


@dataclass(kw_only=True)
class LearnRun:
    """Everything that one `doppler learn` finds out, for files, tables and the page."""

    config: LearnConfig
    command: Sequence[str]
    found: ProbeResult
    hardware: Hardware
    calibration: Calibration
    from_cache: bool
    job: RealJob
    problem: Problem
    layout: str
    candidates: list[Candidate]
    planner: LearnedPlanner
    training_records: list[TrainingRecord]
    system_records: list[TrainingRecord] = field(default_factory=list)
    system: SystemResult | None = None
    comparison: Comparison | None = None
    best_baseline: str = ""
    learned_plan: Plan | None = None
    learned_trace: Trace | None = None
    rewards: list[RewardRecord] = field(default_factory=list)
    num_switches: int = 0
    switch_ns: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


def learn(config: LearnConfig, command: Sequence[str], folder_of: FolderOf, view: View) -> LearnRun:
    """Runs the main job.

    Args:
        config: Settings.
        command: The exact command line.
        folder_of: Makes the result folder once job and cluster are known.
        view: What the user sees.
    """
    clock = _Clock()
    view.section("1  Probe")
    found = probe(shm_dir=config.run.shm_dir)
    show_probe(found, view)
    options = ExecutorOptions(shm_dir=config.run.shm_dir)
    clock.mark("probe")

    view.section("2  Calibrate")
    calibration, from_cache = _calibrate(config, found.hardware, options, view)
    hardware = calibration.hardware(found.hardware)
    clock.mark("calibrate")

    job = build_job(config.job, config.seed)
    layouts = _layouts(config.layout, _cpu(hardware))
    problem = job_problem(job, hardware, layouts[0])
    view.section("3  Graph")
    view.line(
        f"{job.name}: {job.graph.num_ops} ops, {len(job.graph.edges)} edges, "
        f"{len(job.graph.groups)} groups ({'fused' if job.config.fused else 'unrolled'} form); "
        f"{job.config.num_envs} environments, {job.env_steps_per_iteration} steps per iteration; "
        f"cluster {problem.cluster.name}: {problem.cluster.num_devices} devices"
    )
    run = LearnRun(
        config=config,
        command=command,
        found=found,
        hardware=hardware,
        calibration=calibration,
        from_cache=from_cache,
        job=job,
        problem=problem,
        layout=layouts[0].name,
        candidates=[],
        planner=LearnedPlanner(),
        training_records=[],
    )
    view.section("4  Learn in the simulator (stages I and II) and plan the baselines")
    _plan_all(run, layouts, view)
    clock.mark("plan")

    folder = folder_of(job.name, problem.cluster.name)
    _run_for_real(run, layouts, options, folder, view, clock)
    run.seconds = clock.seconds
    return run


class _Clock:
    """Wall-clock time per step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def mark(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now


def show_probe(found: ProbeResult, view: View) -> None:
    """Writes what was found, and why what is absent is absent."""
    for finding in found.findings:
        view.line(f"  {'yes' if finding.is_present else 'no ':<4}{finding.name}: {finding.detail}")


def _cpu(hardware: Hardware) -> Processor:
    return next(p for p in hardware.processors if p.kind == "cpu")


def _layouts(choice: LayoutName, cpu: Processor) -> list[Layout]:
    """The main layout first; `auto` adds the one that gives all cores to one device."""
    if choice is LayoutName.all_cores or cpu.num_units == 1:
        return [all_cores_layout(cpu)]
    if choice is LayoutName.per_core:
        return [per_core_layout(cpu)]
    return [per_core_layout(cpu), all_cores_layout(cpu)]


def _calibrate(
    config: LearnConfig, hardware: Hardware, options: ExecutorOptions, view: View
) -> tuple[Calibration, bool]:
    with view.progress("measuring the job's ops", None) as advance:
        calibration, from_cache = load_or_calibrate(
            config.job,
            hardware,
            config.calibration,
            cache_folder(config.cost_cache),
            seed=config.seed,
            options=options,
            progress=lambda note: advance(1, note),
        )
    where = "from an earlier run" if from_cache else "measured now"
    view.line(
        f"  {len(calibration.entries)} entries ({where}); dispatch "
        + ", ".join(f"{d.time_ns / 1e3:.0f} us on {d.cores} core(s)" for d in calibration.dispatch)
        + f"; publish {calibration.publish_ns / 1e3:.0f} us"
    )
    return calibration, from_cache


def _plan_all(run: LearnRun, layouts: Sequence[Layout], view: View) -> None:
    config, problem = run.config, run.problem
    table = run.calibration.table()
    costs = table.costs(problem)
    budget = config.training.sim_episodes
    names = [name for name in config.planners if name != LEARNED]
    with view.progress("baselines", len(names)) as advance:
        results = compare_problem(
            problem,
            costs,
            names,
            budget,
            config.seed,
            threads=SCORING_THREADS,
            on_result=lambda r: advance(1, f"{r.planner} {r.value_ns / 1e6:.1f} ms"),
        )
    run.candidates = [
        Candidate(name=result.planner, layout=run.layout, result=result) for result in results
    ]
    for layout in layouts[1:]:
        other = job_problem(run.job, run.hardware, layout)
        result = plan_problem(other, table.costs(other), "single_device", budget, config.seed)
        run.candidates.append(Candidate(name=layout.name, layout=layout.name, result=result))
    with view.progress("stages I and II", None) as advance:

        def on_record(record: TrainingRecord) -> None:
            run.training_records.append(record)
            best = "" if record.best_ns is None else f", best {record.best_ns / 1e6:.1f} ms"
            advance(1, f"stage {record.stage.value}, {record.simulations} simulations{best}")

        run.planner.on_record = on_record
        scorer = CompiledScorer(problem, costs, threads=SCORING_THREADS)
        start = time.perf_counter()
        rng = np.random.default_rng(config.seed)
        plan = run.planner(problem, scorer, Budget(budget), rng)
        seconds = time.perf_counter() - start
        run.planner.on_record = None
    result = summarise(problem, costs, LEARNED, plan, scorer.num_calls, seconds)
    run.candidates.append(Candidate(name=LEARNED, layout=run.layout, result=result))


def _run_for_real(
    run: LearnRun,
    layouts: Sequence[Layout],
    options: ExecutorOptions,
    folder: Path,
    view: View,
    clock: _Clock,
) -> None:
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
