"""`job.all_reduce=auto`: which composition adds the gradients of a job, simulated, then measured.

The rule: every composition that the trainers and the machine allow is spelled out in the job's
graph, mapped shard by shard (DP-only, the ops of a composition where it wants them) on one device
per core, and simulated with the job's measured op times; compositions that do the same there count
once, and of equal periods the one of fewer ops is first. The best `TOP` are then run in turns, with
`direct` among them. `direct` stays unless another is faster in every round beyond doubt
(`keep_or_leave`), so noise alone never decides.
"""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.table import Table

from doppler.api import make_scorer
from doppler.calibration import load_or_calibrate
from doppler.config import CalibrationSettings, JobConfig
from doppler.console import View
from doppler.core.costs import Costs
from doppler.core.errors import CapacityError, ConfigError, PlanError
from doppler.core.hardware import Hardware
from doppler.core.job_mode import JobMode
from doppler.core.layout import per_core_layout
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Problem
from doppler.graphs.collectives import candidates
from doppler.graphs.gradient_reduction import (
    DIRECT,
    Move,
    Part,
    Total,
    reduction,
    trainer_groups,
)
from doppler.graphs.levels import priorities_of, upward_ranks
from doppler.jobs import AUTO, RLJob, build_job, ppo_config
from doppler.measure import (
    MIN_RATIOS,
    Interval,
    in_turns,
    keep_or_leave,
    measured_period_ns,
    median_interval,
)
from doppler.session import JobSession
from doppler.simple_plans import job_problem, spread_plan
from executor.options import ExecutorOptions
from executor.probe import probe
from simulator.costs.measured import CostEntry, CostTable
from simulator.costs.source import UnknownTimeError

