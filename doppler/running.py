"""`doppler run`: a job under a stored plan, with progress, checkpoints, resume and recovery."""

import dataclasses
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from safetensors import SafetensorError
from safetensors.numpy import load_file
from yaml import YAMLError

from doppler.adapt import AdaptiveJob
from doppler.api import make_scorer
from doppler.calibration import Calibration, load_calibration
from doppler.compose import overridden_keys
from doppler.config import AnyJobConfig, JobConfig, OnFailure, RunConfig
from doppler.console import View
from doppler.core.cluster import Cluster, Device
from doppler.core.costs import Costs
from doppler.core.errors import (
    ConfigError,
    ExecutionError,
    FormatError,
    WorkerDiedError,
    WorkerHungError,
)
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.serialize import load_cluster, load_plan, save
from doppler.core.trace import Trace
from doppler.jobs import RLJob, build_any_job, resolve_any_job
from doppler.planners.base import Budget
from doppler.planners.registry import get_planner
from doppler.preflight import show_preflight
from doppler.real_job import RealJob
from doppler.report.html import write_report
from doppler.results import (
    CHECKPOINT_FILE,
    CLUSTER_FILE,
    CONFIG_FILE,
    COSTS_FILE,
    GRAPH_FILE,
    PLAN_FILE,
    append_metrics,
    forget_metrics,
    link_latest,
    make_result_folder,
    write_settings,
)
from doppler.run_report import RunHistory, build_run_report
from doppler.session import JobSession
from doppler.static_mps import check_static_mps
from doppler.tensor_config import TENSOR_JOBS
from doppler.tensor_file import write_tensors
from executor.checkpoint import Checkpoint
from executor.probe import probe
from simulator.costs.measured import CostTable
from simulator.costs.source import UnknownTimeError

WINDOW = 10
MIN_WINDOW = 3
REPLANNER = "annealing"
REPLAN_BUDGET = 1000


def run_plan(config: RunConfig, command: Sequence[str], view: View) -> Path:
    """Runs a job under a stored plan; returns the result folder.

    Raises:
        FormatError: If plan, cluster, configuration or checkpoint is damaged or foreign.
        PlanError: If the plan was made for another job or cluster.
        ExecutionError: If a worker fails and `run.on_failure=stop`, or no device is left.
    """
    source, plan_path = _locate(config.plan)
    config = _resolved(config, command, source)
    job = build_any_job(config.job, config.seed)
    if config.run.target_reward is not None and not isinstance(job, RLJob):
        raise ConfigError(f"run.target_reward is for deep-RL jobs, and {job.name!r} has no reward")
    cluster = load_cluster(source / CLUSTER_FILE)
    kinds = {device.kind for device in cluster.devices}
    check_static_mps(config.executor, kinds, f"cluster {cluster.name!r}")
    problem = Problem(graph=job.graph, cluster=cluster, objective=job.objective)
    plan = load_plan(plan_path, problem)
    calibration = _calibration(source)
    table = None
    if config.run.on_failure is OnFailure.replan or config.run.adapt:
        if calibration is None:
            raise ConfigError(
                f"run.on_failure=replan and run.adapt plan with {COSTS_FILE} beside the plan, and "
                f"{str(source)!r} has none"
            )
        table = calibration.table()
        table.costs(problem)  # what it lacks is said now, not when a device is lost
    checkpoint = None
    if config.run.resume is not None:
        checkpoint = load_checkpoint(Path(config.run.resume))
        checkpoint.check(job.graph)
    folder = make_result_folder(Path(config.results), job.name, cluster.name)
    write_settings(folder, config, command)
    save(job.graph, folder / GRAPH_FILE)
    if calibration is not None:
        shutil.copyfile(source / COSTS_FILE, folder / COSTS_FILE)
    view.line(job.text)
    runner = _Runner(config, job, table, folder, view)
    runner.run(_Situation(problem=problem, plan=plan), checkpoint)
    view.line(_report(job, runner.history, calibration, folder, config, command))
    link_latest(folder)
    return folder


def _report(
    job: RealJob,
    history: RunHistory,
    calibration: Calibration | None,
    folder: Path,
    config: RunConfig,
    command: Sequence[str],
) -> str:
    """Writes the report of a run; returns where it is, or why there is none."""
    if calibration is None:
        return f"no report: there was no {COSTS_FILE} beside the plan, so nothing is simulated"
    found = probe(shm_dir=config.executor.shm_dir)
    try:
        report = build_run_report(
            job, history, calibration, command=command, seed=config.seed, found=found
        )
    except UnknownTimeError as error:
        return f"no report: {error}"
    if report is None:
        return "no report: the run has no window that is long enough to show"
    return f"report: {write_report(folder, report)}"


