"""Following the running job: measured spans correct the cost table, drift triggers re-planning."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from doppler.api import score_plan
from doppler.core.costs import Costs
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.trace import Trace
from doppler.measure import NO_MARGINS, Margins, measured_period_ns
from simulator.calibrate import observe
from simulator.costs.measured import CostTable

DRIFT = 0.15
GAIN = 0.03

RunPlan = Callable[[Plan, int], Trace]
"""Runs the job on for a number of iterations under a plan."""

Replan = Callable[[Problem, Costs, Plan], Plan]
"""Makes a plan for new costs; gets the plan that runs now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRecord:
    """One measured window of the running job.

    Attributes:
        first_iteration: Iterations of the job before it.
        iterations: Its length.
        source: Maker of the plan that ran.
        measured_ns: Measured period.
        predicted_ns: What the simulator said when the plan was made.
        replanned: True if a new plan was adopted after it.
        learning_seconds: Time spent on correcting and planning after it.
    """

    first_iteration: int
    iterations: int
    source: str
    measured_ns: float
    predicted_ns: int
    replanned: bool
    learning_seconds: float


class AdaptiveJob:
    """A running job whose plan follows what is measured.

    After every window the spans correct the cost table. When the measured period leaves the
    predicted one by more than `drift`, or a device has become faster or slower by more than that
    since the plan was made (a device that waits for others does not show in the period), the job
    has drifted. When it has after two windows in a row (one may be an accident), a new plan is made
    for the corrected costs. It is adopted if the simulator says that it is at least 3 % faster than
    the present plan under the same costs.

    Attributes:
        plan: The plan that runs.
        table: The corrected cost table.
        records: Every window so far.
    """

    def __init__(
        self,
        run: RunPlan,
        problem: Problem,
        table: CostTable,
        plan: Plan,
        replan: Replan,
        drift: float = DRIFT,
        first_iteration: int = 0,
        margins: Margins = NO_MARGINS,
    ) -> None:
        self.plan = plan
        self.table = table
        self.records: list[WindowRecord] = []
        self._run = run
        self._margins = margins
        self._problem = problem
        self._replan = replan
        self._drift = drift
        self._planned_costs = table.costs(problem)
        self._predicted_ns = score_plan(problem, self._planned_costs, plan)
        self._done = first_iteration
        self._has_drifted = False

    def step(self, iterations: int) -> Trace:
        """Runs one window, corrects the costs, and re-plans where the job has drifted."""
        trace = self._run(self.plan, iterations)
        start = time.perf_counter()
        measured_ns = measured_period_ns(trace, self._margins)
        source, predicted_ns = self.plan.source, self._predicted_ns
        self.table = self.table.corrected(observe(self._problem, trace, 1))
        replanned = False
        costs = self.table.costs(self._problem)
        changes = [measured_ns / predicted_ns, *device_speeds(self._planned_costs, costs)]
        has_drifted = max(abs(change - 1.0) for change in changes) > self._drift
        if has_drifted and self._has_drifted:
            replanned = self._adapt(costs)
            has_drifted = False
        self._has_drifted = has_drifted
        self.records.append(
            WindowRecord(
                first_iteration=self._done,
                iterations=iterations,
                source=source,
                measured_ns=measured_ns,
                predicted_ns=predicted_ns,
                replanned=replanned,
                learning_seconds=time.perf_counter() - start,
            )
        )
        self._done += iterations
        return trace

    def _adapt(self, costs: Costs) -> bool:
        present_ns = score_plan(self._problem, costs, self.plan)
        candidate = self._replan(self._problem, costs, self.plan)
        candidate_ns = score_plan(self._problem, costs, candidate)
        adopted = candidate_ns < (1.0 - GAIN) * present_ns
        if adopted:
            self.plan = candidate
        self._predicted_ns = candidate_ns if adopted else present_ns
        self._planned_costs = costs
        return adopted


def device_speeds(before: Costs, after: Costs) -> list[float]:
    """Returns per device the time of all ops after over before."""
    totals = [
        [sum(column) for column in zip(*costs.op_ns, strict=True)] for costs in (before, after)
    ]
    return [new / old if old else 1.0 for old, new in zip(*totals, strict=True)]
