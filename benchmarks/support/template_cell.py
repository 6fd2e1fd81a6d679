"""One job in one mode with one number of environments: executors, measured times, templates."""

import dataclasses
import statistics
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np

from doppler.config import JOBS
from doppler.coordinator.layouts import even_layout
from doppler.coordinator.variants import DRLJob, Variant, all_variants
from doppler.core.costs import Costs
from doppler.core.hardware import Hardware
from doppler.core.job_mode import JobMode
from doppler.core.layout import Backend
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Problem
from doppler.jobs import build_job
from doppler.measure import margins_of, measured_period_ns
from doppler.planners.base import Budget
from doppler.planners.learned import LearnedPlanner
from doppler.simple_plans import job_problem, single_plan, spread_plan
from doppler.training.config import Start
from executor.options import ExecutorOptions
from executor.probe import probe
from executor.runtime import CoreExecutor
from simulator.calibrate import Observation, fit_dispatch_ns, fit_latency_ns, observe
from simulator.costs.measured import CostTable, fit_entries
from simulator.scorer import CompiledScorer

STALENESS = {JobMode.serving: 0, JobMode.synchronous: 0, JobMode.asynchronous: 1}
NUM_SHARDS, NUM_TRAINERS = 6, 4
CORES = 2
WINDOW_NS, MIN_WINDOW, CALIBRATION_TURNS = 150_000_000, 3, 3
LEARNED_BUDGET = 300
NS_PER_S = 1e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """Something to measure: a plan of a variant's problem."""

    name: str
    variant: Variant
    plan: Plan
    predicted: float
    oversubscribed: bool


class CellBench:
    """The executors of one cell, and the times that they gave.

    Attributes:
        executors: By graph and cluster.
        tables: Fused form of the graph or not -> measured costs.
    """

    def __init__(
        self, name: str, mode: JobMode, envs_per_shard: int, seed: int, stack: ExitStack
    ) -> None:
        self._seed = seed
        self._settings = dataclasses.replace(
            JOBS[name],
            envs_per_shard=envs_per_shard,
            num_shards=NUM_SHARDS,
            num_trainers=NUM_TRAINERS,
            mode=mode,
            staleness=STALENESS[mode],
        )
        self._jobs = {
            fused: build_job(dataclasses.replace(self._settings, fused=fused), seed)
            for fused in (True, False)
        }
        self._hardware = probe().hardware
        self._stack = stack
        self.executors: dict[tuple[str, str], CoreExecutor] = {}
        self.tables: dict[bool, CostTable] = {}
        self._publish_ns = 0
        self._calibrate()

    @property
    def steps(self) -> int:
        """Control steps of one iteration."""
        return self._jobs[True].env_steps_per_iteration

    def executor(self, problem: Problem) -> CoreExecutor:
        """Returns the executor of a problem; starts it at the first call."""
        key = problem.graph.digest, problem.cluster.digest
        if key not in self.executors:
            job = self._jobs[is_fused(problem)]
            self.executors[key] = self._stack.enter_context(
                CoreExecutor(job.spec, problem, ExecutorOptions())
            )
        return self.executors[key]

    def rate(self, candidate: Candidate) -> float:
        """Runs one window and returns its steps per second."""
        problem = candidate.variant.problem
        length = max(MIN_WINDOW, round(WINDOW_NS * candidate.predicted / self.steps / NS_PER_S))
        margins = margins_of(problem.graph, self._settings.mode)
        length += margins.num_iterations
        trace = self.executor(problem).run(problem, candidate.plan, length)
        return self.steps * NS_PER_S / measured_period_ns(trace, margins)

    def predict(self, variant: Variant, plan: Plan) -> float:
        """Returns the steps per second of a plan in the simulator, links as measured."""
        links = tuple(
            dataclasses.replace(link, latency_ns=self._publish_ns)
            for link in variant.problem.cluster.links
        )
        cluster = dataclasses.replace(variant.problem.cluster, links=links)
        problem = dataclasses.replace(variant.problem, cluster=cluster)
        same = make_plan(problem, plan.placement, plan.priority, plan.source)
        scorer = CompiledScorer(problem, self._costs(problem))
        return self.steps * NS_PER_S / int(scorer.score_plans([same])[0])

    def templates(self) -> list[Candidate]:
        """Every template: on one and two GMIs, and those that need three on two cores."""
        job = DRLJob(
            name=self._settings.name,
            mode=self._settings.mode,
            steps_per_iteration=self.steps,
            build=lambda cut: self._jobs[cut.fused].graph,
            num_shards=NUM_SHARDS,
            num_trainers=NUM_TRAINERS,
        )
        fitting = variants_on(job, self._hardware, self._costs, (1, CORES))
        known = {variant.template for variant in fitting}
        crowded = variants_on(job, crowd(self._hardware), self._costs, (CORES + 1,))
        more = [
            on_real_cores(variant, self._hardware)
            for variant in crowded
            if variant.template not in known
        ]
        return [
            Candidate(
                name=variant.name,
                variant=variant,
                plan=variant.plan,
                predicted=self.predict(variant, variant.plan),
                oversubscribed=variant in more,
            )
            for variant in fitting + more
        ]

    def placed(self, templates: list[Candidate]) -> list[Candidate]:
        """The policy's plan of every variant that fits; equal problems are placed once.

        The policy begins from the templates' plans of the same problem, as in the coordinator.
        """
        found: list[Candidate] = []
        for candidate in templates:
            problem = candidate.variant.problem
            is_placed = any(c.variant.problem == problem for c in found)
            if candidate.oversubscribed or problem.cluster.num_devices == 1 or is_placed:
                continue
            same = tuple(c.plan for c in templates if c.variant.problem == problem)
            plan = LearnedPlanner(start=Start.pretrained, first_plans=same)(
                problem,
                CompiledScorer(problem, self._costs(problem)),
                Budget(LEARNED_BUDGET),
                np.random.default_rng(self._seed),
            )
            found.append(
                dataclasses.replace(
                    candidate,
                    name=f"policy ({'fused' if is_fused(problem) else 'split'})",
                    plan=plan,
                    predicted=self.predict(candidate.variant, plan),
                )
            )
        return found

    def _costs(self, problem: Problem) -> Costs:
        return self.tables[is_fused(problem)].costs(problem)

    def _calibrate(self) -> None:
        """Runs plans of both forms of the graph in turns, and fits what their traces say."""
        layouts = [even_layout(self._hardware, Backend.core_group, count) for count in (1, CORES)]
        runs: list[tuple[Problem, Plan]] = []
        for fused, job in self._jobs.items():
            one, two = (job_problem(job, self._hardware, layout) for layout in layouts)
            if fused:  # no template splits environment and agent on one GMI
                runs.append((one, single_plan(one)))
            runs += [(two, single_plan(two)), (two, spread_plan(two))]
        observations: dict[bool, list[Observation]] = {True: [], False: []}
        dispatch: dict[bool, dict[tuple[str, int], list[int]]] = {True: {}, False: {}}
        latencies: list[int] = []
        for turn in range(CALIBRATION_TURNS + 1):
            for problem, plan in runs if turn % 2 == 0 else reversed(runs):
                trace = self.executor(problem).run(problem, plan, 3)
                if turn == 0:
                    continue  # warms up
                fused = is_fused(problem)
                observations[fused] += observe(problem, trace, 1)
                latency = fit_latency_ns(problem, trace, 1)
                if latency is not None:
                    latencies.append(latency)
                if len(set(plan.placement)) == 1:
                    device = problem.cluster.devices[0]
                    key = device.kind, len(device.cores)
                    dispatch[fused].setdefault(key, []).append(fit_dispatch_ns(trace, 1))
        self.tables = {
            fused: CostTable(
                entries=fit_entries(observations[fused]),
                dispatch_ns={k: round(statistics.median(v)) for k, v in dispatch[fused].items()},
                provenance={"job": job.name},
            )
            for fused, job in self._jobs.items()
        }
        self._publish_ns = round(statistics.median(latencies)) if latencies else 0