def save_checkpoint(checkpoint: Checkpoint, folder: Path) -> Path:
    """Writes a job's checkpoint into a folder, whole or not at all."""
    path = folder / CHECKPOINT_FILE
    write_tensors(path, checkpoint.to_arrays())
    return path


def load_checkpoint(folder: Path) -> Checkpoint:
    """Returns the checkpoint of a result folder.

    Raises:
        FormatError: If the file is missing, damaged, or no checkpoint.
    """
    path = folder / CHECKPOINT_FILE if folder.is_dir() else folder
    try:
        arrays = load_file(path)
    except FileNotFoundError as error:
        raise FormatError(f"there is no checkpoint at {str(path)!r}") from error
    except (OSError, SafetensorError) as error:
        raise FormatError(f"checkpoint {str(path)!r} cannot be read: {error}") from error
    return Checkpoint.from_arrays(arrays)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Situation:
    """What runs now: the devices that are left, and the plan for them."""

    problem: Problem
    plan: Plan


class _Runner:
    """Runs windows until the job has its iterations or its reward."""

    def __init__(
        self, config: RunConfig, job: RealJob, table: CostTable | None, folder: Path, view: View
    ) -> None:
        self._settings = config.run
        self._seed = config.seed
        self._job = job
        self._table = table
        self._folder = folder
        self._view = view
        self._options = config.executor.options(config.run.limit_memory)
        self._left: tuple[int, ...] = ()
        self.history = RunHistory(margins=job.margins)
        self._window = WINDOW + job.margins.num_iterations
        self._least = MIN_WINDOW + job.margins.num_iterations

    def run(self, situation: _Situation, checkpoint: Checkpoint | None) -> None:
        """Runs to the end, re-planning on what is left where the settings say so."""
        first = 0 if checkpoint is None else checkpoint.iteration
        goal = first + self._settings.iterations
        while True:
            try:
                self._run_on(situation, checkpoint, goal)
                return
            except (WorkerDiedError, WorkerHungError) as error:
                if self._table is None or self._settings.on_failure is not OnFailure.replan:
                    raise
                situation = self._recover(situation, self._table, error)
                stored = self._folder / CHECKPOINT_FILE
                checkpoint = load_checkpoint(self._folder) if stored.exists() else checkpoint
                done = 0 if checkpoint is None else checkpoint.iteration
                forget_metrics(self._folder, done)
                self.history.go_back(done)
                self._view.line(f"going on from iteration {done}")

    def _run_on(self, situation: _Situation, checkpoint: Checkpoint | None, goal: int) -> None:
        settings = self._settings
        self._left = ()  # a worker that dies while it starts leaves nothing to go on with
        save(situation.problem.cluster, self._folder / CLUSTER_FILE)
        save(situation.plan, self._folder / PLAN_FILE, situation.problem)
        options = self._options
        show_preflight(
            situation.problem, options.shm_dir, self._view, limit_memory=options.limit_memory
        )
        with JobSession(self._job, situation.problem, self._options) as session:
            executor = session.executor
            if checkpoint is not None:
                executor.restore(checkpoint)
            step = self._step(session, situation)
            saved_at = executor.iteration
            title = f"{self._job.name}, plan {situation.plan.source}"
            try:
                with self._view.progress(title, goal) as advance:
                    advance(executor.iteration, "")
                    while executor.iteration < goal:
                        count = min(self._window, goal - executor.iteration)
                        plan, trace = step(count)
                        note = ""
                        if count >= self._least:
                            self.history.add(situation.problem, plan, trace)
                            note = f"{self.history.periods_ns[-1] / 1e6:.1f} ms"
                        reward = session.last_return()
                        if reward is not None:
                            note += f", return {reward:.1f}"
                        advance(count, note)
                        for record in session.rewards[-count:]:
                            append_metrics(self._folder, record)
                            self.history.rewards.append(record)
                        due = settings.checkpoint_every
                        if due and executor.iteration - saved_at >= due:
                            save_checkpoint(executor.checkpoint(), self._folder)
                            saved_at = executor.iteration
                        if _reached(settings.target_reward, reward):
                            break
            except (WorkerDiedError, WorkerHungError):
                self._left = executor.survivors()
                raise
            path = save_checkpoint(executor.checkpoint(), self._folder)
            self._view.line(f"{executor.iteration} iterations done; checkpoint: {path}")

    def _step(
        self, session: JobSession, situation: _Situation
    ) -> Callable[[int], tuple[Plan, Trace]]:
        """Returns what runs the job on, under the plan or one that follows drift, and which."""
        if not self._settings.adapt or self._table is None:
            return lambda count: (situation.plan, session.run(situation.plan, count))
        adaptive = AdaptiveJob(
            session.run,
            situation.problem,
            self._table,
            situation.plan,
            self._replan,
            first_iteration=session.executor.iteration,
            margins=self._job.margins,
        )

        def step(count: int) -> tuple[Plan, Trace]:
            plan = adaptive.plan
            if count < self._least:
                return plan, session.run(plan, count)
            trace = adaptive.step(count)
            self._table = adaptive.table
            record = adaptive.records[-1]
            append_metrics(self._folder, record)
            if record.replanned:
                save(adaptive.plan, self._folder / PLAN_FILE, situation.problem)
                self._view.line(
                    f"iteration {session.executor.iteration}: measured "
                    f"{record.measured_ns / 1e6:.1f} ms, predicted "
                    f"{record.predicted_ns / 1e6:.1f} ms; re-planned"
                )
            return plan, trace

        return step

    def _replan(self, problem: Problem, costs: Costs, present: Plan | None = None) -> Plan:
        return get_planner(REPLANNER)(
            problem,
            make_scorer(problem, costs),
            Budget(REPLAN_BUDGET),
            np.random.default_rng(self._seed),
        )

    def _recover(
        self, situation: _Situation, table: CostTable, error: ExecutionError
    ) -> _Situation:
        """Plans for the devices that are left.

        Raises:
            ExecutionError: If none is left.
        """
        self._view.line(f"{error}")
        old = situation.problem.cluster
        kept = [old.devices[device] for device in self._left]
        if not kept:
            raise error
        cluster = surviving_cluster(old, kept)
        problem = dataclasses.replace(situation.problem, cluster=cluster)
        plan = self._replan(problem, table.costs(problem))
        self._view.line(f"re-planned on {', '.join(device.name for device in kept)}")
        return _Situation(problem=problem, plan=plan)


