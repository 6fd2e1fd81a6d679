"""The exact planners: CP-SAT's schedule as a plan, with and without holds, and what is proved.

How the budget is spent: of n calls of the scorer, n - 2 (at most `MAX_HINT_CALLS`) anneal the plan
that the solver starts from, and the last two score the solver's schedule without and with holds.
The solver itself scores nothing. Its effort is a setting of its own; where it is not given, it
grows with the calls, `EFFORT_PER_CALL` deterministic seconds each, so that one number still says
how hard a planner may try. That is far more than a call of the scorer takes.

What an optimum is an optimum of: CP-SAT orders the ops of every device freely and may let a device
wait on purpose. Its bound therefore holds for every plan, with or without holds. A plan whose value
is the bound is optimal among all plans; any other plan here is only the best one that was found.
"""

from dataclasses import dataclass, field
from typing import Protocol, cast

import numpy as np

from doppler.core.costs import Costs
from doppler.core.errors import CapacityError, ConfigError
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Objective, Problem
from doppler.core.runtime import INFEASIBLE_NS, Scorer
from doppler.planners import annealing, heft
from doppler.planners.base import Budget, Planner
from doppler.planners.bounds import lower_bounds
from doppler.planners.cp_sat_holds import holds_of, priority_of
from doppler.planners.cp_sat_period import has_period
from doppler.planners.cp_sat_schedule import ExactSchedule, Hint, solve_schedule
from doppler.planners.cp_sat_solver import SolverSettings, SolveStatus, cp_model
from doppler.planners.evaluator import Evaluator
from doppler.planners.mask import Ints, Mask, make_mask
from doppler.planners.watched import run_within
from simulator.compiled import CompiledRuntime

MAX_HINT_CALLS = 2000
EFFORT_PER_CALL = 1 / 300
MAX_EFFORT = 60.0


class HoldScorer(Scorer, Protocol):
    """A scorer that obeys the holds of plans."""

    def score_plans(self, plans: list[Plan]) -> Ints:
        """Returns the objective of each plan in ns, its holds obeyed; every plan is a call."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What an exact planner proved beside its plan: a plan whose value is the bound is optimal.

    For the objective p95 bound and schedule are those of the run without noise, and nothing is
    proved of the percentile.

    Attributes:
        status: Of the model: `optimal` means that no device could do better even if it waited on
            purpose; the plan may still lose time by working whenever it can.
        bound_ns: No plan is faster, whatever its priorities and holds.
        schedule_ns: Value of the solver's schedule in the model, None without one.
        plan_ns: Value of the plan.
        without_holds_ns: Value of the solver's placement and order without holds, None if that
            was not scored.
        effort: Deterministic seconds that the solver took.
    """

    status: SolveStatus
    bound_ns: int
    schedule_ns: int | None
    plan_ns: int
    without_holds_ns: int | None
    effort: float


def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the best plan of CP-SAT, with holds where they make it faster.

    Raises:
        CapacityError: If no plan that was scored fits in memory.
        ConfigError: If OR-Tools is not installed, or the scorer knows no holds.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    return ExactPlanner()(problem, scorer, budget, rng)


