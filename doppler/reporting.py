"""From a finished `doppler learn` to its report: rows, curves, charts, errors, provenance."""

import datetime
import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate

from doppler.api import simulate
from doppler.calibration import Calibration
from doppler.core.cluster import Cluster
from doppler.core.costs import Costs
from doppler.core.plan import Plan
from doppler.core.problem import Objective, Problem
from doppler.core.trace import Trace
from doppler.learn_run import LEARNED, Candidate, LearnRun
from doppler.measure import Interval as MeasuredInterval
from doppler.passes import back_to_back
from doppler.planners.bounds import lower_bounds
from doppler.provenance import describe_machine, revision, versions
from doppler.real_job import RealJob
from doppler.report.attribution import attribute, steady_window
from doppler.report.model import (
    ExplorationCost,
    Fact,
    Interval,
    LearningCurve,
    PlannerRow,
    Provenance,
    Ratio,
    RewardPoint,
    Role,
    RunReport,
    Series,
    TimeTable,
)
from doppler.report.simulator_error import kind_errors, op_errors
from doppler.report.timeline import Timeline, timeline
from doppler.results import command_text
from doppler.session import RewardRecord
from doppler.training.config import Stage
from executor.host import read_host_cpu
from executor.probe import ProbeResult
from executor.process_needs import oversubscription

GANTT_ITERATIONS = 2
NS_PER_MS = 1e6


def build_report(run: LearnRun) -> tuple[RunReport, Trace]:
    """Returns the report of a run, and the simulated trace that it shows."""
    assert run.comparison is not None
    assert run.learned_plan is not None
    assert run.learned_trace is not None
    problem, plan = run.problem, run.learned_plan
    costs = run.calibration.table().costs(problem)
    measured = run.learned_trace
    simulated = simulated_trace(problem, plan, costs, measured.iterations)
    shown = shown_traces(problem, plan, simulated, measured, "learned plan")
    device_names = tuple(device.name for device in problem.cluster.devices)
    report = RunReport(
        title=f"{run.job.name} on {problem.cluster.name}",
        objective=problem.objective.value,
        job=run.job.name,
        job_facts=job_facts(run.job),
        cluster=problem.cluster.name,
        cluster_facts=cluster_facts(problem, run.calibration),
        planners=_planner_rows(run),
        ratios=_ratios(run),
        curves=_curves(run),
        simulated=shown.simulated,
        measured=shown.measured,
        time_tables=shown.time_tables,
        kind_errors=kind_errors(problem.graph, simulated, measured),
        op_errors=op_errors(problem.graph, device_names, simulated, measured),
        reward=reward_points(run.rewards),
        exploration=_exploration(run),
        provenance=provenance(run.command, run.config.seed, run.found),
        notes=_notes(run),
    )
    return report, simulated


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTraces:
    """Two traces of one plan as a report shows them.

    Attributes:
        simulated, measured: Iterations from the middle of the traces.
        time_tables: Where the time of either goes.
    """

    simulated: Timeline
    measured: Timeline
    time_tables: tuple[TimeTable, ...]