TOP = 3
"""Compositions that are measured, the best simulated ones; `direct` is measured beside them."""
ITERATIONS = 5
"""Iterations of a measured window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """A job with one composition, mapped and simulated.

    Attributes:
        settings: The job's settings with that composition.
        problem: Its graph on one device per core.
        plan: DP-only, with upward ranks as priorities.
        period_ns: Simulated time per iteration.
    """

    settings: JobConfig
    problem: Problem
    plan: Plan
    period_ns: int

    @property
    def name(self) -> str:
        """The composition."""
        return self.settings.all_reduce


def compositions(settings: JobConfig) -> list[str]:
    """Returns the names of all compositions that a job's trainers allow, `direct` first.

    Those that do the same as one before, on devices of one host, are left out.
    """
    if _why_direct(settings):
        return [DIRECT]
    trainers, groups = settings.num_trainers, settings.trainer_groups
    names = [schedule.name for schedule in candidates(trainer_groups(trainers, groups), 1)]
    found: dict[object, str] = {}
    for name in dict.fromkeys([DIRECT, *names]):
        spelled = reduction(name, trainers, groups, settings.num_segments)
        found.setdefault(tuple(tuple(_work(read) for read in row) for row in spelled.weights), name)
    return list(found.values())


def _why_direct(settings: JobConfig) -> str:
    """Returns why there is nothing to choose, empty if there is."""
    if settings.mode is JobMode.serving:
        return "a serving job adds no gradients"
    if settings.num_trainers == 1:
        return "one trainer, nothing to choose"
    if settings.independent_trainers:
        return "independent trainers apply their gradients one by one, nobody adds them"
    return ""


def _work(made: Part | Move | Total) -> object:
    """What is done for a tensor, whatever the order of additions."""
    if isinstance(made, Part):
        return made.trainer
    return made.segment, made.home, frozenset(_work(read) for read in made.inputs)


def rank_compositions(
    jobs: Sequence[tuple[JobConfig, RLJob]],
    hardware: Hardware,
    costs_of: Callable[[JobConfig, Problem], Costs],
) -> tuple[list[Composition], dict[str, str]]:
    """Returns the compositions, fastest first, and why each one that cannot be is not possible.

    Args:
        jobs: The job with every composition.
        hardware: One processor's cores are cut into a device each.
        costs_of: Op times of a problem.
    """
    cpu = next(p for p in hardware.processors if p.kind == "cpu")
    found: list[Composition] = []
    refused: dict[str, str] = {}
    for settings, job in jobs:
        try:
            problem = job_problem(job, hardware, per_core_layout(cpu))
            costs = costs_of(settings, problem)
            priority = priorities_of(upward_ranks(problem, costs), problem.graph)
            placement = spread_plan(problem).placement
            plan = make_plan(problem, placement, tuple(priority.tolist()), "dp_only")
        except (PlanError, CapacityError, UnknownTimeError) as error:
            refused[settings.all_reduce] = str(error)
            continue
        period_ns = int(make_scorer(problem, costs).score_plans([plan])[0])
        found.append(
            Composition(settings=settings, problem=problem, plan=plan, period_ns=period_ns)
        )
    found.sort(key=lambda row: (row.period_ns, row.problem.graph.num_ops))
    return found, refused


def measure_compositions(
    rows: Sequence[Composition], seed: int, options: ExecutorOptions
) -> tuple[list[Interval], int]:
    """Returns the period of each in ns, and the index of the one to run, all run in turns.

    Args:
        rows: With `direct` among them.
        seed: Of the job and of the intervals.
        options: The executor's.
    """
    periods: list[list[float]] = [[] for _ in rows]
    with ExitStack() as stack:
        sessions: list[JobSession] = []
        jobs = [build_job(row.settings, seed) for row in rows]
        for row, job in zip(rows, jobs, strict=True):
            sessions.append(stack.enter_context(JobSession(job, row.problem, options)))
        for index, counts in in_turns(len(rows), MIN_RATIOS):
            margins = jobs[index].margins
            trace = sessions[index].run(rows[index].plan, ITERATIONS + margins.num_iterations)
            if counts:
                periods[index].append(measured_period_ns(trace, margins))
    rng = np.random.default_rng(seed)
    incumbent = next(index for index, row in enumerate(rows) if row.name == DIRECT)
    intervals = [median_interval(values, rng) for values in periods]
    return intervals, keep_or_leave(periods, incumbent)


def with_all_reduce(
    settings: JobConfig,
    calibration: CalibrationSettings,
    cache: Path,
    *,
    seed: int,
    shm_dir: str,
    view: View,
) -> JobConfig:
    """Returns a job's settings with `all_reduce=auto` replaced by the composition to run.

    Args:
        settings: Resolved ones; where they name a composition they are returned as they are.
        calibration: How op times are measured.
        cache: Folder of measured cost tables.
        seed: Of the job.
        shm_dir: Mount for the shared memory.
        view: Shows what was compared.
    """
    if settings.all_reduce != AUTO:
        return settings
    ppo_config(dataclasses.replace(settings, all_reduce=DIRECT), seed)  # the settings are valid
    names = compositions(settings)
    if len(names) == 1:
        why = _why_direct(settings) or "whoever adds, two parts are added once"
        view.line(f"all-reduce: {names[0]} ({why})")
        return dataclasses.replace(settings, all_reduce=names[0])
    options = ExecutorOptions(shm_dir=shm_dir)
    with view.progress("comparing all-reduces", len(names)) as advance:
        measured = _Times(calibration, cache, seed, options, probe(shm_dir=shm_dir).hardware)
        every = [dataclasses.replace(settings, all_reduce=name) for name in names]
        measured.measure(every[0])
        jobs = [(own, build_job(own, seed)) for own in every]
        rows, refused = rank_compositions(jobs, measured.hardware, measured.costs)
        advance(len(names), "simulated")
    if not rows:
        raise ConfigError(f"no all-reduce is possible: {next(iter(refused.values()))}")
    finalists = rows[:TOP] + [row for row in rows[TOP:] if row.name == DIRECT]
    intervals: list[Interval] = []
    chosen = 0
    if any(row.name == DIRECT for row in finalists) and len(finalists) > 1:
        with view.progress("measuring the best", None):
            intervals, chosen = measure_compositions(finalists, seed, options)
    _show(settings, rows, refused, finalists, intervals, view)
    view.line(f"all-reduce: {finalists[chosen].name}")
    return finalists[chosen].settings


class _Times:
    """Measured op times that grow: a composition with ops that no table knows is measured, too."""

    def __init__(
        self,
        calibration: CalibrationSettings,
        cache: Path,
        seed: int,
        options: ExecutorOptions,
        hardware: Hardware,
    ) -> None:
        self.hardware = hardware
        self._calibration = dataclasses.replace(calibration, env_counts=[1.0])
        self._cache, self._seed, self._options = cache, seed, options
        self._table: CostTable | None = None
        self._bare = hardware

    def measure(self, settings: JobConfig) -> None:
        """Measures a job; what was known stays as it is."""
        found, _ = load_or_calibrate(
            settings,
            self._bare,
            self._calibration,
            self._cache,
            seed=self._seed,
            options=self._options,
            progress=lambda note: None,
        )
        if self._table is None:
            self._table, self.hardware = found.table(), found.hardware(self._bare)
            return
        known = {_key_of(entry) for entry in self._table.entries}
        new = [entry for entry in found.table().entries if _key_of(entry) not in known]
        entries = sorted((*self._table.entries, *new), key=_key_of)
        self._table = dataclasses.replace(self._table, entries=tuple(entries))

    def costs(self, settings: JobConfig, problem: Problem) -> Costs:
        """Returns the times of a problem, measured now where they are not known."""
        assert self._table is not None, "measure comes first"
        try:
            return self._table.costs(problem)
        except UnknownTimeError:
            self.measure(settings)
            return self._table.costs(problem)


def _key_of(entry: CostEntry) -> tuple[str, str, int, float, int]:
    return entry.kind, entry.device_kind, entry.cores, entry.share, entry.flop


def _show(
    settings: JobConfig,
    rows: Sequence[Composition],
    refused: dict[str, str],
    finalists: Sequence[Composition],
    intervals: Sequence[Interval],
    view: View,
) -> None:
    """Shows all compositions with what was simulated and measured of them."""
    table = Table(
        title=f"{settings.name}: gradients of {settings.num_trainers} trainers in "
        f"{settings.trainer_groups} groups, {settings.num_segments} segments"
    )
    for heading in ("all-reduce", "ops", "simulated ms", "measured ms"):
        table.add_column(heading, justify="left" if heading == "all-reduce" else "right")
    measured = {row.name: seen for row, seen in zip(finalists, intervals, strict=False)}
    for row in rows:
        seen = measured.get(row.name)
        text = ""
        if seen is not None:
            text = f"{seen.value / 1e6:.2f} [{seen.low / 1e6:.2f}, {seen.high / 1e6:.2f}]"
        table.add_row(row.name, str(row.problem.graph.num_ops), f"{row.period_ns / 1e6:.2f}", text)
    view.show(table)
    for name, reason in refused.items():
        view.line(f"not possible: {name}: {reason}")
