"""How far the simulator is from the running job: plans that calibration has not seen, measured.

Judged are tables before and after calibration, by the time of every op and by the period of every
plan. All plans are measured in turns, in random order, so that drift of the machine hits all alike.
"""

import dataclasses
import json
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from doppler.api import plan_problem, score_plan, simulate
from doppler.calibration import Calibration
from doppler.calibration_bench import Progress
from doppler.config import AnyJobConfig, CheckSettings
from doppler.core.codecs.fields import encode
from doppler.core.errors import ConfigError
from doppler.core.hardware import Hardware, Processor
from doppler.core.layout import all_cores_layout, per_core_layout
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Problem
from doppler.core.runtime import CostModel
from doppler.core.serialize import write_atomic
from doppler.core.trace import Trace
from doppler.jobs import build_any_job
from doppler.measure import Interval, measured_period_ns, median_interval
from doppler.planners.mask import make_mask
from doppler.provenance import describe_machine
from doppler.real_job import RealJob
from doppler.session import JobSession
from doppler.simple_plans import job_problem, single_plan, spread_plan
from executor.options import ExecutorOptions
from simulator.costs.roofline import RooflineModel
from simulator.hardware.catalogue import load_catalogue
from simulator.hardware.machines import cpu_processor

UNCALIBRATED = "roofline"
PREVIOUS = "previous table"
CALIBRATED = "calibrated"
GENERIC_CORE = "generic_core"
JOB_TYPE = "fp32"
ALL_KINDS = "all"
PLANNERS = (("heft", 1), ("annealing", 300), ("round_robin", 1))
MAX_DRAWS = 1000
PERIOD_ITERATIONS = 6
"""Simulated iterations that op times are read from; the first fills the pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpPoint:
    """Time of one op on one device under one plan, medians over iterations.

    Attributes:
        plan, op, kind, device: Names.
        measured_ns: On the machine.
        predicted_ns: In the simulator, one per model.
    """

    plan: str
    op: str
    kind: str
    device: str
    measured_ns: int
    predicted_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPoint:
    """Period of one plan.

    Attributes:
        plan: Name.
        measured_ns: Median over windows with its 95 % interval.
        predicted_ns: Simulated, one per model.
    """

    plan: str
    measured_ns: Interval
    predicted_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KindCheck:
    """Error of every model for one op kind, or for all of them ("all").

    Attributes:
        kind: Op kind.
        count: Ops on a device under a plan.
        measured_ns: Sum of their measured times.
        median_error: Median of |predicted / measured - 1|, one per model.
        bias: Sum of predicted over sum of measured times, less 1, one per model.
    """

    kind: str
    count: int
    measured_ns: int
    median_error: tuple[float, ...]
    bias: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationCheck:
    """What a check found, as it is stored.

    Attributes:
        job: Name of the job.
        machine: Processors in words.
        seed: Of the plans, of their order and of the job.
        windows: Windows per plan.
        iterations: Iterations per window.
        models: What is judged: before calibration first, after it last.
        kinds: Error per op kind, longest first, "all" at the end.
        plans: Period of every plan.
        ops: Time of every op.
    """

    job: str
    machine: str
    seed: int
    windows: int
    iterations: int
    models: tuple[str, ...]
    kinds: tuple[KindCheck, ...]
    plans: tuple[PlanPoint, ...]
    ops: tuple[OpPoint, ...]

    @property
    def period_errors(self) -> tuple[float, ...]:
        """Median over plans of |simulated / measured period - 1|, one per model."""
        return tuple(
            statistics.median(abs(p.predicted_ns[at] / p.measured_ns.value - 1) for p in self.plans)
            for at in range(len(self.models))
        )


@dataclass(frozen=True, kw_only=True)
class _Model:
    """One way to predict: its problem (links differ) and its times."""

    name: str
    problem: Problem
    costs: CostModel


def check_calibration(
    settings: AnyJobConfig,
    hardware: Hardware,
    calibration: Calibration,
    check: CheckSettings,
    *,
    previous: Calibration | None = None,
    seed: int,
    options: ExecutorOptions,
    progress: Progress,
) -> CalibrationCheck:
    """Measures plans that calibration has not run, and compares them with the simulator.

    Args:
        settings: The job; resolved where it is a class of one's own.
        hardware: As probed, without what calibration says.
        calibration: The table that is judged.
        check: How many plans, and how long.
        previous: An older table of the same job, judged beside it.
        seed: Of the plans, of their order and of the job.
        options: Of the executor.
        progress: Is told what is measured.

    Raises:
        ConfigError: If the job has too few different placements.
    """
    job = build_any_job(settings, seed)
    models = [_uncalibrated(job, hardware)]
    if previous is not None:
        models.append(_measured(PREVIOUS, job, hardware, previous))
    models.append(_measured(CALIBRATED, job, hardware, calibration))
    problem = models[-1].problem
    seen = (single_plan(problem), spread_plan(problem))
    plans = held_out_plans(problem, models[-1].costs, seen, check.plans, seed)
    traces: dict[str, list[Trace]] = {name: [] for name, _ in plans}
    rng = np.random.default_rng(seed)
    iterations = check.iterations + job.margins.num_iterations
    with JobSession(job, problem, options) as session:
        progress("warming up")
        session.run(plans[0][1], iterations)
        for turn in range(check.windows):
            progress(f"window {turn + 1} of {check.windows}, {len(plans)} plans")
            for at in rng.permutation(len(plans)).tolist():
                name, plan = plans[at]
                traces[name].append(session.run(plan, iterations))
    points = [
        (
            PlanPoint(
                plan=name,
                measured_ns=median_interval(
                    [measured_period_ns(t, job.margins) for t in traces[name]], rng
                ),
                predicted_ns=tuple(_period_ns(model, plan) for model in models),
            ),
            _op_points(models, name, plan, traces[name]),
        )
        for name, plan in plans
    ]
    ops = tuple(point for _, rows in points for point in rows)
    return CalibrationCheck(
        job=settings.name,
        machine=describe_machine(hardware),
        seed=seed,
        windows=check.windows,
        iterations=check.iterations,
        models=tuple(model.name for model in models),
        kinds=kind_errors(ops, len(models)),
        plans=tuple(point for point, _ in points),
        ops=ops,
    )


def save_check(path: Path, check: CalibrationCheck) -> None:
    """Writes a check as JSON, whole or not at all."""
    write_atomic(path, json.dumps(encode(check), indent=1, allow_nan=False) + "\n")


def kind_errors(ops: Sequence[OpPoint], num_models: int) -> tuple[KindCheck, ...]:
    """Returns the errors per op kind, longest measured time first, and of all ops at the end.

    Ops that took no measured time are left out.
    """
    kinds: dict[str, list[OpPoint]] = {}
    for point in ops:
        if point.measured_ns > 0:
            kinds.setdefault(point.kind, []).append(point)
    ordered = sorted(kinds.items(), key=lambda row: -sum(p.measured_ns for p in row[1]))
    every = [point for rows in kinds.values() for point in rows]
    return tuple(
        KindCheck(
            kind=kind,
            count=len(rows),
            measured_ns=(measured := sum(point.measured_ns for point in rows)),
            median_error=tuple(
                statistics.median(abs(p.predicted_ns[at] / p.measured_ns - 1) for p in rows)
                for at in range(num_models)
            ),
            bias=tuple(
                sum(point.predicted_ns[at] for point in rows) / measured - 1
                for at in range(num_models)
            ),
        )
        for kind, rows in [*ordered, (ALL_KINDS, every)]
        if rows
    )


def held_out_plans(
    problem: Problem, model: CostModel, seen: Collection[Plan], count: int, seed: int
) -> tuple[tuple[str, Plan], ...]:
    """Returns named plans whose placements differ from each other and from those of `seen`.

    Planners' first, then random ones: HEFT's plan with 10 to 80 % of its units moved.

    Raises:
        ConfigError: If there are not so many placements.
    """
    costs = model.costs(problem)
    taken = {plan.placement for plan in seen}
    rng = np.random.default_rng(seed)
    mask = make_mask(problem)
    found: list[tuple[str, Plan]] = []
    base = plan_problem(problem, costs, "heft", 1, seed).plan
    for draw in range(MAX_DRAWS):
        if draw < len(PLANNERS):
            name, budget = PLANNERS[draw]
            plan = plan_problem(problem, costs, name, budget, seed).plan
        else:
            name = f"random {draw - len(PLANNERS) + 1}"
            devices = mask.devices_of(base.placement)
            for unit in np.flatnonzero(rng.random(mask.num_units) < rng.uniform(0.1, 0.8)):
                devices[unit] = rng.choice(np.flatnonzero(mask.allowed_UD[unit]))
            if not mask.is_legal(devices):
                continue
            placement = tuple(int(device) for device in mask.placement(devices))
            order = tuple(rng.permutation(problem.graph.num_ops).tolist())
            plan = make_plan(problem, placement, order, "random")
        if plan.placement not in taken:
            taken.add(plan.placement)
            found.append((name, plan))
        if len(found) == count:
            return tuple(found)
    raise ConfigError(
        f"a check runs {count} placements that calibration has not seen, and job "
        f"{problem.graph.name!r} on {problem.cluster.name!r} has {len(found)}: lower check.plans"
    )


def _uncalibrated(job: RealJob, hardware: Hardware) -> _Model:
    """The roofline of the catalogue's generic core: what is known before anything is measured."""
    entry = load_catalogue().cpus[GENERIC_CORE]

    def generic(processor: Processor) -> Processor:
        if processor.kind != "cpu":
            return processor
        known = cpu_processor(entry, processor.name, processor.core_ids, JOB_TYPE)
        return dataclasses.replace(
            processor,
            publish_ns=known.publish_ns,
            flop_per_s=known.flop_per_s,
            memory_bytes_per_s=known.memory_bytes_per_s,
            launch_ns=known.launch_ns,
        )

    processors = tuple(generic(processor) for processor in hardware.processors)
    problem = _problem(job, dataclasses.replace(hardware, processors=processors))
    return _Model(name=UNCALIBRATED, problem=problem, costs=RooflineModel())