def shown_traces(
    problem: Problem, plan: Plan, simulated: Trace, measured: Trace, name: str
) -> ShownTraces:
    """Returns the charts and tables of two traces of a plan.

    Raises:
        DopplerError: If the traces are shorter than the graph's window and two iterations.
    """
    first = max(1, measured.iterations // 2)

    def shown(title: str, trace: Trace) -> Timeline:
        graph, cluster = problem.graph, problem.cluster
        return timeline(f"{title}, {name}", graph, cluster, trace, first, GANTT_ITERATIONS)

    return ShownTraces(
        simulated=shown("Simulated", simulated),
        measured=shown("Measured", measured),
        time_tables=tuple(
            TimeTable(
                title=f"{title}, {name}",
                iterations=window.iterations,
                devices=attribute(problem, plan, trace, window),
            )
            for title, trace in (("Simulated", simulated), ("Measured", measured))
            for window in (steady_window(trace, problem.graph.window),)
        ),
    )


def simulated_trace(problem: Problem, plan: Plan, costs: Costs, iterations: int) -> Trace:
    """Returns the simulated trace of a plan, passes apart where the job runs them apart."""
    if problem.objective is Objective.makespan:
        return back_to_back([simulate(problem, plan, costs, 1)] * iterations)
    return simulate(problem, plan, costs, iterations)


def job_facts(job: RealJob) -> tuple[Fact, ...]:
    """Returns what a report says of a job."""
    return tuple(Fact(name, value) for name, value in job.facts)


def cluster_facts(problem: Problem, calibration: Calibration) -> tuple[Fact, ...]:
    """Returns what a report says of the devices and the runtime's own cost."""
    return (
        Fact("devices", ", ".join(device.name for device in problem.cluster.devices)),
        *core_facts(problem.cluster),
        Fact("publish latency", calibration.publish_text),
        *(
            Fact(f"dispatch, {row.cores} core(s)", f"{row.time_ns / 1e3:.1f} us per op")
            for row in calibration.dispatch
        ),
    )


def core_facts(cluster: Cluster) -> tuple[Fact, ...]:
    """Returns a fact if a cluster on this host needs more cores than there are, else none."""
    crowd = oversubscription(cluster, len(read_host_cpu().core_ids))
    return (Fact("cores", crowd),) if crowd else ()


def _planner_rows(run: LearnRun) -> tuple[PlannerRow, ...]:
    bound_ns = lower_bounds(run.problem, run.calibration.table().costs(run.problem)).best_ns
    return tuple(
        PlannerRow(
            name=candidate.name,
            role=_role(candidate),
            layout=candidate.layout,
            simulated_ns=candidate.result.value_ns,
            measured=report_interval(candidate.measured_ns, candidate.windows),
            num_simulations=candidate.result.num_calls,
            seconds=candidate.result.seconds,
            lower_bound_ns=bound_ns if candidate.layout == run.layout else None,
        )
        for candidate in run.candidates
    )


def _role(candidate: Candidate) -> Role:
    if candidate.name == LEARNED:
        return Role.learned
    return Role.single_device if candidate.name == "single_device" else Role.baseline


def report_interval(measured: MeasuredInterval | None, windows: int) -> Interval | None:
    """Returns a measured time as a report has it, None where there is none."""
    if measured is None:
        return None
    return Interval(
        value_ns=round(measured.value),
        low_ns=min(round(measured.low), round(measured.value)),
        high_ns=max(round(measured.high), round(measured.value)),
        num_windows=windows,
    )


def _ratios(run: LearnRun) -> tuple[Ratio, ...]:
    assert run.comparison is not None
    ratio = run.comparison.ratio
    label = f"learned over {run.best_baseline} (best baseline)"
    return (Ratio(label=label, value=ratio.value, low=ratio.low, high=ratio.high),)


def _curves(run: LearnRun) -> tuple[LearningCurve, ...]:
    curves: list[LearningCurve] = []
    first = [r for r in run.training_records if r.stage is Stage.imitation]
    if first:
        updates = tuple(float(index) for index in range(len(first)))
        curves.append(
            LearningCurve(
                title="Stage I: imitation of the critical-path teacher",
                x_label="updates",
                y_label="loss (nats per decision)",
                series=(Series(name="loss", xs=updates, ys=tuple(r.loss for r in first)),),
            )
        )
    second = [r for r in run.training_records if r.stage is Stage.simulation]
    if second:
        means = [(float(r.simulations), r.mean_ns) for r in second if r.mean_ns is not None]
        bests = [(float(r.simulations), r.best_ns) for r in second if r.best_ns is not None]
        curves.append(
            LearningCurve(
                title="Stage II: reinforcement learning in the simulator",
                x_label="simulations",
                y_label=f"{run.problem.objective.value} (ms)",
                series=(
                    Series(
                        name="mean of the policy's plans",
                        xs=tuple(x for x, _ in means),
                        ys=tuple(y / NS_PER_MS for _, y in means),
                    ),
                    Series(
                        name="best plan so far",
                        xs=tuple(x for x, _ in bests),
                        ys=tuple(y / NS_PER_MS for _, y in bests),
                    ),
                ),
            )
        )
    if run.system is not None:
        curves.append(_system_curve(run))
    return tuple(curves)


def _system_curve(run: LearnRun) -> LearningCurve:
    assert run.system is not None
    windows = run.system.windows
    xs = tuple(float(window.iteration) for window in windows)
    best = accumulate((window.period_ns for window in windows), min)
    return LearningCurve(
        title="Stage III: reinforcement learning on the running job",
        x_label="iterations of the job",
        y_label=f"measured {run.problem.objective.value} (ms)",
        series=(
            Series(name="window", xs=xs, ys=tuple(w.period_ns / NS_PER_MS for w in windows)),
            Series(name="fastest window so far", xs=xs, ys=tuple(b / NS_PER_MS for b in best)),
        ),
    )


def reward_points(records: Sequence[RewardRecord]) -> tuple[RewardPoint, ...]:
    """Returns the reward curve of a job."""
    return tuple(
        RewardPoint(
            iteration=record.iteration,
            env_steps=record.env_steps,
            mean_return=record.mean_return,
            reward_per_step=record.reward_per_step,
        )
        for record in records
    )


def _exploration(run: LearnRun) -> ExplorationCost | None:
    if run.system is None:
        return None
    return ExplorationCost(
        iterations=run.system.iterations,
        worse_iterations=run.system.worse_iterations,
        extra_ns=run.system.extra_ns,
        learning_seconds=run.system.learning_seconds,
        plan_switches=run.stage3_switches,
    )


def provenance(command: Sequence[str], seed: int, found: ProbeResult) -> Provenance:
    """Returns where a result that is made now comes from."""
    hardware = found.hardware
    return Provenance(
        command=command_text(command),
        seed=seed,
        created=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        git_revision=revision(),
        hardware_fingerprint=hashlib.sha256(repr(asdict(hardware)).encode()).hexdigest()[:16],
        hardware=(
            Fact("machine", describe_machine(hardware)),
            *(Fact(finding.name, finding.detail) for finding in found.findings),
        ),
        versions=tuple(Fact(name, value) for name, value in versions().items()),
    )


def _notes(run: LearnRun) -> tuple[str, ...]:
    notes = [
        "Simulated times use the cost table as it was calibrated, before stage III corrected it.",
        f"Stage III changed the plan {run.stage3_switches} times; getting ready took "
        f"{run.stage3_switch_ns / 1e6:.0f} ms in all.",
        "The times of single plans are medians over 10 windows in turns, with bootstrap "
        "intervals; the ratio comes from interleaved ABBA blocks.",
    ]
    if run.from_cache:
        notes.append("The cost table comes from an earlier run on this machine.")
    return tuple(notes)
