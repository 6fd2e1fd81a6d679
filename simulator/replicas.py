"""Scores plans by a slow tail: the 95th percentile over replicas with noise.

Legend: B plans, R replicas, I iterations, V ops.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from doppler.core.costs import Costs
from doppler.core.errors import ConfigError, PlanError
from doppler.core.plan import Plan, check_plan
from doppler.core.problem import Objective, Problem
from doppler.core.trace import MIN_PERIOD_ITERATIONS
from simulator.engine.lanes import Holds
from simulator.engine.tables import Int64
from simulator.noise import Noise
from simulator.scorer import CompiledScorer

DEFAULT_REPLICAS = 32
PERCENT = 95


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One plan's values over replicas, in ns.

    Attributes:
        mean_ns, std_ns: Mean and standard deviation (of the sample, divided by R - 1).
        p95_ns: Smallest value that at least 95 % of the replicas do not exceed.
        least_ns, largest_ns: Extremes.
        replicas: Number of values.
    """

    mean_ns: float
    std_ns: float
    p95_ns: int
    least_ns: int
    largest_ns: int
    replicas: int


def median_objective(problem: Problem) -> Objective:
    """Returns what p95 is the tail of: the period of a loop-carried graph, else the makespan."""
    if problem.objective is not Objective.p95:
        return problem.objective
    return Objective.period if problem.graph.is_cyclic else Objective.makespan


def percentile_ns(values_R: npt.ArrayLike) -> int:
    """Returns the smallest of the values that at least 95 % of them do not exceed."""
    ordered = np.sort(np.asarray(values_R, np.int64))
    return int(ordered[math.ceil(len(ordered) * PERCENT / 100) - 1])


def spread_of(values_R: npt.ArrayLike) -> Spread:
    """Returns mean, standard deviation and 95th percentile of the values of one plan."""
    values = np.asarray(values_R, np.int64)
    return Spread(
        mean_ns=float(values.mean()),
        std_ns=float(values.std(ddof=1)) if len(values) > 1 else 0.0,
        p95_ns=percentile_ns(values),
        least_ns=int(values.min()),
        largest_ns=int(values.max()),
        replicas=len(values),
    )


class ReplicaScorer:
    """A `Scorer` whose value is the 95th percentile over replicas that are drawn once.

    Every plan meets the same factors (common random numbers), so a difference between two plans is
    one of the plans; the same seed gives the same values in every process and thread count. The
    value of a replica is that of the problem's objective: the makespan of one iteration or the
    period of the second half of `iterations`; for p95 the latter where the graph is loop-carried.

    Attributes:
        problem, costs: What is scored.
        num_calls: Plans scored so far; every one costs `replicas` simulations.

    Raises:
        ConfigError: If `replicas` is below 1 or `iterations` too small for a period.
    """

    def __init__(
        self,
        problem: Problem,
        costs: Costs,
        noise: Noise,
        *,
        replicas: int = DEFAULT_REPLICAS,
        iterations: int = MIN_PERIOD_ITERATIONS,
        seed: int = 0,
        threads: int = 1,
    ) -> None:
        if iterations < MIN_PERIOD_ITERATIONS:
            raise ConfigError(
                f"iterations is at least {MIN_PERIOD_ITERATIONS}, and it is {iterations}"
            )
        objective = median_objective(problem)
        self.problem = problem
        self.costs = costs
        self.num_calls = 0
        self._scorer = CompiledScorer(replace(problem, objective=objective), costs, threads)
        self._op_ns_VD = np.array(costs.op_ns, np.int64)
        rounds = iterations if objective is Objective.period else 1
        self._luck = noise.luck(problem, replicas, rounds, np.random.default_rng(seed))

    def score(
        self,
        placements_BV: npt.ArrayLike,
        priorities_BV: npt.ArrayLike,
        bounds_B: npt.ArrayLike | None = None,
    ) -> Int64:
        """Returns the 95th percentile per plan in ns, int64[B]; bounds stop nothing here.

        Raises:
            PlanError: If a shape is wrong, or a device breaks a range, kind, pin or group.
        """
        placements, priorities = np.asarray(placements_BV), np.asarray(priorities_BV)
        if placements.shape != priorities.shape:
            raise PlanError(
                f"placements and priorities have one shape, and they have {placements.shape} and "
                f"{priorities.shape}"
            )
        return self._percentiles([(p, q, ()) for p, q in zip(placements, priorities, strict=True)])

    def score_plans(self, plans: Sequence[Plan], bounds_B: npt.ArrayLike | None = None) -> Int64:
        """Returns the same as `score` for plans, their holds obeyed.

        Raises:
            PlanError: If a plan does not fit the problem.
        """
        for plan in plans:
            check_plan(self.problem, plan)
        return self._percentiles([(plan.placement, plan.priority, plan.holds) for plan in plans])

    def spread(self, plan: Plan) -> Spread:
        """Returns mean, standard deviation and 95th percentile of one plan.

        Raises:
            PlanError: If the plan does not fit the problem.
        """
        check_plan(self.problem, plan)
        self.num_calls += 1
        return spread_of(self._replicas(plan.placement, plan.priority, plan.holds))

    def _percentiles(self, plans: Sequence[tuple[npt.ArrayLike, npt.ArrayLike, Holds]]) -> Int64:
        self.num_calls += len(plans)
        return np.array([percentile_ns(self._replicas(*plan)) for plan in plans], np.int64)

    def _replicas(self, placement: npt.ArrayLike, priority: npt.ArrayLike, holds: Holds) -> Int64:
        """Values of one plan, int64[R]; `INFEASIBLE_NS` where it does not fit."""
        devices = np.asarray(placement)
        if devices.shape != (len(self._op_ns_VD),):
            raise PlanError(
                f"a placement has one device per op ({len(self._op_ns_VD)}), and this one has "
                f"shape {devices.shape}"
            )
        durations = self._luck.durations_ns(self._op_ns_VD, devices.tolist())
        return self._scorer.score_replicas(placement, priority, durations, holds)
