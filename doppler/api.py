"""The library's front door: place a graph, compare planners, simulate a plan, run a job."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import networkx
import numpy as np

from doppler.core.cluster import Cluster
from doppler.core.costs import Costs
from doppler.core.errors import ConfigError
from doppler.core.graph import DataflowGraph
from doppler.core.plan import Plan, check_plan
from doppler.core.problem import Objective, Problem
from doppler.core.trace import Trace
from doppler.graphs.networkx_import import from_networkx
from doppler.planners.base import Budget, Planner
from doppler.planners.bounds import LowerBounds, bounds_within, lower_bounds
from doppler.planners.learned import LearnedPlanner
from doppler.planners.registry import get_planner
from doppler.training.config import LearnedMode, Start
from executor.job_spec import JobSpec
from executor.options import ExecutorOptions
from executor.runtime import CoreExecutor
from simulator.compiled import CompiledRuntime
from simulator.costs.roofline import RooflineModel
from simulator.noise import Noise
from simulator.replicas import ReplicaScorer, Spread
from simulator.scorer import CompiledScorer

LEARNED = "learned"
DEFAULT_BUDGET = 3000
UNLIMITED = 1 << 40
"""Plans of a budget that only time ends."""
DEFAULT_PLANNERS = (
    "single_device",
    "round_robin",
    "critical_path",
    "heft",
    "annealing",
    LEARNED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerResult:
    """What one planner made of a problem.

    Attributes:
        planner: Its name.
        plan: Its plan.
        value_ns: Simulated makespan, period rounded up, or 95th percentile of it.
        gap: value / lower bound - 1.
        bound_ns: That lower bound; of a p95 it is the bound of the run without noise.
        bound: Its name (`doppler.planners.bounds.Bound`), empty where there is none.
        num_calls: Plans that it had scored.
        seconds: Wall-clock time that it took.
    """

    planner: str
    plan: Plan
    value_ns: int
    gap: float
    bound_ns: int
    bound: str
    num_calls: int
    seconds: float


def make_problem(
    graph: DataflowGraph | networkx.DiGraph,
    cluster: Cluster,
    *,
    pins: Mapping[str, str] | None = None,
    memory_headroom: float = 0.0,
    objective: Objective | None = None,
) -> Problem:
    """Returns the placement problem of a graph on a cluster.

    Args:
        graph: A dataflow graph, or a networkx graph as `doppler.graphs.networkx_import` reads it.
        cluster: The devices.
        pins: Op name -> device name.
        memory_headroom: Part of each device's memory that is left free.
        objective: None = period where the graph is loop-carried, else makespan.
    """
    dataflow = from_networkx(graph) if isinstance(graph, networkx.DiGraph) else graph
    if objective is None:
        objective = Objective.period if dataflow.is_cyclic else Objective.makespan
    return Problem(
        graph=dataflow,
        cluster=cluster,
        pins=dict(pins or {}),
        memory_headroom=memory_headroom,
        objective=objective,
    )


def place(
    graph: DataflowGraph | networkx.DiGraph,
    cluster: Cluster,
    *,
    planner: str = LEARNED,
    mode: LearnedMode | None = None,
    budget: int | None = None,
    seconds: float | None = None,
    costs: Costs | None = None,
    pins: Mapping[str, str] | None = None,
    objective: Objective | None = None,
    noise: Noise | None = None,
    seed: int = 0,
) -> Plan:
    """Returns the best plan that a planner finds.

    Args:
        graph: What is placed.
        cluster: Where to.
        planner: Name of a planner.
        mode: Of the learned planner, how it spends its budget; None = polish.
        budget: Plans that it may simulate; None = 3000, or no limit where `seconds` is set.
        seconds: Of the learned planner, time that it may take beside the budget. With it, equal
            seeds need not give equal plans.
        costs: Times per op and device; None = the roofline of the cluster's rates.
        pins: Op name -> device name.
        objective: None = period where the graph is loop-carried, else makespan.
        noise: Noise of op times, which the objective p95 needs and the others do not read.
        seed: Seed of everything random.

    Raises:
        ConfigError: If the planner is unknown, another than the learned one is given a mode or
            seconds, these are no time, or the objective is p95 and there is no noise.
        PlanError: If no placement obeys the rules.
        ClusterError: If there are no costs and the cluster names no rates.
    """
    make: str | Planner = planner
    if mode is not None or seconds is not None:
        if planner != LEARNED:
            raise ConfigError(
                f"mode and seconds are settings of planner {LEARNED!r}, and it is {planner!r}"
            )
        check_seconds(seconds)
        make = LearnedPlanner(
            mode=mode or LearnedMode.polish, start=Start.pretrained, seconds=seconds
        )
    if budget is None:
        budget = DEFAULT_BUDGET if seconds is None else UNLIMITED
    problem = make_problem(graph, cluster, pins=pins, objective=objective)
    resolved = resolve_costs(problem, costs)
    return plan_problem(problem, resolved, make, budget, seed, noise=noise).plan


def check_seconds(seconds: float | None) -> None:
    """Refuses what is no time.

    Raises:
        ConfigError: If it is given and not finite and above 0.
    """
    if seconds is not None and not 0.0 < seconds < float("inf"):
        raise ConfigError(f"seconds is finite and above 0, and it is {seconds}")


def compare(
    graph: DataflowGraph | networkx.DiGraph,
    cluster: Cluster,
    *,
    planners: Sequence[str] = DEFAULT_PLANNERS,
    budget: int = DEFAULT_BUDGET,
    costs: Costs | None = None,
    pins: Mapping[str, str] | None = None,
    objective: Objective | None = None,
    noise: Noise | None = None,
    seed: int = 0,
) -> list[PlannerResult]:
    """Returns what each planner makes of one problem at the same budget, best first.

    Arguments and errors are those of `place`.
    """
    problem = make_problem(graph, cluster, pins=pins, objective=objective)
    resolved = resolve_costs(problem, costs)
    return compare_problem(problem, resolved, planners, budget, seed, noise=noise)


def simulate(problem: Problem, plan: Plan, costs: Costs, iterations: int = 1) -> Trace:
    """Returns the simulated trace of a plan.

    Raises:
        PlanError: If the plan does not fit the problem.
    """
    check_plan(problem, plan)
    return CompiledRuntime(costs).run(problem, plan, iterations)


def run(
    problem: Problem,
    plan: Plan,
    spec: JobSpec,
    iterations: int = 1,
    options: ExecutorOptions | None = None,
) -> Trace:
    """Runs a job for real under a plan, one pinned process per core group of this host.

    Args:
        problem: Graph and cluster; its devices are core groups of this machine.
        plan: Where and in which order.
        spec: The job's kernels, such as `doppler.jobs.build_job(...).spec`.
        iterations: Iterations to run.
        options: Polling, memory and deadlines.

    Raises:
        PlanError: If the plan does not fit the problem.
        ExecutionError: If a worker dies, hangs, or a kernel raises.
    """
    with open_executor(spec, problem, options) as executor:
        return executor.run(problem, plan, iterations)


def open_executor(
    spec: JobSpec, problem: Problem, options: ExecutorOptions | None = None
) -> CoreExecutor:
    """Returns what runs a job for real, its workers started; closing it ends them.

    Raises:
        CapacityError: If the machine has too little room for it.
        ClusterError: If a device is none of this machine.
        ExecutionError: If a worker does not start.
    """
    return CoreExecutor(spec, problem, options)


def resolve_costs(problem: Problem, costs: Costs | None) -> Costs:
    """Returns `costs`, or the roofline's where there are none."""
    return RooflineModel().costs(problem) if costs is None else costs


