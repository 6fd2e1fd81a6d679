"""The PPO job's graph: counts, input order, loop-carried edges, groups."""

import pytest

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.errors import GraphError
from doppler.core.graph import EdgeMode
from doppler.core.job_mode import JobMode
from doppler.core.plan import make_plan
from doppler.core.problem import Objective, Problem
from doppler.graphs.drl_job import DRLJobShape, build_drl_job
from doppler.graphs.job_rows import OpSize
from simulator.compiled import CompiledRuntime
from simulator.scorer import CompiledScorer


def sizes(shape):
    """Sizes that differ by segment where a real job's do."""
    outputs = {
        "rollout": (64, 16),
        "infer": (32, 8),
        "env_step": (16, 8),
        "advantage": (64, 8),
        "collect": (8, 8),
        "grad": (8,) * shape.num_segments + (32,),
        "reduce": (8, 8),
        "adam": (8,),
        "broadcast": (16,),
    }
    return lambda kind, at: OpSize(outputs=outputs[kind], state_bytes=100 + (at or (0,))[-1])


def build(**changes):
    shape = DRLJobShape(**changes)
    return shape, build_drl_job("job", shape, sizes(shape))


def test_default_job_has_the_counts_worked_out_by_hand():
    # 6 x 2 rollouts + 6 advantages + 1 collect + 8 updates x (4 grads + 2 reduces + 2 adams) + 1
    _, graph = build()
    assert graph.num_ops == 12 + 6 + 1 + 8 * 8 + 1 == 84
    assert {group.name for group in graph.groups} == {
        *(f"env[{k}]" for k in range(6)),
        *(f"optimizer[{j}]" for j in range(2)),
    }
    assert len(graph.group_members["optimizer[0]"]) == 8


def test_unrolled_job_has_two_ops_per_shard_and_step():
    _, graph = build(fused=False, num_shards=2, horizon=4, chunk=4)
    assert sum(op.kind == "infer" for op in graph.ops) == 8
    assert sum(op.kind == "env_step" for op in graph.ops) == 8


def names_of_inputs(graph, name):
    op = graph.op_ids[name]
    return [
        (graph.ops[graph.edges[e].src].name, graph.edges[e].output, graph.edges[e].distance)
        for e in graph.in_edges[op]
    ]


def test_inputs_stand_in_the_order_that_kernels_rely_on():
    _, graph = build(num_shards=2, num_trainers=2)
    assert names_of_inputs(graph, "rollout[1,0]") == [("broadcast", 0, 1), ("rollout[1,1]", 1, 1)]
    assert names_of_inputs(graph, "rollout[1,1]") == [("broadcast", 0, 1), ("rollout[1,0]", 1, 0)]
    assert names_of_inputs(graph, "advantage[0]") == [
        ("broadcast", 0, 1),
        ("rollout[0,0]", 0, 0),
        ("rollout[0,1]", 0, 0),
        ("rollout[0,1]", 1, 0),
    ]
    assert names_of_inputs(graph, "grad[0,0,1]") == [
        ("adam[3,1,0]", 0, 1),
        ("adam[3,1,1]", 0, 1),
        ("advantage[0]", 0, 0),
        ("advantage[1]", 0, 0),
        ("collect", 0, 0),
    ]
    assert names_of_inputs(graph, "adam[0,1,1]") == [
        ("reduce[0,1,1]", 0, 0),
        ("reduce[0,1,0]", 1, 0),
        ("reduce[0,1,1]", 1, 0),
    ]
    assert names_of_inputs(graph, "broadcast") == [
        ("adam[3,1,0]", 0, 0),
        ("adam[3,1,1]", 0, 0),
        ("collect", 1, 0),
    ]


def test_exact_advantages_read_the_weights_of_the_iteration_before_in_asynchronous_mode():
    modes = {}
    for exact in (False, True):
        _, graph = build(mode=JobMode.asynchronous, staleness=2, exact_advantages=exact)
        op = graph.op_ids["advantage[0]"]
        edge = graph.edges[graph.in_edges[op][0]]
        modes[exact] = (edge.distance, edge.mode)
        rollout = graph.edges[graph.in_edges[graph.op_ids["rollout[0,0]"]][0]]
        assert (rollout.distance, rollout.mode) == (3, EdgeMode.latest)
    assert modes == {False: (3, EdgeMode.latest), True: (1, EdgeMode.token)}