def _measured(name: str, job: RealJob, hardware: Hardware, table: Calibration) -> _Model:
    problem = _problem(job, table.hardware(hardware))
    problem = dataclasses.replace(problem, cluster=table.cluster(problem.cluster))
    return _Model(name=name, problem=problem, costs=table.table())


def _problem(job: RealJob, hardware: Hardware) -> Problem:
    cpu = next(p for p in hardware.processors if p.kind == "cpu")
    layout = per_core_layout(cpu) if cpu.num_units > 1 else all_cores_layout(cpu)
    return job_problem(job, hardware, layout)


def _on(model: _Model, plan: Plan) -> Plan:
    """The same plan on the model's cluster, whose links have other numbers."""
    return dataclasses.replace(plan, cluster_digest=model.problem.cluster.digest)


def _period_ns(model: _Model, plan: Plan) -> int:
    return score_plan(model.problem, model.costs.costs(model.problem), _on(model, plan))


def _op_points(
    models: Sequence[_Model], name: str, plan: Plan, traces: Sequence[Trace]
) -> list[OpPoint]:
    measured = op_medians_ns(traces)
    predicted = [
        op_medians_ns(
            [
                simulate(
                    model.problem,
                    _on(model, plan),
                    model.costs.costs(model.problem),
                    PERIOD_ITERATIONS,
                )
            ]
        )
        for model in models
    ]
    graph, cluster = models[-1].problem.graph, models[-1].problem.cluster
    return [
        OpPoint(
            plan=name,
            op=graph.ops[op].name,
            kind=graph.ops[op].kind,
            device=cluster.devices[device].name,
            measured_ns=time_ns,
            predicted_ns=tuple(times[op, device] for times in predicted),
        )
        for (op, device), time_ns in measured.items()
    ]


def op_medians_ns(traces: Sequence[Trace]) -> Mapping[tuple[int, int], int]:
    """Returns (op, device) -> median duration, the first iteration of every trace left out.

    Sorted by op, then device. Rounded down.
    """
    durations: dict[tuple[int, int], list[int]] = {}
    for trace in traces:
        first = min(span.iteration for span in trace.op_spans)
        for span in trace.op_spans:
            if span.iteration > first:
                durations.setdefault((span.op, span.device), []).append(span.end_ns - span.start_ns)
    return {key: int(statistics.median(rows)) for key, rows in sorted(durations.items())}