def is_fused(problem: Problem) -> bool:
    return any(op.kind == "rollout" for op in problem.graph.ops)


def variants_on(
    job: DRLJob, hardware: Hardware, costs: Callable[[Problem], Costs], gmis: tuple[int, ...]
) -> list[Variant]:
    layouts = {count: even_layout(hardware, Backend.core_group, count) for count in gmis}
    found, refused = all_variants(job, hardware, layouts, costs)
    assert not refused, refused
    return found


def crowd(hardware: Hardware) -> Hardware:
    """Returns the hardware with a core that is not there: room for one GMI more than cores."""
    (cpu,) = (p for p in hardware.processors if p.kind == "cpu")
    cores = (*cpu.core_ids[:CORES], max(cpu.core_ids) + 1)
    crowded = dataclasses.replace(cpu, num_units=len(cores), core_ids=cores)
    return dataclasses.replace(hardware, name="oversubscribed", processors=(crowded,))


def on_real_cores(variant: Variant, hardware: Hardware) -> Variant:
    """Returns the variant with the first core in place of the one that is not there."""
    (cpu,) = (p for p in hardware.processors if p.kind == "cpu")
    problem = variant.problem
    devices = tuple(
        dataclasses.replace(
            device,
            cores=tuple(core if core in cpu.core_ids else cpu.core_ids[0] for core in device.cores),
        )
        for device in problem.cluster.devices
    )
    cluster = dataclasses.replace(problem.cluster, devices=devices)
    real = dataclasses.replace(problem, cluster=cluster)
    plan = make_plan(real, variant.plan.placement, variant.plan.priority, variant.plan.source)
    return dataclasses.replace(variant, problem=real, plan=plan)
