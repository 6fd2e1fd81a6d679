"""Trainers that apply their gradients without waiting: edges, bounds, what a barrier costs."""

import re
from dataclasses import replace

import pytest

from doppler.coordinator.templates import dp_only_devices
from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.errors import GraphError
from doppler.core.graph import EdgeMode
from doppler.core.job_mode import JobMode
from doppler.core.plan import make_plan
from doppler.core.problem import Objective, Problem
from doppler.graphs.drl_job import DRLJobShape, build_drl_job
from doppler.graphs.job_rows import OpSize
from doppler.planners.mask import make_mask
from simulator.compiled import CompiledRuntime
from simulator.runtime import SimPyRuntime
from simulator.scorer import CompiledScorer

OUTPUTS = {
    "rollout": (64, 16),
    "infer": (32, 8),
    "env_step": (16, 8),
    "advantage": (64, 8),
    "collect": (8, 8),
    "grad": (8, 8, 32),
    "reduce": (8, 8),
    "adam": (16,),
    "broadcast": (16,),
}
SMALL = {
    "mode": JobMode.asynchronous,
    "staleness": 2,
    "num_shards": 4,
    "num_trainers": 2,
    "epochs": 1,
    "minibatches": 2,
    "horizon": 8,
    "chunk": 8,
}


def build(**changes):
    shape = DRLJobShape(**{**SMALL, **changes})
    return build_drl_job("job", shape, lambda kind, at: OpSize(outputs=OUTPUTS[kind]))


def edges_into(graph, name):
    return [
        (graph.ops[edge.src].name, edge.output, edge.distance, edge.mode is EdgeMode.latest)
        for edge in (graph.edges[e] for e in graph.in_edges[graph.op_ids[name]])
    ]


@pytest.fixture(scope="module")
def graph():
    return build(independent_trainers=True)


def test_a_trainer_reads_its_own_last_update_and_the_newest_of_the_others(graph):
    assert edges_into(graph, "grad[0,0,1]") == [
        ("adam[0,1,1,0]", 0, 1, False),
        ("adam[0,1,0,0]", 0, 3, True),
        ("adam[0,1,1,1]", 0, 1, False),
        ("adam[0,1,0,1]", 0, 3, True),
        ("advantage[1]", 0, 0, False),
        ("advantage[3]", 0, 0, False),
        ("collect[1]", 0, 0, False),
    ]
    assert edges_into(graph, "grad[0,1,1]")[0] == ("adam[0,0,1,0]", 0, 0, False)
    assert edges_into(graph, "adam[0,0,1,1]") == [
        ("reduce[0,0,1,1]", 0, 0, False),
        ("reduce[0,0,1,0]", 1, 0, False),
        ("reduce[0,0,1,1]", 1, 0, False),
    ]
    assert edges_into(graph, "broadcast[0]") == [
        ("adam[0,1,0,0]", 0, 0, False),
        ("adam[0,1,0,1]", 0, 0, False),
        ("collect[0]", 1, 0, False),
        ("collect[1]", 1, 3, True),
    ]
    assert edges_into(graph, "rollout[3,0]")[0] == ("broadcast[1]", 0, 3, True)


def test_all_trainers_share_the_optimizer_of_a_segment(graph):
    members = {graph.ops[op].name for op in graph.group_members["optimizer[1]"]}
    assert members == {f"adam[0,{b},{m},1]" for b in range(2) for m in range(2)}


def test_nothing_of_one_trainer_waits_for_another_within_an_iteration(graph):
    def trainer_of(name):
        kind, at = re.match(r"([a-z_]+)\[([\d,]+)\]", name).groups()
        numbers = [int(part) for part in at.split(",")]
        place = {"rollout": 0, "advantage": 0, "collect": 0, "broadcast": 0}.get(kind, 2)
        return numbers[place] % 2

    for edge in graph.edges:
        src, dst = graph.ops[edge.src].name, graph.ops[edge.dst].name
        if trainer_of(src) != trainer_of(dst):
            assert (edge.mode, edge.distance) == (EdgeMode.latest, 3)


