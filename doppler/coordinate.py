"""`doppler coordinate`: which layout, template and number of environments a job should run with.

Every template on every even layout is simulated with the job's measured costs, the best few are
measured on this machine, and the paper's search is compared with the exhaustive one.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from rich.table import Table

from doppler.calibration import cache_folder, load_or_calibrate
from doppler.compose import overridden_keys
from doppler.config import JobConfig
from doppler.console import View
from doppler.coordinate_config import CoordinateConfig
from doppler.coordinator.layouts import even_layout, max_gmis
from doppler.coordinator.resource_model import Template
from doppler.coordinator.search import (
    Sample,
    SearchResult,
    SearchSpace,
    algorithm_1,
    exhaustive,
)
from doppler.coordinator.variants import DRLJob, JobCut, Split, Variant, all_variants, make_variant
from doppler.core.costs import Costs
from doppler.core.graph import DataflowGraph
from doppler.core.hardware import Hardware
from doppler.core.job_mode import JobMode
from doppler.core.layout import Backend, Layout
from doppler.core.problem import Problem
from doppler.jobs import RealJob, build_job, resolve_job
from doppler.measure import Interval, measured_period_ns, median_interval
from executor.options import ExecutorOptions
from executor.probe import probe
from executor.runtime import CoreExecutor
from simulator.compiled import CompiledRuntime
from simulator.costs.measured import CostTable
from simulator.scorer import CompiledScorer

NS_PER_S = 1e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One variant with what it yields.

    Attributes:
        variant: Layout, template and plan.
        num_envs: Environments in all.
        steps_per_s: Simulated control steps per second.
    """

    variant: Variant
    num_envs: int
    steps_per_s: float


class Coordinator:
    """A job on this machine's cores, with measured costs.

    Attributes:
        settings: The job.
        hardware: This machine, with the measured latency between cores.
        layouts: GMIs -> layout.
    """

    def __init__(
        self, settings: JobConfig, hardware: Hardware, tables: dict[bool, CostTable], seed: int
    ) -> None:
        self.settings = settings
        self.hardware = hardware
        self._tables = tables
        self._seed = seed
        cpu = next(p for p in hardware.processors if p.kind == "cpu")
        self.layouts: dict[int, Layout] = {
            gmis: even_layout(hardware, Backend.core_group, gmis)
            for gmis in range(1, max_gmis(cpu, Backend.core_group) + 1)
        }
        self.memory_bytes = cpu.memory_bytes

    def real_job(self, envs_per_shard: int, fused: bool) -> RealJob:
        """Returns the job with another number of environments."""
        settings = dataclasses.replace(self.settings, envs_per_shard=envs_per_shard, fused=fused)
        return build_job(settings, self._seed)

    def job(self, envs_per_shard: int) -> DRLJob:
        """Returns the job in the form that templates map; shards and trainers stay as they are."""

        def build(cut: JobCut) -> DataflowGraph:
            return self.real_job(envs_per_shard, cut.fused).graph

        return DRLJob(
            name=self.settings.name,
            is_serving=self.settings.mode is JobMode.serving,
            steps_per_iteration=self.real_job(envs_per_shard, True).env_steps_per_iteration,
            build=build,
            num_shards=self.settings.num_shards,
            num_trainers=self.settings.num_trainers,
        )

    def costs(self, problem: Problem) -> Costs:
        """Returns the measured costs of a problem's graph."""
        fused = any(op.kind == "rollout" for op in problem.graph.ops)
        return self._tables[fused].costs(problem)

    def rows(self, envs_per_shard: int) -> tuple[list[Row], list[tuple[str, str]]]:
        """Returns every variant at a number of environments, and what is not possible."""
        job = self.job(envs_per_shard)
        found, refused = all_variants(job, self.hardware, self.layouts, self.costs)
        return [self._row(variant, job, envs_per_shard) for variant in found], refused

    def profile(self, gmis: int, envs: int) -> Sample:
        """Returns the simulated profile of DP-only with `envs` environments on each of the GMIs."""
        per_shard = max(1, round(gmis * envs / self.settings.num_shards))
        job = self.job(per_shard)
        variant = make_variant(
            Template.dp_only, Split(gmis), job, self.hardware, self.layouts[gmis], self.costs
        )
        trace = CompiledRuntime(self.costs(variant.problem)).run(variant.problem, variant.plan, 3)
        return Sample(
            gmis=gmis,
            envs=envs,
            steps_per_s=self._row(variant, job, per_shard).steps_per_s,
            memory_bytes=max(trace.peak_bytes),
        )

    def measure(self, row: Row, windows: int, iterations: int, shm_dir: str) -> Interval:
        """Returns the steps per second of a variant on this machine, with its interval."""
        per_shard = row.num_envs // self.settings.num_shards
        job = self.real_job(per_shard, row.variant.cut.fused)
        problem, plan = row.variant.problem, row.variant.plan
        options = ExecutorOptions(shm_dir=shm_dir)
        with CoreExecutor(job.spec, problem, options) as executor:
            executor.run(problem, plan, 3)
            rates = [
                job.env_steps_per_iteration
                * NS_PER_S
                / measured_period_ns(executor.run(problem, plan, iterations))
                for _ in range(windows)
            ]
        return median_interval(rates, np.random.default_rng(self._seed))

    def _row(self, variant: Variant, job: DRLJob, envs_per_shard: int) -> Row:
        scorer = CompiledScorer(variant.problem, self.costs(variant.problem))
        period_ns = int(scorer.score_plans([variant.plan])[0])
        return Row(
            variant=variant,
            num_envs=envs_per_shard * self.settings.num_shards,
            steps_per_s=job.steps_per_iteration * NS_PER_S / period_ns,
        )


