"""The PPO job's graph: counts, input order, loop-carried edges, groups."""

import pytest

from doppler.core.errors import GraphError
from doppler.graphs.drl_job import DRLJobShape, OpSize, build_drl_job


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
    [({"chunk": 3}, "divides the horizon"), ({"num_trainers": 0}, "num_trainers is at least 1")],
)
def test_impossible_shapes_are_refused(changes, message):
    with pytest.raises(GraphError, match=message):
        DRLJobShape(**changes)