def test_only_weights_observations_and_normaliser_are_loop_carried():
    _, graph = build()
    carried = {graph.ops[e.src].kind for e in graph.edges if e.distance}
    assert carried == {"broadcast", "rollout", "adam", "collect"}


def test_a_groups_state_is_the_largest_that_its_ops_name():
    _, graph = build()
    assert {g.name: g.state_bytes for g in graph.groups}["optimizer[1]"] == 101
    assert {g.name: g.state_bytes for g in graph.groups}["env[0]"] == 101  # chunk 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chunk": 3}, "divides the horizon"),
        ({"num_trainers": 0}, "num_trainers is at least 1"),
        ({"mode": JobMode.asynchronous}, "staleness is at least 1 in asynchronous mode"),
        ({"staleness": 1}, "it is 1 in synchronous mode"),
        ({"mode": JobMode.serving, "staleness": -1}, "it is -1 in serving mode"),
    ],
)
def test_impossible_shapes_are_refused(changes, message):
    with pytest.raises(GraphError, match=message):
        DRLJobShape(**changes)


def test_the_synchronous_graph_is_what_stored_plans_were_made_for():
    assert build()[1].digest == "c94d6883e8121d87a67ca724d2312680"
    unrolled = build(fused=False, num_shards=2, horizon=4, chunk=4)[1]
    assert unrolled.digest == "d340ffd1a9085f18b89d2de25c94ff30"


@pytest.mark.parametrize("fused", [True, False])
def test_asynchronous_differs_in_the_edges_of_the_weights_only(fused):
    _, sync = build(fused=fused)
    _, free = build(fused=fused, mode=JobMode.asynchronous, staleness=2)
    assert sync.ops == free.ops
    assert sync.groups == free.groups
    assert free.window == 4
    for before, after in zip(sync.edges, free.edges, strict=True):
        if sync.ops[before.src].kind == "broadcast":
            assert (before.distance, before.mode) == (1, EdgeMode.token)
            assert (after.distance, after.mode) == (3, EdgeMode.latest)
        else:
            assert before == after


@pytest.mark.parametrize("fused", [True, False])
def test_serving_collects_with_a_fixed_policy(fused):
    _, graph = build(fused=fused, num_shards=2, mode=JobMode.serving)
    kinds = {op.kind for op in graph.ops}
    assert kinds == ({"input", "rollout"} if fused else {"input", "infer", "env_step"})
    policy = graph.ops[graph.op_ids["policy"]]
    assert policy.outputs == (16,)  # as large as a broadcast
    readers = {graph.ops[graph.edges[e].dst].kind for e in graph.out_edges[graph.op_ids["policy"]]}
    assert readers == ({"rollout"} if fused else {"infer"})


def two_cores(graph):
    """Environments on core 0, training on core 1; every op takes 10 ns."""
    devices = tuple(Device(name=f"c{i}", kind="cpu", parent="p", copy_engines=0) for i in (0, 1))
    links = (Link(src="c0", dst="c1"), Link(src="c1", dst="c0"))
    problem = Problem(
        graph=graph,
        cluster=Cluster(name="two", devices=devices, links=links),
        objective=Objective.period,
    )
    rows = tuple((0, 0) if op.is_input else (10, 10) for op in graph.ops)
    placement = tuple(0 if op.kind in ("rollout", "input") else 1 for op in graph.ops)
    plan = make_plan(problem, placement, (0,) * graph.num_ops, "test")
    return problem, make_costs(problem, rows), plan


def test_asynchronous_rollouts_run_beside_training_and_no_staler_than_allowed():
    shape = {"num_shards": 2, "num_trainers": 1, "epochs": 2, "minibatches": 1, "num_segments": 1}
    periods = {}
    for staleness in (0, 1, 2):
        mode = JobMode.asynchronous if staleness else JobMode.synchronous
        problem, costs, plan = two_cores(build(mode=mode, staleness=staleness, **shape)[1])
        scorer = CompiledScorer(problem, costs)
        periods[staleness] = int(scorer.score_plans([plan])[0])
        trace = CompiledRuntime(costs).run(problem, plan, 12)
        behind = {
            span.iteration - 1 - version for span in trace.op_spans for version in span.versions
        }
        if staleness:
            assert behind
            assert max(behind) <= staleness
            assert max(behind) >= 1
    # 4 rollouts on one core; 2 advantages, a collect, 2 x 3 of training, a broadcast on the other.
    # The first shard's advantage runs beside the second shard's rollouts.
    assert periods == {0: 40 + 100 - 10, 1: 100, 2: 100}