def make_scorer(
    problem: Problem, costs: Costs, threads: int = 1, noise: Noise | None = None, seed: int = 0
) -> CompiledScorer | ReplicaScorer:
    """Returns the scorer of the problem's objective: of one run, or of replicas for p95.

    Raises:
        ConfigError: If the objective is p95 and there is no noise.
    """
    if problem.objective is not Objective.p95 or noise is None:
        return CompiledScorer(problem, costs, threads=threads)
    return ReplicaScorer(problem, costs, noise, seed=seed, threads=threads)


def plan_problem(
    problem: Problem,
    costs: Costs,
    planner: str | Planner,
    budget: int,
    seed: int,
    threads: int = 1,
    noise: Noise | None = None,
    bounds: LowerBounds | None = None,
) -> PlannerResult:
    """Returns what a planner, or the one of that name, makes of a problem; seeds decide all.

    The gap is to the largest of `bounds`; None = the quick ones.
    """
    make = get_planner(planner) if isinstance(planner, str) else planner
    scorer = make_scorer(problem, costs, threads, noise, seed)
    start = time.perf_counter()
    plan = make(problem, scorer, Budget(budget), np.random.default_rng(seed))
    seconds = time.perf_counter() - start
    value_ns = int(scorer.score_plans([plan])[0])
    name = planner if isinstance(planner, str) else plan.source
    found = lower_bounds(problem, costs) if bounds is None else bounds
    return _result(found, name, plan, value_ns, scorer.num_calls - 1, seconds)


