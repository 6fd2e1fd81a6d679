"""What every planner must do, for planners of this project and of others.

`check_planner(name)` raises AssertionError with the rule that is broken.
"""

import numpy as np

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.errors import PlanError
from doppler.core.graph import InputResidency
from doppler.core.plan import check_plan
from doppler.core.problem import Objective, Problem
from doppler.core.runtime import INFEASIBLE_NS
from doppler.graphs.builder import GraphBuilder
from doppler.graphs.drl_job import DRLJobShape, OpSize, build_drl_job
from doppler.planners.base import Budget
from doppler.planners.registry import get_planner
from tests.planners.slow_scorer import SlowScorer

BUDGET = 24


def check_planner(name, make_scorer=SlowScorer):
    """Runs planner `name` on every case and checks plan, mask, determinism, budget and memory."""
    planner = get_planner(name)
    for label, problem, costs in cases(name):
        check_case(planner, f"{name} on {label}", problem, costs, make_scorer)


def check_case(planner, where, problem, costs, make_scorer):
    """Checks one planner on one problem."""
    budget = Budget(4000 if "exhaustive" in where else BUDGET)
    plans = []
    for _ in range(2):
        scorer = make_scorer(problem, costs)
        scorer.num_calls = 0
        plan = planner(problem, scorer, budget, np.random.default_rng(7))
        assert scorer.num_calls <= budget.calls, f"{where}: the budget is exceeded"
        plans.append(plan)
    check_plan(problem, plan)
    assert plan.source, f"{where}: a plan names its maker"
    assert plans[0] == plans[1], f"{where}: equal seeds give equal plans"
    (value,) = make_scorer(problem, costs).score([plan.placement], [plan.priority])
    assert value < INFEASIBLE_NS, f"{where}: the plan does not fit in memory"
    one_call = Budget(1)
    scorer = make_scorer(problem, costs)
    try:
        check_plan(problem, planner(problem, scorer, one_call, np.random.default_rng(7)))
    except (PlanError, ValueError):
        assert "memory" in where or "exhaustive" in where, f"{where}: a budget of 1 gives a plan"
    assert scorer.num_calls <= 1, f"{where}: a budget of 1 is exceeded"


def cases(name):
    """(label, problem, costs) for a planner: small graphs that each hold one difficulty."""
    rows = []
    if name != "dp_only":
        rows += [
            ("pins", _problem(pins={"s1": "d1", "join": "d0"})),
            ("groups", _problem(group="g", pins={"s0": "d1"})),
            ("device kinds", _problem(kinds=("gpu",))),
            ("memory for state", _problem(state=(60, 60), memory=115)),
            ("memory for tensors", _problem(memory=70)),
            ("missing links", _problem(num_devices=3, islands=True)),
            ("pinned inputs", _problem(pinned=True, pins={"x": "d1"})),
            ("one device", _problem(num_devices=1)),
            ("period", _problem(loop=True, objective=Objective.period)),
        ]
    if name != "exhaustive":
        rows += [
            ("the PPO job", _job(Objective.period)),
            ("the PPO job with a pin", _job(Objective.period, {"collect": "d1"})),
        ]
    for label, problem in rows:
        rng = np.random.default_rng(len(label))
        times = rng.integers(1, 50, size=(problem.graph.num_ops, problem.cluster.num_devices))
        op_ns = tuple(
            (0,) * problem.cluster.num_devices if op.is_input else tuple(map(int, row))
            for op, row in zip(problem.graph.ops, times, strict=True)
        )
        yield label, problem, make_costs(problem, op_ns)


def _cluster(num_devices, memory=1 << 40, kinds=("cpu",), islands=False):
    devices = tuple(
        Device(
            name=f"d{index}",
            kind=kinds[index % len(kinds)],
            parent=f"p{index}",
            memory_bytes=memory,
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
    num_devices=2,
    memory=1 << 40,
    kinds=(),
    group=None,
    state=(),
    islands=False,
    pinned=False,
    loop=False,
    pins=None,
    objective=Objective.makespan,
):
    """x -> s0, s1 -> join, and a step per piece of state; tensors of 10 to 20 bytes."""
    builder = GraphBuilder("small")
    if pinned:
        builder.residency = InputResidency.pinned
    x = builder.input("x", 20)
    s0 = builder.op("s0", "work", [x], [10], group=group, device_kinds=kinds)
    s1 = builder.op("s1", "work", [x], [10], group=group)
    join = builder.op("join", "work", [s0, s1], [10])
    if loop:
        builder.loop(join, s0)
    for index, size in enumerate(state):
        builder.op(f"keeper{index}", "work", [join], [1], group=f"state{index}")
        builder.group(f"state{index}", size)
    cluster = _cluster(num_devices, memory, ("cpu", "gpu") if kinds else ("cpu",), islands)
    return Problem(graph=builder.build(), cluster=cluster, pins=pins or {}, objective=objective)


def _job(objective, pins=None):
    shape = DRLJobShape(num_shards=3, horizon=2, chunk=1, num_trainers=2, epochs=1, minibatches=1)
    outputs = {
        "rollout": (64, 16),
        "advantage": (64, 8),
        "collect": (8, 8),
        "grad": (8, 8, 32),
        "reduce": (8, 8),
        "adam": (8,),
        "broadcast": (16,),
    }

    def size_of(kind, at):
        return OpSize(outputs=outputs[kind], state_bytes=5)

    graph = build_drl_job("job", shape, size_of)
    return Problem(graph=graph, cluster=_cluster(2), pins=pins or {}, objective=objective)