def surviving_cluster(old: Cluster, kept: Sequence[Device]) -> Cluster:
    """Returns a cluster of the devices that are left, with the links and routes among them."""
    names = {device.name for device in kept}
    return Cluster(
        name=f"{old.name}-{'+'.join(sorted(names))}",
        devices=tuple(kept),
        links=tuple(link for link in old.links if {link.src, link.dst} <= names),
        routes=tuple(r for r in old.routes if {r.src, r.dst, *r.via} <= names),
    )


def _calibration(source: Path) -> Calibration | None:
    """The cost table beside a plan, None if there is none."""
    path = source / COSTS_FILE
    return load_calibration(path) if path.exists() else None


def _reached(target: float | None, reward: float | None) -> bool:
    return target is not None and reward is not None and reward >= target


def _locate(path: str) -> tuple[Path, Path]:
    """Folder and file of a stored plan."""
    if not path:
        raise ConfigError("`doppler run` needs a plan: doppler run results/latest/plan.json")
    given = Path(path)
    plan = given / PLAN_FILE if given.is_dir() else given
    if not plan.exists():
        raise ConfigError(f"there is no plan at {str(plan)!r}")
    return plan.parent, plan


def _resolved(config: RunConfig, command: Sequence[str], source: Path) -> RunConfig:
    """Settings whose job and seed are those of the plan's folder, but for what the command sets.

    Naming a job (`job=NAME`) leaves the folder's job aside.
    """
    keys = overridden_keys(command)
    stored = source / CONFIG_FILE
    if "job" in keys or not stored.exists():
        return dataclasses.replace(config, job=resolve_any_job(config.job, keys))
    try:
        document: Any = OmegaConf.load(stored)
        schema = _schema_of(document["job"])
        job = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), document["job"]))
        seed = config.seed if "seed" in keys else int(document["seed"])
    except (OSError, YAMLError, OmegaConfBaseException, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"configuration {str(stored)!r} cannot be read: {error}") from error
    assert isinstance(job, AnyJobConfig)
    names = [key.removeprefix("job.") for key in keys if key.startswith("job.")]
    foreign = next((name for name in names if not hasattr(job, name)), None)
    if foreign is not None:
        raise ConfigError(
            f"the plan in {str(source)!r} is for job {job.name!r}, which has no setting "
            f"{foreign!r}: name another job with job=NAME"
        )
    changed = {name: getattr(config.job, name) for name in names}
    return dataclasses.replace(config, job=dataclasses.replace(job, **changed), seed=seed)


def _schema_of(job: Mapping[str, object]) -> type[AnyJobConfig]:
    """The schema whose settings a stored job has; a damaged one is read as deep RL and refused."""
    schemas = {type(choice) for choice in TENSOR_JOBS.values()}
    found = (s for s in schemas if {item.name for item in dataclasses.fields(s)} == set(job))
    return next(found, JobConfig)
