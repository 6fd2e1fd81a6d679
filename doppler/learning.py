"""The main job, end to end: probe, calibrate, learn in the simulator, learn on the job, compare."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from doppler.api import compare_problem, make_scorer, plan_problem, summarise
from doppler.calibration import Calibration, cache_folder, load_or_calibrate
from doppler.config import LayoutName, LearnConfig
from doppler.console import View
from doppler.core.hardware import Hardware, Processor
from doppler.core.layout import Layout, all_cores_layout, per_core_layout
from doppler.jobs import baselines, build_any_job
from doppler.kept_metrics import KeptMetrics
from doppler.learn_run import LEARNED, Candidate, Clock, LearnRun
from doppler.metrics_log import MetricsLog, tensorboard_writer
from doppler.plan_learned import with_stage_two
from doppler.planners.base import Budget
from doppler.planners.bounds import bound_words
from doppler.planners.learned import TUNED, LearnedPlanner
from doppler.planners.learned_run import PlanProgress
from doppler.planners.run_state import Checkpointing
from doppler.preflight import show_preflight
from doppler.simple_plans import job_problem
from doppler.training.config import TrainingConfig
from doppler.training.metrics import TrainingRecord
from doppler.trial import replan_budget, run_for_real
from executor.options import ExecutorOptions
from executor.probe import ProbeResult, probe

SCORING_THREADS = 2
WARM_UP = "doppler.planners.warmup"
"""Compiles the policies' kernels beside the simulator's; nothing to do once they are cached."""

FolderOf = Callable[[str, str], Path]
"""Makes the result folder of a job on a cluster."""


def learn(config: LearnConfig, command: Sequence[str], folder_of: FolderOf, view: View) -> LearnRun:
    """Runs the main job.

    Args:
        config: Settings.
        command: The exact command line.
        folder_of: Makes the result folder once job and cluster are known.
        view: What the user sees.
    """
    clock = Clock()
    if config.training.tensorboard:
        tensorboard_writer()  # absent, it is told before anything takes time
    view.section("1  Probe")
    found = probe(shm_dir=config.executor.shm_dir)
    show_probe(found, view)
    options = config.executor.options()
    clock.mark("probe")

    view.section("2  Calibrate")
    calibration, from_cache = _calibrate(config, found.hardware, options, view)
    hardware = calibration.hardware(found.hardware)
    clock.mark("calibrate")

    job = build_any_job(config.job, config.seed)
    layouts = _layouts(config.layout, _cpu(hardware))
    problem = job_problem(job, hardware, layouts[0])
    view.section("3  Graph")
    view.line(
        f"{job.name}: {job.graph.num_ops} ops, {len(job.graph.edges)} edges, "
        f"{len(job.graph.groups)} groups; {job.size}; "
        f"cluster {problem.cluster.name}: {problem.cluster.num_devices} devices"
    )
    view.line(job.text)
    show_preflight(problem, config.executor.shm_dir, view)
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
        planner=LearnedPlanner(training=with_stage_two(TrainingConfig(), config.training)),
        training_records=[],
    )
    view.section("4  Learn in the simulator (stages I and II) and plan the baselines")
    folder = folder_of(job.name, problem.cluster.name)
    with MetricsLog(folder, tensorboard=config.training.tensorboard) as log:
        log.begin()
        _plan_all(run, layouts, log, view)
        clock.mark("plan")
        run_for_real(run, layouts, options, folder, view, clock, log.write)
        for record in run.rewards:
            log.write(record)
    run.seconds = clock.seconds
    return run


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
        + f"; publish {calibration.publish_text}"
    )
    if calibration.warning is not None:
        view.line(f"  warning: {calibration.warning}")
    return calibration, from_cache


def _plan_all(run: LearnRun, layouts: Sequence[Layout], log: MetricsLog, view: View) -> None:
    config, problem = run.config, run.problem
    table = run.calibration.table()
    costs = table.costs(problem)
    budget = config.training.sim_episodes
    chosen = baselines(config.job) if config.planners is None else config.planners
    names = [name for name in chosen if name != LEARNED]
    with _warm_up():
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
    with ExitStack() as stack:
        advance = stack.enter_context(view.progress("stages I and II", None))
        words, best = bound_words(problem), ""

        def on_progress(progress: PlanProgress) -> None:
            nonlocal best
            best = f", best {progress.best_ns / 1e6:.1f} ms, {progress.gap:.1%} above the {words}"
            advance(0, f"{progress.part}, {progress.simulations} simulations{best}")

        def on_record(record: TrainingRecord) -> None:
            run.training_records.append(record)
            log.write(record)
            advance(1, f"stage {record.stage.value}, {record.simulations} simulations{best}")

        run.planner.on_record, run.planner.on_progress = on_record, on_progress
        if config.checkpoint is not None:
            folder = Path(config.checkpoint)
            kept = stack.enter_context(KeptMetrics(folder, on_record))
            run.planner.on_start, run.planner.on_record = kept.begin, kept.write
            run.planner.checkpoint = Checkpointing(folder=folder, every=config.checkpoint_every)
        scorer = make_scorer(problem, costs, threads=SCORING_THREADS)
        start = time.perf_counter()
        rng = np.random.default_rng(config.seed)
        calls = budget - replan_budget(config.training)
        plan = run.planner(problem, scorer, Budget(calls), rng)
        seconds = time.perf_counter() - start
        run.planner.on_record, run.planner.on_progress = None, None
        run.planner.checkpoint, run.planner.on_start = None, None
    run.planner.training = with_stage_two(TUNED, config.training)  # stage III plans again
    result = summarise(problem, costs, LEARNED, plan, scorer.num_calls, seconds)
    run.candidates.append(Candidate(name=LEARNED, layout=run.layout, result=result))


@contextmanager
def _warm_up() -> Iterator[None]:
    """Compiles the policies' kernels in another process while the block runs, then waits for it."""
    with subprocess.Popen([sys.executable, "-m", WARM_UP]) as process:
        try:
            yield
        except BaseException:
            process.kill()
            raise
