"""From a finished `doppler learn` to its report: rows, curves, charts, errors, provenance."""

import datetime
import hashlib
from dataclasses import asdict
from itertools import accumulate

from doppler.api import simulate
from doppler.core.trace import Trace
from doppler.learn_run import LEARNED, Candidate, LearnRun
from doppler.measure import Interval as MeasuredInterval
from doppler.planners.bounds import lower_bounds
from doppler.provenance import describe_machine, revision, versions
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
from doppler.report.timeline import timeline
from doppler.results import command_text
from doppler.training.config import Stage

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
    simulated = simulate(problem, plan, costs, measured.iterations)
    first = max(1, measured.iterations // 2)
    device_names = tuple(device.name for device in problem.cluster.devices)
    report = RunReport(
        title=f"{run.job.name} on {problem.cluster.name}",
        objective="period",
        job=run.job.name,
        job_facts=_job_facts(run),
        cluster=problem.cluster.name,
        cluster_facts=_cluster_facts(run),
        planners=_planner_rows(run),
        ratios=_ratios(run),
        curves=_curves(run),
        simulated=timeline(
            "Simulated, learned plan",
            problem.graph,
            problem.cluster,
            simulated,
            first,
            GANTT_ITERATIONS,
        ),
        measured=timeline(
            "Measured, learned plan",
            problem.graph,
            problem.cluster,
            measured,
            first,
            GANTT_ITERATIONS,
        ),
        time_tables=tuple(
            TimeTable(
                title=f"{title}, learned plan",
                iterations=window.iterations,
                devices=attribute(problem, plan, trace, window),
            )
            for title, trace in (("Simulated", simulated), ("Measured", measured))
            for window in (steady_window(trace, problem.graph.window),)
        ),
        kind_errors=kind_errors(problem.graph, simulated, measured),
        op_errors=op_errors(problem.graph, device_names, simulated, measured),
        reward=_rewards(run),
        exploration=_exploration(run),
        provenance=_provenance(run),
        notes=_notes(run),
    )
    return report, simulated


def _job_facts(run: LearnRun) -> tuple[Fact, ...]:
    config = run.job.config
    return (
        Fact("environment", config.environment or config.custom_name),
        Fact("environments", f"{config.num_envs} in {config.num_shards} shards"),
        Fact("horizon", f"{config.horizon} steps, {config.chunk} per rollout op"),
        Fact("steps per iteration", str(config.rows)),
        Fact("policy", "-".join(map(str, config.hidden))),
        Fact("PPO", f"{config.epochs} epochs of {config.minibatches} minibatches"),
        Fact("trainers", f"{config.num_trainers} parts, {config.num_segments} segments"),
        Fact("form", "fused" if config.fused else "unrolled"),
        Fact("ops", str(run.job.graph.num_ops)),
    )


def _cluster_facts(run: LearnRun) -> tuple[Fact, ...]:
    return (
        Fact("devices", ", ".join(device.name for device in run.problem.cluster.devices)),
        Fact("publish latency", run.calibration.publish_text),
        *(
            Fact(f"dispatch, {row.cores} core(s)", f"{row.time_ns / 1e3:.1f} us per op")
            for row in run.calibration.dispatch
        ),
    )


def _planner_rows(run: LearnRun) -> tuple[PlannerRow, ...]:
    bound_ns = lower_bounds(run.problem, run.calibration.table().costs(run.problem)).best_ns
    return tuple(
        PlannerRow(
            name=candidate.name,
            role=_role(candidate),
            layout=candidate.layout,
            simulated_ns=candidate.result.value_ns,
            measured=_interval(candidate.measured_ns, candidate.windows),
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


def _interval(measured: MeasuredInterval | None, windows: int) -> Interval | None:
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
                y_label="period (ms)",
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
        y_label="measured period (ms)",
        series=(
            Series(name="window", xs=xs, ys=tuple(w.period_ns / NS_PER_MS for w in windows)),
            Series(name="fastest window so far", xs=xs, ys=tuple(b / NS_PER_MS for b in best)),
        ),
    )


def _rewards(run: LearnRun) -> tuple[RewardPoint, ...]:
    return tuple(
        RewardPoint(
            iteration=record.iteration,
            env_steps=record.env_steps,
            mean_return=record.mean_return,
            reward_per_step=record.reward_per_step,
        )
        for record in run.rewards
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


def _provenance(run: LearnRun) -> Provenance:
    hardware = run.found.hardware
    return Provenance(
        command=command_text(run.command),
        seed=run.config.seed,
        created=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        git_revision=revision(),
        hardware_fingerprint=hashlib.sha256(repr(asdict(hardware)).encode()).hexdigest()[:16],
        hardware=(
            Fact("machine", describe_machine(hardware)),
            *(Fact(finding.name, finding.detail) for finding in run.found.findings),
        ),
        versions=tuple(Fact(name, value) for name, value in versions().items()),
    )


def _notes(run: LearnRun) -> tuple[str, ...]:
    notes = [
        "Simulated periods use the cost table as it was calibrated, before stage III corrected it.",
        f"Stage III changed the plan {run.stage3_switches} times; getting ready took "
        f"{run.stage3_switch_ns / 1e6:.0f} ms in all.",
        "The periods of single plans are medians over 10 windows in turns, with bootstrap "
        "intervals; the ratio comes from interleaved ABBA blocks.",
    ]
    if run.from_cache:
        notes.append("The cost table comes from an earlier run on this machine.")
    return tuple(notes)
