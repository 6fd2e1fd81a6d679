"""What every planner must do, as checks that planners of other packages can run, too.

    check_planner("my_planner", CompiledScorer)

raises `ConformanceError` with the first rule that is broken. A case is a small problem that holds
one difficulty: pins, groups, device kinds, memory for state and for tensors, missing links, inputs
on a device, one device, a loop, a deep-RL job. The rules (`check_case`) are those of
`doppler.planners.base.Planner`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import Costs, make_costs
from doppler.core.errors import CapacityError, DopplerError
from doppler.core.graph import DataflowGraph, InputResidency
from doppler.core.plan import Plan, check_plan
from doppler.core.problem import Objective, Problem
from doppler.core.runtime import INFEASIBLE_NS, Scorer
from doppler.graphs.builder import GraphBuilder
from doppler.graphs.drl_job import DRLJobShape, build_drl_job
from doppler.graphs.job_rows import OpSize
from doppler.planners.base import Budget, Planner
from doppler.planners.registry import get_planner

BUDGET = 24
SEED = 7
_PLENTY_BYTES = 1 << 40
_ANY_BUDGET = 1 << 40

MakeScorer = Callable[[Problem, Costs], Scorer]


class ConformanceError(AssertionError):
    """Raised when a planner breaks a rule; names the planner, the case and the rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One problem that a planner is tried on.

    Attributes:
        label: The difficulty.
        problem, costs: What is placed, and its times.
        refusals_up_to: Largest budget with which a planner may say that nothing it found fits in
            memory (`CapacityError`), where memory is scarce.
        is_job: The graph is a deep-RL job.
    """

    label: str
    problem: Problem
    costs: Costs
    refusals_up_to: int = 0
    is_job: bool = False


def check_planner(
    planner: Planner | str,
    make_scorer: MakeScorer,
    *,
    cases: Iterable[Case] | None = None,
    budget: int = BUDGET,
    refuses_small_budgets: bool = False,
) -> None:
    """Runs a planner on every case.

    Args:
        planner: A registered name, or the function itself.
        make_scorer: Makes the scorer of a problem, such as `simulator.scorer.CompiledScorer`.
        cases: Problems to try; None = all of `conformance_cases`.
        budget: Plans that may be scored per case.
        refuses_small_budgets: The planner is not tried with a budget of 1 plan.

    Raises:
        ConformanceError: If a rule is broken.
        ConfigError: If no planner has that name.
    """
    name = planner if isinstance(planner, str) else getattr(planner, "__name__", repr(planner))
    run = get_planner(planner) if isinstance(planner, str) else planner
    for case in conformance_cases() if cases is None else cases:
        check_case(
            run,
            case,
            make_scorer,
            name=name,
            budget=budget,
            refuses_small_budgets=refuses_small_budgets,
        )


def check_case(
    planner: Planner,
    case: Case,
    make_scorer: MakeScorer,
    *,
    name: str,
    budget: int = BUDGET,
    refuses_small_budgets: bool = False,
) -> None:
    """Checks one planner, called `name` in messages, on one case; else as `check_planner`.

    The plan fits the problem (`check_plan`: pins, groups, device kinds, links), names its maker and
    fits in memory as simulated; equal seeds give equal plans; no more plans than the budget are
    scored, and a budget of 1 gives a plan, too.

    Raises:
        ConformanceError: If a rule is broken.
    """
    where = f"{name} on {case.label}"
    plan, again = (_run(planner, case, make_scorer, budget, where) for _ in range(2))
    _require(plan == again, where, "equal seeds give equal plans")
    if plan is not None:
        _require(bool(plan.source), where, "a plan names its maker")
        (value,) = make_scorer(case.problem, case.costs).score([plan.placement], [plan.priority])
        _require(value < INFEASIBLE_NS, where, "the plan fits in memory")
    if not refuses_small_budgets:
        _run(planner, case, make_scorer, 1, where)


def _run(
    planner: Planner, case: Case, make_scorer: MakeScorer, calls: int, where: str
) -> Plan | None:
    """One run with a fresh scorer and generator; its plan is legal and within the budget.

    None: the planner says that nothing fits in memory, and it may.
    """
    scorer = make_scorer(case.problem, case.costs)
    before = scorer.num_calls
    plan = None
    try:
        plan = planner(case.problem, scorer, Budget(calls), np.random.default_rng(SEED))
        check_plan(case.problem, plan)
    except DopplerError as error:
        may_refuse = isinstance(error, CapacityError) and calls <= case.refusals_up_to
        if plan is not None or not may_refuse:
            rule = f"a budget of {calls} gives a plan that fits the problem"
            raise ConformanceError(f"{where}: {rule}: {error}") from error
    spent = scorer.num_calls - before
    _require(spent <= calls, where, f"a budget of {calls} is kept, and {spent} were scored")
    return plan


def _require(is_true: bool, where: str, rule: str) -> None:
    if not is_true:
        raise ConformanceError(f"{where}: {rule}")


def conformance_cases() -> tuple[Case, ...]:
    """Returns the small problems that `check_planner` tries, each with one difficulty."""
    small = (
        ("pins", _problem(pins={"s1": "d1", "join": "d0"})),
        ("groups", _problem(group="g", pins={"s0": "d1"})),
        ("device kinds", _problem(device_kinds=("gpu",))),
        ("missing links", _problem(cluster=_cluster(3, islands=True))),
        ("pinned inputs", _problem(inputs=InputResidency.pinned, pins={"x": "d1"})),
        ("one device", _problem(cluster=_cluster(1))),
        ("period", _problem(loop=True, objective=Objective.period)),
    )
    state = _problem(state=(60, 60), cluster=_cluster(2, memory_bytes=115))
    tensors = _problem(own_inputs=True, cluster=_cluster(2, memory_bytes=60))
    tight = (("memory for state", state, 1), ("memory for tensors", tensors, _ANY_BUDGET))
    jobs = (
        ("the PPO job", _job({})),
        ("the PPO job with a pin", _job({"collect": "d1"})),
    )
    return (
        *(Case(label=label, problem=problem, costs=_costs(problem)) for label, problem in small),
        *(
            Case(label=label, problem=problem, costs=_costs(problem), refusals_up_to=most)
            for label, problem, most in tight
        ),
        *(
            Case(label=label, problem=problem, costs=_costs(problem), is_job=True)
            for label, problem in jobs
        ),
    )


def _costs(problem: Problem) -> Costs:
    """Times of 1 to 49 ns, equal in every call; inputs take none."""
    graph, num_devices = problem.graph, problem.cluster.num_devices
    rng = np.random.default_rng(SEED)
    times_VD = rng.integers(1, 50, size=(graph.num_ops, num_devices))
    rows = tuple(
        (0,) * num_devices if op.is_input else tuple(map(int, row))
        for op, row in zip(graph.ops, times_VD, strict=True)
    )
    return make_costs(problem, rows)


def _cluster(
    num_devices: int,
    *,
    memory_bytes: int = _PLENTY_BYTES,
    kinds: Sequence[str] = ("cpu",),
    islands: bool = False,
) -> Cluster:
    """Devices with an egress bus each; `islands`: the last one is joined to none."""
    devices = tuple(
        Device(
            name=f"d{index}",
            kind=kinds[index % len(kinds)],
            parent=f"p{index}",
            memory_bytes=memory_bytes,
        )
        for index in range(num_devices)
    )
    links = tuple(
        Link(src=a.name, dst=b.name, latency_ns=3, bytes_per_s=10**9, buses=(f"out_{a.name}",))
        for a in devices
        for b in devices
        if a is not b and not (islands and devices[-1] in (a, b))
    )
    return Cluster(name="c", devices=devices, links=links)


def _problem(
    *,
    cluster: Cluster | None = None,
    device_kinds: tuple[str, ...] = (),
    group: str | None = None,
    state: tuple[int, ...] = (),
    own_inputs: bool = False,
    inputs: InputResidency = InputResidency.everywhere,
    loop: bool = False,
    pins: dict[str, str] | None = None,
    objective: Objective = Objective.makespan,
) -> Problem:
    """Input x -> s0, s1 -> join, and a step per piece of state; tensors of 1 to 20 bytes.

    `own_inputs`: s1 reads an input of its own, as large as x.
    """
    builder = GraphBuilder("small")
    builder.residency = inputs
    x = builder.input("x", 20)
    y = builder.input("y", 20) if own_inputs else x
    s0 = builder.op("s0", "work", [x], [10], group=group, device_kinds=device_kinds)
    s1 = builder.op("s1", "work", [y], [10], group=group)
    join = builder.op("join", "work", [s0, s1], [10])
    if loop:
        builder.loop(join, s0)
    for index, size in enumerate(state):
        builder.op(f"keeper{index}", "work", [join], [1], group=f"state{index}")
        builder.group(f"state{index}", size)
    return Problem(
        graph=builder.build(),
        cluster=cluster or _cluster(2, kinds=("cpu", "gpu") if device_kinds else ("cpu",)),
        pins=pins or {},
        objective=objective,
    )


def _job(pins: dict[str, str]) -> Problem:
    """A PPO job of three shards on two devices; its objective is the period."""
    outputs = {
        "rollout": (64, 16),
        "advantage": (64, 8),
        "collect": (8, 8),
        "grad": (8, 8, 32),
        "reduce": (8, 8),
        "adam": (8,),
        "broadcast": (16,),
    }

    def size_of(kind: str, at: tuple[int, ...]) -> OpSize:
        return OpSize(outputs=outputs[kind], state_bytes=5)

    shape = DRLJobShape(num_shards=3, horizon=2, chunk=1, num_trainers=2, epochs=1, minibatches=1)
    graph: DataflowGraph = build_drl_job("job", shape, size_of)
    return Problem(graph=graph, cluster=_cluster(2), pins=pins, objective=Objective.period)
