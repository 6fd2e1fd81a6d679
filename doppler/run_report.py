"""The report of a `doppler run`: one plan, how long its iterations took, where the time went."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from doppler.api import score_plan
from doppler.calibration import Calibration
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.trace import Trace
from doppler.learn_run import LEARNED
from doppler.measure import NO_MARGINS, Margins, measured_period_ns, median_interval
from doppler.planners.bounds import lower_bounds
from doppler.real_job import RealJob
from doppler.report.model import PlannerRow, Role, RunReport
from doppler.report.simulator_error import kind_errors, op_errors
from doppler.reporting import (
    cluster_facts,
    job_facts,
    provenance,
    report_interval,
    reward_points,
    shown_traces,
    simulated_trace,
)
from doppler.session import RewardRecord
from executor.probe import ProbeResult


@dataclass(kw_only=True)
class RunHistory:
    """What a run did under the plan that it ends with.

    Attributes:
        problem, plan, trace: Of the longest window, of several the last; None before the first.
        periods_ns: Measured period of every window under that plan.
        margins: What a window leaves out.
        rewards: The job's reward curve, without iterations that the run went back behind.
    """

    problem: Problem | None = None
    plan: Plan | None = None
    trace: Trace | None = None
    periods_ns: list[float] = field(default_factory=list)
    margins: Margins = NO_MARGINS
    rewards: list[RewardRecord] = field(default_factory=list)

    def add(self, problem: Problem, plan: Plan, trace: Trace) -> None:
        """Takes in a window of three iterations or more beside its margins.

        Another plan begins anew.
        """
        if self.trace is None or plan != self.plan or problem is not self.problem:
            self.problem, self.plan, self.trace = problem, plan, trace
            self.periods_ns = []
        if trace.iterations >= self.trace.iterations:
            self.trace = trace
        self.periods_ns.append(measured_period_ns(trace, self.margins))

    def go_back(self, iterations: int) -> None:
        """Forgets the rewards from an iteration on."""
        self.rewards = [record for record in self.rewards if record.iteration < iterations]


def build_run_report(
    job: RealJob,
    history: RunHistory,
    calibration: Calibration,
    *,
    command: Sequence[str],
    seed: int,
    found: ProbeResult,
) -> RunReport | None:
    """Returns the report of a run, None if no window was long enough to show.

    Args:
        job: What ran.
        history: Its windows.
        calibration: Costs for the simulated side.
        command: The exact command line.
        seed: Of the job.
        found: The machine.

    Raises:
        UnknownTimeError: If the cost table lacks an op.
    """
    problem, plan, measured = history.problem, history.plan, history.trace
    if problem is None or plan is None or measured is None:
        return None
    if measured.iterations < problem.graph.window + 2:
        return None
    costs = calibration.table().costs(problem)
    simulated = simulated_trace(problem, plan, costs, measured.iterations)
    shown = shown_traces(problem, plan, simulated, measured, f"plan {plan.source}")
    names = tuple(device.name for device in problem.cluster.devices)
    interval = median_interval(history.periods_ns, np.random.default_rng(seed))
    row = PlannerRow(
        name=plan.source,
        role=Role.learned if plan.source == LEARNED else Role.baseline,
        layout=problem.cluster.name.rpartition("/")[2],
        simulated_ns=score_plan(problem, costs, plan),
        measured=report_interval(interval, len(history.periods_ns)),
        num_simulations=0,
        seconds=0.0,
        lower_bound_ns=lower_bounds(problem, costs).best_ns,
    )
    return RunReport(
        title=f"{job.name} on {problem.cluster.name}",
        objective=problem.objective.value,
        job=job.name,
        job_facts=job_facts(job),
        cluster=problem.cluster.name,
        cluster_facts=cluster_facts(problem, calibration),
        planners=(row,),
        ratios=(),
        curves=(),
        simulated=shown.simulated,
        measured=shown.measured,
        time_tables=shown.time_tables,
        kind_errors=kind_errors(problem.graph, simulated, measured),
        op_errors=op_errors(problem.graph, names, simulated, measured),
        reward=reward_points(history.rewards),
        exploration=None,
        provenance=provenance(command, seed, found),
        notes=(
            "One stored plan was run; its time is the median over windows, one after the other, "
            "with a bootstrap interval.",
            "Simulated times use the cost table that lay beside the plan.",
        ),
    )