def plan_without_holds(
    problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator
) -> Plan:
    """Returns the best plan of CP-SAT without holds: its order as priorities.

    Raises:
        CapacityError: If no plan that was scored fits in memory.
        ConfigError: If OR-Tools is not installed.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    return ExactPlanner(holds=False, source="exact_no_holds")(problem, scorer, budget, rng)


@dataclass(slots=True, kw_only=True)
class ExactPlanner:
    """A planner that keeps its proof.

    Attributes:
        holds: May the plan have holds (a makespan's plan only)?
        solver: Effort of the solver; None = `EFFORT_PER_CALL` deterministic seconds for every
            call of the budget, at most `MAX_EFFORT`.
        source: Name of the planner in the plan.
        proof: After a call, what was proved.
    """

    holds: bool = True
    solver: SolverSettings | None = None
    source: str = "exact"
    proof: Proof | None = field(default=None)

    def __call__(
        self, problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator
    ) -> Plan:
        """Returns the best plan; see `doppler.planners.base.Planner`.

        Raises:
            CapacityError: If no plan that was scored fits in memory.
            ConfigError: If OR-Tools is not installed, or the scorer knows no holds.
            PlanError: If no placement obeys pins, kinds, groups and links.
        """
        cp_model()
        use_holds = self.holds and not has_period(problem)
        if use_holds and not hasattr(scorer, "score_plans"):
            raise ConfigError(
                f"planner {self.source!r} needs a scorer with score_plans, because its plans have "
                f"holds, and {type(scorer).__name__} has none: planner 'exact_no_holds' needs none"
            )
        mask = make_mask(problem)
        seed = int(rng.integers(2**31 - 1))
        last_call = scorer.num_calls + budget.calls
        calls = min(budget.calls - 2, MAX_HINT_CALLS)
        start = _best_of(annealing.plan, problem, scorer, calls, rng)
        # A percentile over noise is no value of the model, so nothing can be proved of it.
        has_bound = problem.objective is not Objective.p95
        hint = None if start is None or not has_bound else hint_of(mask, scorer.costs, *start)
        bound_ns = lower_bounds(problem, scorer.costs).best_ns
        found = solve_schedule(mask, scorer.costs, bound_ns, self._settings(budget), seed, hint)
        best = _Best(problem, scorer, last_call, self.source)
        best.take(start)
        without_ns = best.score_orders(mask, found)
        if use_holds and without_ns != found.bound_ns:
            best.score_holds(mask, found)
        if best.plan is None:
            best.take(_best_of(heft.plan, problem, scorer, last_call - scorer.num_calls, rng))
        plan = best.result()
        self.proof = Proof(
            status=found.status,
            bound_ns=found.bound_ns,
            schedule_ns=found.value_ns,
            plan_ns=best.value_ns,
            without_holds_ns=without_ns,
            effort=found.effort,
        )
        return plan

    def _settings(self, budget: Budget) -> SolverSettings:
        if self.solver is not None:
            return self.solver
        return SolverSettings(effort=min(MAX_EFFORT, budget.calls * EFFORT_PER_CALL))


def _best_of(
    planner: Planner, problem: Problem, scorer: Scorer, calls: int, rng: np.random.Generator
) -> tuple[Plan, int] | None:
    """The best plan of another planner with its value; None if none fits, or without calls."""
    if calls < 1:
        return None
    evaluator = Evaluator(problem, scorer, Budget(calls), "exact")
    if run_within(planner, problem, scorer, evaluator, calls, rng) is None:
        return None
    return evaluator.plan(), evaluator.best_ns


def hint_of(mask: Mask, costs: Costs, plan: Plan, value_ns: int) -> Hint:
    """Returns the schedule of a plan whose value in ns is known, for the solver to start from."""
    devices_U = mask.devices_of(plan.placement)
    if has_period(mask.problem):
        return Hint(value_ns=value_ns, devices_U=devices_U)
    # The trace of a plan that is scored already: no further plan is tried.
    trace = CompiledRuntime(costs).run(mask.problem, plan, 1)
    end_V = [0] * mask.problem.graph.num_ops
    for span in trace.op_spans:
        end_V[span.op] = span.end_ns
    sends = {(s.op, s.output, s.src, s.dst): s.start_ns for s in trace.transfers}
    return Hint(value_ns=value_ns, devices_U=devices_U, end_V=tuple(end_V), sends=sends)


def plans_of(mask: Mask, costs: Costs, found: ExactSchedule, source: str) -> list[Plan]:
    """Returns the plans of a schedule: its order as priorities, then with holds that keep it.

    There is none without a schedule, and one where no hold is needed or the objective is a period.
    """
    if found.devices_U is None or found.start_V is None:
        return []
    placement = tuple(mask.placement(found.devices_U).tolist())
    priority = tuple(priority_of(mask, costs, found).tolist())
    plans = [make_plan(mask.problem, placement, priority, source)]
    holds = () if found.stream_V is None else holds_of(mask, costs, found)
    if holds:
        plans.append(make_plan(mask.problem, placement, priority, source, holds))
    return plans


class _Best:
    """The best plan so far, holds or none; a plan without holds wins ties."""

    def __init__(self, problem: Problem, scorer: Scorer, last_call: int, source: str) -> None:
        self._problem, self._scorer, self._source = problem, scorer, source
        self._last_call = last_call
        self.plan: Plan | None = None
        self.value_ns = INFEASIBLE_NS

    def take(self, found: tuple[Plan, int] | None) -> None:
        """Keeps a plan with its value in ns if it fits in memory and is faster."""
        if found is not None and found[1] < self.value_ns:
            self.plan, self.value_ns = found

    def score_orders(self, mask: Mask, found: ExactSchedule) -> int | None:
        """Scores the solver's placement and order without holds; returns the value."""
        if found.devices_U is None or found.start_V is None:
            return None
        placement_V = mask.placement(found.devices_U)
        priority_V = priority_of(mask, self._scorer.costs, found)
        return self._score(placement_V, priority_V)

    def score_holds(self, mask: Mask, found: ExactSchedule) -> None:
        """Scores the solver's schedule with the holds that keep its order."""
        plans = plans_of(mask, self._scorer.costs, found, self._source)
        if plans and plans[-1].holds and self._remaining >= 1:
            (value,) = cast(HoldScorer, self._scorer).score_plans([plans[-1]])
            self.take((plans[-1], int(value)))

    def result(self) -> Plan:
        """Returns the best plan under the planner's name.

        Raises:
            CapacityError: If no plan that was scored fits in memory.
        """
        if self.plan is None:
            raise CapacityError(
                f"planner {self._source!r} found no plan of graph {self._problem.graph.name!r} "
                f"that fits in the memory of cluster {self._problem.cluster.name!r}"
            )
        best = self.plan
        return make_plan(self._problem, best.placement, best.priority, self._source, best.holds)

    @property
    def _remaining(self) -> int:
        return self._last_call - self._scorer.num_calls

    def _score(self, placement_V: Ints, priority_V: Ints) -> int | None:
        if self._remaining < 1:
            return None
        (value,) = self._scorer.score(placement_V[None, :], priority_V[None, :])
        plan = make_plan(
            self._problem,
            tuple(placement_V.tolist()),
            tuple(priority_V.tolist()),
            self._source,
        )
        self.take((plan, int(value)))
        return int(value)