def test_exact_advantages_read_the_weights_of_the_trainers_iteration_before():
    graph = build(independent_trainers=True, exact_advantages=True)
    assert edges_into(graph, "advantage[2]")[0] == ("broadcast[0]", 0, 1, False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": JobMode.synchronous, "staleness": 0}, "are those of asynchronous jobs"),
        ({"all_reduce": "ring"}, "add no gradients up, .* all_reduce is 'ring'"),
        ({"num_shards": 3}, r"num_shards is a multiple of num_trainers \(2\)"),
    ],
)
def test_what_independent_trainers_cannot_have_is_refused(changes, message):
    with pytest.raises(GraphError, match=message):
        build(independent_trainers=True, **changes)


def on_cores(graph, count=2):
    """DP-only on two cores; with a third one, updates on that."""
    names = [f"c{i}" for i in range(count)]
    devices = tuple(Device(name=name, kind="cpu", parent="p", copy_engines=0) for name in names)
    links = tuple(Link(src=a, dst=b) for a in names for b in names if a != b)
    two = Cluster(
        name="two", devices=devices[:2], links=tuple(k for k in links if "c2" not in (k.src, k.dst))
    )
    mask = make_mask(Problem(graph=graph, cluster=two, objective=Objective.period))
    placement = mask.placement(dp_only_devices(mask)).tolist()
    if count > 2:
        updates = ("reduce", "adam")
        placement = [
            2 if op.kind in updates else device
            for op, device in zip(graph.ops, placement, strict=True)
        ]
    cluster = Cluster(name="cores", devices=devices, links=links)
    problem = Problem(graph=graph, cluster=cluster, objective=Objective.period)
    return problem, make_plan(problem, tuple(placement), (0,) * graph.num_ops, "dp_only")


def test_dp_only_keeps_a_trainer_on_its_device(graph):
    _, plan = on_cores(graph)
    where = {op.name: device for op, device in zip(graph.ops, plan.placement, strict=True)}
    for m in (0, 1):
        own = (f"collect[{m}]", f"broadcast[{m}]", f"grad[0,1,{m}]", f"rollout[{m + 2},0]")
        assert {where[name] for name in own} == {m}
    assert where["adam[0,0,0,1]"] == where["adam[0,0,1,1]"] == 1


def period(independent, cores):
    """Period of two gradients per iteration, of 100 and 900: trainer 0 the slow one first."""
    graph = build(independent_trainers=independent)
    problem, plan = on_cores(graph, cores)

    def time_of(op):
        if op.kind != "grad":
            return 1
        _, b, m = (int(part) for part in op.name[5:-1].split(","))
        return 900 if b == m else 100

    costs = make_costs(problem, tuple((time_of(op),) * cores for op in graph.ops))
    trace = SimPyRuntime(costs).run(problem, plan, 8)
    assert replace(trace, runtime="compiled") == CompiledRuntime(costs).run(problem, plan, 8)
    ages = [span.iteration - 1 - version for span in trace.op_spans for version in span.versions]
    assert max(ages) <= SMALL["staleness"]
    return int(CompiledScorer(problem, costs).score_plans([plan])[0])


def test_trainers_that_are_slow_in_turns_do_not_slow_each_other():
    """A barrier after each gradient waits for the slow one twice: 1800; alone a trainer takes 1000.

    Only where updates have a device of their own: on one that computes gradients, an update waits
    for the gradient that runs there.
    """
    assert 1800 <= period(False, 3) <= 1840
    assert 1000 <= period(True, 3) <= 1040
    assert period(True, 2) > 1700


def test_a_trainer_that_is_always_slow_is_waited_for_after_the_staleness(graph):
    """Iteration i of the fast one waits for version i - 3 of the slow one, and for no later one."""
    problem, plan = on_cores(graph, 3)
    rows = tuple(
        (500 if op.name.startswith("grad") and op.name.endswith("1]") else 1,) * 3
        for op in graph.ops
    )
    trace = CompiledRuntime(make_costs(problem, rows)).run(problem, plan, 12)
    ends = {(s.op, s.iteration): s.end_ns for s in trace.op_spans}
    starts = {(s.op, s.iteration): s.start_ns for s in trace.op_spans}
    fast, slow = (graph.op_ids[name] for name in ("grad[0,0,0]", "adam[0,1,1,0]"))
    # Iterations that the slow one has ended when the fast one begins its next, in a steady state.
    done = [sum(ends[slow, k] <= starts[fast, i] for k in range(12)) for i in range(12)]
    assert [i - count for i, count in enumerate(done)][3:] == [2] * 9