def summarise(
    problem: Problem, costs: Costs, planner: str, plan: Plan, num_calls: int, seconds: float
) -> PlannerResult:
    """Returns a plan with its simulated value and its gap to the lower bound."""
    value_ns = score_plan(problem, costs, plan)
    bounds = lower_bounds(problem, costs)
    return _result(bounds, planner, plan, value_ns, num_calls, seconds)


def _result(
    bounds: LowerBounds,
    planner: str,
    plan: Plan,
    value_ns: int,
    num_calls: int,
    seconds: float,
) -> PlannerResult:
    bound_ns, bound = bounds.best_ns, bounds.best
    return PlannerResult(
        planner=planner,
        plan=plan,
        value_ns=value_ns,
        gap=value_ns / bound_ns - 1.0 if bound_ns else 0.0,
        bound_ns=bound_ns,
        bound=bound.value if bound is not None else "",
        num_calls=num_calls,
        seconds=seconds,
    )


def score_plan(problem: Problem, costs: Costs, plan: Plan) -> int:
    """Returns the simulated objective of a plan, in ns."""
    check_plan(problem, plan)
    return int(make_scorer(problem, costs).score_plans([plan])[0])


def plan_spread(problem: Problem, costs: Costs, plan: Plan, noise: Noise, seed: int = 0) -> Spread:
    """Returns how the simulated objective of a plan scatters over replicas drawn from noise."""
    return ReplicaScorer(problem, costs, noise, seed=seed).spread(plan)


def compare_problem(
    problem: Problem,
    costs: Costs,
    planners: Sequence[str],
    budget: int,
    seed: int,
    *,
    threads: int = 1,
    noise: Noise | None = None,
    bound_effort: float = 0.0,
    on_result: Callable[[PlannerResult], None] | None = None,
) -> list[PlannerResult]:
    """Returns what each planner makes of a problem at the same budget, best first.

    Args:
        problem: What is placed.
        costs: Times.
        planners: Names.
        budget: Plans that each may simulate.
        seed: Every planner starts from the same seed.
        threads: Threads that score plans; they change no result.
        noise: Noise of op times, for the objective p95.
        bound_effort: Deterministic seconds that CP-SAT may spend on the lower bound; 0 = the quick
            bounds only.
        on_result: Called after each planner.
    """
    bounds = bounds_within(problem, costs, bound_effort, seed=seed)
    results: list[PlannerResult] = []
    for name in planners:
        result = plan_problem(problem, costs, name, budget, seed, threads, noise, bounds)
        results.append(result)
        if on_result is not None:
            on_result(result)
    return sorted(results, key=lambda result: result.value_ns)