def coordinate(config: CoordinateConfig, command: Sequence[str]) -> None:
    """Calibrates, simulates all variants, measures the best, compares the searches."""
    settings = resolve_job(config.job, overridden_keys(command))
    view = View()
    hardware = probe(shm_dir=config.executor.shm_dir).hardware
    options = ExecutorOptions(shm_dir=config.executor.shm_dir)
    tables: dict[bool, CostTable] = {}
    with view.progress("measuring the job's ops", None) as advance:
        for fused in (True, False):
            calibration, _ = load_or_calibrate(
                dataclasses.replace(settings, fused=fused),
                hardware,
                config.calibration,
                cache_folder(config.cost_cache),
                seed=config.seed,
                options=options,
                progress=lambda note: advance(1, note),
            )
            tables[fused] = calibration.table()
            hardware = calibration.hardware(hardware) if fused else hardware
    coordinator = Coordinator(settings, hardware, tables, config.seed)
    counts = sorted(
        {max(1, round(settings.envs_per_shard * c)) for c in config.calibration.env_counts}
    )
    rows: list[Row] = []
    refused: dict[str, str] = {}
    for count in counts:
        found, not_possible = coordinator.rows(count)
        rows += found
        refused.update(not_possible)
    rows.sort(key=lambda row: -row.steps_per_s)
    _show_rows(config, coordinator, rows, view)
    for name, reason in refused.items():
        view.line(f"not possible: {name}: {reason}")
    _show_searches(coordinator, counts, view)


def _show_rows(
    config: CoordinateConfig, coordinator: Coordinator, rows: list[Row], view: View
) -> None:
    table = Table(title=f"{coordinator.settings.name}: layouts and templates, best first")
    for heading in ("template (E+A+T GMIs)", "envs", "batch", "simulated", "measured steps/s"):
        is_name = heading.startswith("template")
        table.add_column(heading, justify="left" if is_name else "right", no_wrap=True)
    for index, row in enumerate(rows):
        measured = ""
        if index < config.verify:
            found = coordinator.measure(
                row, config.windows, config.iterations, config.executor.shm_dir
            )
            measured = f"{found.value:,.0f} [{found.low:,.0f}, {found.high:,.0f}]"
        table.add_row(
            row.variant.name,
            f"{row.num_envs:,}",
            f"{row.num_envs * coordinator.settings.horizon:,}",
            f"{row.steps_per_s:,.0f}",
            measured,
        )
    view.show(table)
    view.line("more environments make a larger batch: compare rates at equal batch only")


def _show_searches(coordinator: Coordinator, counts: Sequence[int], view: View) -> None:
    most = max(coordinator.layouts)
    shards = coordinator.settings.num_shards
    # Times are known up to twice the largest count that was measured, on all GMIs together.
    known = [count for count in counts if count * most <= 2 * max(counts)] or [min(counts)]
    space = SearchSpace(
        gmis=tuple(sorted(coordinator.layouts, reverse=True)),
        envs=tuple(count * shards for count in known),
        gpu_memory_bytes=coordinator.memory_bytes,
    )
    printed = dataclasses.replace(space, as_printed=True)
    all_points = exhaustive(coordinator.profile, _rate, space)
    table = Table(title="GMI-DRL's search against the exhaustive one (DP-only, simulated)")
    for heading in ("search", "GMIs", "envs per GMI", "steps/s", "profiles", "below the best"):
        table.add_column(heading, justify="left" if heading == "search" else "right")
    best = all_points.best
    for name, found in (
        ("algorithm 1", algorithm_1(coordinator.profile, _rate, space)),
        ("algorithm 1 as printed", algorithm_1(coordinator.profile, _rate, printed)),
        ("exhaustive", all_points),
    ):
        table.add_row(name, *_search_cells(found, best.total if best else None))
    view.show(table)


def _search_cells(found: SearchResult, best: float | None) -> tuple[str, ...]:
    top = found.best
    if top is None or top.total is None or best is None:
        return ("-", "-", "nothing found", str(found.num_profiles), "-")
    return (
        str(top.gmis),
        str(top.envs),
        f"{top.total:,.0f}",
        str(found.num_profiles),
        f"{1 - top.total / best:.1%}",
    )


def _rate(sample: Sample) -> float:
    return sample.steps_per_s
