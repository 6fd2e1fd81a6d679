"""A job on this machine under every layout, template, number of shards and learned plan.

The global batch stays as it is while layout, shards and placement are compared. How large a batch
should be is another question, in which learning has a say: the fastest batch is told beside.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np

from doppler.api import make_scorer, open_executor, simulate
from doppler.config import JobConfig
from doppler.coordinate_cut import Cut, core_cut
from doppler.coordinate_rows import Batch, Row, Verified
from doppler.coordinator.measured_roles import MeasuredRoles, measured_roles
from doppler.coordinator.resource_model import Template
from doppler.coordinator.search import NoSample, Sample
from doppler.coordinator.variants import (
    DRLJob,
    JobCut,
    Refusal,
    Split,
    Variant,
    all_variants,
    make_variant,
)
from doppler.core.costs import Costs, make_costs
from doppler.core.errors import CapacityError, ConfigError, GraphError, WorkerDiedError
from doppler.core.graph import DataflowGraph
from doppler.core.hardware import Hardware
from doppler.core.layout import Layout
from doppler.core.problem import Problem
from doppler.core.trace import Trace
from doppler.jobs import RLJob, build_job
from doppler.measure import (
    in_turns,
    keep_or_leave,
    margins_of,
    measured_period_ns,
    median_interval,
)
from doppler.planners.base import Budget
from doppler.planners.learned import LearnedPlanner
from doppler.training.config import Start
from executor.options import ExecutorOptions
from executor.runtime import CoreExecutor
from simulator.costs.measured import CostTable
from simulator.costs.source import UnknownTimeError

NS_PER_S = 1e9
WARM_UP = 3
"""Iterations that are run first where a window has workers of its own."""


class Coordination:
    """A job on this machine's cores or GPUs, with measured costs.

    Attributes:
        settings: The job.
        hardware: This machine, with the measured latency between parts of a processor.
        cut: How it is cut.
        layouts: GMIs per processor -> layout.
        memory_bytes: Memory of a processor.
    """

    def __init__(
        self,
        settings: JobConfig,
        hardware: Hardware,
        tables: dict[bool, CostTable],
        seed: int,
        cut: Cut | None = None,
        options: ExecutorOptions | None = None,
    ) -> None:
        self.settings = settings
        self.hardware = hardware
        self.cut = cut or core_cut(hardware)
        self.layouts: dict[int, Layout] = dict(self.cut.layouts)
        self.memory_bytes = self.cut.memory_bytes
        self._tables = tables
        self._seed = seed
        self._options = options or ExecutorOptions()

    def batches(self, envs_per_shard: int) -> list[Batch]:
        """Returns the job's batch in its own shards, in half and in twice as many, where it can.

        Where trainers are independent, each has as many shards.
        """
        shards = self.settings.num_shards
        num_envs = envs_per_shard * shards
        alike = self.settings.num_trainers if self.settings.independent_trainers else 1
        counts = sorted({max(1, shards // 2), shards, 2 * shards})
        return [
            Batch(num_envs=num_envs, num_shards=count)
            for count in counts
            if num_envs % count == 0 and count % alike == 0
        ]

    def real_settings(
        self, batch: Batch, fused: bool, num_trainers: int | None = None
    ) -> JobConfig:
        """Returns the job's settings with a batch of another size or cut.

        Other trainers are in as many groups of one size as there can be, the job's at most.
        """
        trainers, groups = num_trainers or self.settings.num_trainers, self.settings.trainer_groups
        if trainers != self.settings.num_trainers:
            groups = next(count for count in range(groups, 0, -1) if trainers % count == 0)
        return dataclasses.replace(
            self.settings,
            num_shards=batch.num_shards,
            envs_per_shard=batch.envs_per_shard,
            fused=fused,
            num_trainers=trainers,
            trainer_groups=groups,
        )

    def real_job(self, batch: Batch, fused: bool, num_trainers: int | None = None) -> RLJob:
        """Returns the job with a batch of another size or cut."""
        return build_job(self.real_settings(batch, fused, num_trainers), self._seed)

    def costs(self, problem: Problem) -> Costs:
        """Returns the measured costs of a problem's graph."""
        fused = any(op.kind == "rollout" for op in problem.graph.ops)
        return self._tables[fused].costs(problem)

    def templates(self, batch: Batch) -> tuple[list[Row], list[Refusal]]:
        """Returns a row per template and layout, and what is not possible."""
        found, refused = all_variants(self._job(batch), self.hardware, self.layouts, self.costs)
        return [self._row(variant, batch) for variant in found], refused

    def learned(self, templates: Sequence[Row], budget: int) -> list[Row]:
        """Returns the plan of the pretrained policy for every layout and form of the graph.

        The policy begins from the templates' plans of the same problem, so in simulation its plan
        is never behind them.

        Args:
            templates: Rows of one batch; equal problems are placed once, and on one GMI there is
                nothing to place.
            budget: Plans to simulate per problem.
        """
        rows: list[Row] = []
        for row in templates:
            problem = row.variant.problem
            is_placed = any(other.variant.problem == problem for other in rows)
            if problem.cluster.num_devices == 1 or is_placed:
                continue
            start = time.perf_counter()
            scorer = make_scorer(problem, self.costs(problem))
            same = (other.variant for other in templates if other.variant.problem == problem)
            planner = LearnedPlanner(
                start=Start.pretrained, first_plans=tuple(variant.plan for variant in same)
            )
            plan = planner(problem, scorer, Budget(budget), np.random.default_rng(self._seed))
            placed = self._row(dataclasses.replace(row.variant, plan=plan), row.batch)
            rows.append(
                dataclasses.replace(
                    placed, simulations=scorer.num_calls, seconds=time.perf_counter() - start
                )
            )
        return rows

    def profile(self, gmis: int, envs: int) -> Sample | NoSample:
        """Returns the simulated profile of DP-only with `envs` environments on each of the GMIs.

        There is none if the job cannot be cut so: its all-reduce does not fit so many trainers, or
        its minibatches do not divide.

        Raises:
            UnknownTimeError: If times of such sizes are not known.
        """
        made = self._dp_only(gmis, envs, self.costs)
        if isinstance(made, NoSample):
            return made
        variant, batch = made
        row = self._row(variant, batch)
        trace = simulate(variant.problem, variant.plan, self.costs(variant.problem), 3)
        return Sample(
            gmis=gmis,
            envs=envs,
            steps_per_s=row.steps_per_s,
            memory_bytes=max(trace.peak_bytes),
        )

    def measured_profile(self, gmis: int, envs: int, iterations: int) -> Sample | NoSample | None:
        """Returns the same as measured on this machine; None if memory runs out.

        Memory runs out where the executor says so, and where the system ends a worker: nobody else
        ends one here. The bytes of a sample are those of tensors; on GPUs they are at least a GMI's
        part of all that the run took of the device's memory, contexts and caches included.
        """
        made = self._dp_only(gmis, envs, self._costs_or_units)
        if isinstance(made, NoSample):
            return made
        variant, batch = made
        problem, plan = variant.problem, variant.plan
        job = self.real_job(batch, True, variant.cut.num_trainers)
        before = self.cut.free_bytes()
        try:
            with open_executor(job.spec, problem, self._options) as executor:
                executor.run(problem, plan, 3)
                margins = margins_of(problem.graph, self.settings.mode)
                trace = executor.run(problem, plan, iterations + margins.num_iterations)
                after = self.cut.free_bytes()
        except (CapacityError, WorkerDiedError):
            return None
        taken = max((before[gpu] - free for gpu, free in after.items()), default=0)
        return Sample(
            gmis=gmis,
            envs=envs,
            steps_per_s=job.env_steps_per_iteration * NS_PER_S / measured_period_ns(trace, margins),
            memory_bytes=max(*trace.peak_bytes, taken // gmis),
        )

    def roles(self, batch: Batch) -> MeasuredRoles:
        """Returns what one copy of the job needs, for the paper's resource model."""
        gmis = max(self.layouts)
        graph = self.real_job(batch, fused=False).graph
        problem = Problem(graph=graph, cluster=self.layouts[gmis].apply(self.hardware))
        return measured_roles(problem, self.costs(problem), gmis)

    def verify(self, rows: Sequence[Row], windows: int, iterations: int) -> Verified:
        """Measures rows on this machine in turns, and chooses one.

        On cores the workers of all rows stay; on GPUs, whose memory their layouts share out in
        full, they are started anew for every window.

        Args:
            rows: At least one of them is a template's.
            windows: Windows per row, after one that warms up.
            iterations: Iterations measured per window, beside its margins (`margins_of`).
        """
        rates: list[list[float]] = [[] for _ in rows]
        failed: dict[int, str] = {}
        jobs = [self.real_job(row.batch, row.variant.cut.fused) for row in rows]
        with ExitStack() as stack:
            executors: dict[tuple[str, str], CoreExecutor] = {}

            def run(index: int, count: int) -> Trace:
                problem, plan = rows[index].variant.problem, rows[index].variant.plan
                if not self.cut.is_on_cores:
                    with open_executor(jobs[index].spec, problem, self._options) as executor:
                        executor.run(problem, plan, WARM_UP)
                        return executor.run(problem, plan, count)
                key = _key(rows[index])
                if key not in executors:
                    opened = open_executor(jobs[index].spec, problem, self._options)
                    executors[key] = stack.enter_context(opened)
                return executors[key].run(problem, plan, count)

            for index, counts in in_turns(len(rows), windows):
                margins = margins_of(rows[index].variant.graph, self.settings.mode)
                if index in failed or not (counts or self.cut.is_on_cores):
                    continue  # on GPUs every window warms up on its own
                try:
                    trace = run(index, iterations + margins.num_iterations)
                except (CapacityError, WorkerDiedError) as error:
                    failed[index] = str(error)
                    executors.pop(_key(rows[index]), None)  # its workers are gone
                    continue
                if counts:
                    steps = jobs[index].env_steps_per_iteration
                    period_ns = measured_period_ns(trace, margins)
                    rates[index].append(steps * NS_PER_S / period_ns)
        return _verified(rows, rates, failed, np.random.default_rng(self._seed))

    def profile_batch(self, gmis: int, envs: int) -> Batch:
        """Returns the batch of a profile: exactly `envs` environments on each of the GMIs.

        Every GMI has as many shards as its part of the job's, or the next fewer that divide them.
        """
        everywhere = gmis * self.cut.num_processors
        own = self._per_gmi(self.settings.num_shards, gmis)
        shards = next(count for count in range(own, 0, -1) if envs % count == 0)
        return Batch(num_envs=everywhere * envs, num_shards=everywhere * shards)

    def _per_gmi(self, count: int, gmis: int) -> int:
        """As many of the job's shards (or trainers) as each GMI gets in a profile, at least one."""
        return max(1, round(count / (gmis * self.cut.num_processors)))

    def _costs_or_units(self, problem: Problem) -> Costs:
        """Measured costs, or a unit of time per op: good enough to order the ops of a profile."""
        try:
            return self.costs(problem)
        except UnknownTimeError:
            row = (1,) * problem.cluster.num_devices
            nothing = (0,) * problem.cluster.num_devices
            return make_costs(
                problem, tuple(nothing if op.is_input else row for op in problem.graph.ops)
            )

    def _job(self, batch: Batch, num_trainers: int | None = None) -> DRLJob:
        """Returns the job in the form that templates map; shards and trainers stay as they are."""

        def build(cut: JobCut) -> DataflowGraph:
            return self.real_job(batch, cut.fused, cut.num_trainers).graph

        return DRLJob(
            name=self.settings.name,
            mode=self.settings.mode,
            steps_per_iteration=batch.num_envs * self.settings.horizon,
            build=build,
            num_shards=batch.num_shards,
            num_trainers=num_trainers or self.settings.num_trainers,
        )

    def _dp_only(
        self, gmis: int, envs: int, costs_of: Callable[[Problem], Costs]
    ) -> tuple[Variant, Batch] | NoSample:
        """DP-only with as many shards and trainers on every GMI: all that run do the same."""
        wanted = 1 if self.settings.independent_trainers else self.settings.num_trainers
        trainers = gmis * self.cut.num_processors * self._per_gmi(wanted, gmis)
        batch = self.profile_batch(gmis, envs)
        try:
            variant = make_variant(
                Template.dp_only,
                Split(gmis),
                self._job(batch, trainers),
                self.hardware,
                self.layouts[gmis],
                costs_of,
            )
        except (ConfigError, GraphError) as error:
            return NoSample(str(error))
        return variant, batch

    def _row(self, variant: Variant, batch: Batch) -> Row:
        start = time.perf_counter()
        scorer = make_scorer(variant.problem, self.costs(variant.problem))
        period_ns = int(scorer.score_plans([variant.plan])[0])
        return Row(
            variant=variant,
            batch=batch,
            steps_per_s=batch.num_envs * self.settings.horizon * NS_PER_S / period_ns,
            simulations=scorer.num_calls,
            seconds=time.perf_counter() - start,
        )


def _key(row: Row) -> tuple[str, str]:
    return row.variant.graph.digest, row.variant.problem.cluster.digest


def _verified(
    rows: Sequence[Row],
    rates: Sequence[Sequence[float]],
    failed: dict[int, str],
    rng: np.random.Generator,
) -> Verified:
    """Chooses among the rows that ran in all windows."""
    alive = [index for index in range(len(rows)) if index not in failed]
    chosen = None
    if alive:
        templates = [index for index in alive if not rows[index].is_learned] or alive
        incumbent = max(templates, key=lambda index: float(np.median(rates[index])))
        periods = [[1 / rate for rate in rates[index]] for index in alive]
        chosen = alive[keep_or_leave(periods, alive.index(incumbent))]
    intervals = (
        None if index in failed else median_interval(values, rng)
        for index, values in enumerate(rates)
    )
    return Verified(rates=tuple(intervals), failed=failed, chosen=chosen)
