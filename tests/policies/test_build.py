"""The arrays of the MDP and the static features against their definitions, written plainly."""

from dataclasses import replace

import numpy as np
import pytest

from doppler.core.costs import make_costs
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.problem import Problem
from doppler.policies.build import build_assignment
from doppler.policies.columns import NodeColumn
from doppler.policies.config import PolicyKind
from doppler.policies.features import device_features, graph_tensors, node_features
from tests.policies.problems import assignment_of, cluster, layered


def with_inputs():
    """An op of two outputs of which one is read twice, an input between the ops, a loop."""
    ops = (
        Op(kind="k", name="a", outputs=(5, 700)),
        Op(kind="input", name="x", outputs=(9,)),
        Op(kind="k", name="b", outputs=(30,), meta_op="m", device_kinds=("cuda",)),
        Op(kind="k", name="c", outputs=(), meta_op="m"),
        Op(kind="k", name="d", outputs=(2,)),
    )
    edges = (
        Edge(0, 1, 3),
        Edge(1, 0, 2),
        Edge(0, 1, 2),
        Edge(0, 0, 4),
        Edge(2, 0, 3),
        Edge(4, 0, 0, 1),
        Edge(4, 0, 4, 1),
    )
    graph = DataflowGraph(name="inputs", ops=ops, edges=edges)
    problem = Problem(graph=graph, cluster=cluster(3))
    rows = tuple((40 + 7 * op, 90 - op, 60) for op in range(len(ops)))
    return problem, make_costs(problem, rows, dispatch_ns=(1, 2, 3))


PAIRS = {
    "plain": layered(0, loops=False),
    "loops": layered(1),
    "groups": layered(2, groups=2, num_devices=2),
    "one device": layered(3, num_devices=1),
    "inputs": with_inputs(),
}


@pytest.mark.parametrize("name", PAIRS)
def test_rows_hold_the_edges_of_every_op_in_the_order_of_the_graph(name):
    problem, costs = PAIRS[name]
    a = build_assignment(problem, costs)
    graph = problem.graph
    local = {op: index for index, op in enumerate(graph.placeable)}
    edges = [
        (local[e.src], local[e.dst], graph.ops[e.src].outputs[e.output], e.distance, e.output)
        for e in graph.edges
        if e.src in local
    ]
    near = list(zip(a.near_op, a.near_bytes, a.near_out, a.near_loop, strict=True))
    tensors = {}
    for op in range(a.num_ops):
        rows = slice(a.in_ptr[op], a.in_ptr[op + 1])
        into = [e for e in edges if e[1] == op and e[3] == 0]
        assert a.in_src[rows].tolist() == [e[0] for e in into]
        assert a.in_bytes[rows].tolist() == [e[2] for e in into]
        for tensor, edge in zip(a.in_tensor[rows].tolist(), into, strict=True):
            assert tensors.setdefault((edge[0], edge[4]), tensor) == tensor
        slots = slice(a.out_ptr[op], a.out_ptr[op + 1])
        out = [e for e in edges if e[0] == op and e[3] == 0]
        assert a.out_dst[slots].tolist() == [e[1] for e in out]
        assert (a.in_src[a.out_in[slots]] == op).all()
        assert a.in_bytes[a.out_in[slots]].tolist() == [e[2] for e in out]
        consumers = [(e[1], e[2], True, e[3] > 0) for e in edges if e[0] == op != e[1]]
        producers = [(e[0], e[2], False, e[3] > 0) for e in edges if e[1] == op != e[0]]
        assert near[a.near_ptr[op] : a.near_ptr[op + 1]] == consumers + producers
    assert sorted(tensors.values()) == list(range(len(tensors)))
    dispatch = np.array(costs.dispatch_ns)
    expected = np.array([costs.op_ns[op] for op in graph.placeable]) + dispatch
    assert a.work * a.unit_ns == pytest.approx(expected)


@pytest.mark.parametrize("name", PAIRS)
def test_columns_of_ops_are_what_their_names_say(name):
    a = assignment_of(PAIRS[name])
    allowed, work, levels = a.allowed, a.mean_work, a.levels
    latency, per_byte = a.mean_link
    comm = latency + a.in_bytes * per_byte
    targets = np.repeat(np.arange(a.num_ops), np.diff(a.in_ptr))
    near = np.repeat(np.arange(a.num_ops), np.diff(a.near_ptr))

    def count(ops, weights=None):
        return np.bincount(ops, weights=weights, minlength=a.num_ops)

    def sizes(classes):
        return np.array([(classes == own).sum() if own >= 0 else 0 for own in classes])

    received, sent = count(targets, comm), count(a.in_src, comm)
    fastest = np.where(allowed, a.work, np.inf).min(axis=1)
    slowest = np.where(allowed, a.work, 0.0).max(axis=1)
    ratio = np.where(allowed, a.work / (work[:, None] + 0.001), 1.0)
    path = levels.critical_path
    plain = {
        NodeColumn.WORK: work,
        NodeColumn.B_LEVEL: levels.b_level,
        NodeColumn.T_LEVEL: levels.t_level,
        NodeColumn.IN_COMM: received,
        NodeColumn.OUT_COMM: sent,
        NodeColumn.LOG_WORK: np.log(work + 0.01),
        NodeColumn.B_LEVEL_SHARE: levels.b_level / path,
        NodeColumn.T_LEVEL_SHARE: levels.t_level / path,
        NodeColumn.LOG_IN_COMM: np.log1p(received),
        NodeColumn.LOG_OUT_COMM: np.log1p(sent),
        NodeColumn.COMM_TO_WORK: np.log((received + sent + 0.01) / (work + 0.01)),
        NodeColumn.FASTEST_RATIO: np.log((fastest + 0.001) / (work + 0.001)),
        NodeColumn.SLOWEST_RATIO: np.log((slowest + 0.001) / (work + 0.001)),
        NodeColumn.LOG_IN_DEGREE: np.log1p(np.diff(a.in_ptr)),
        NodeColumn.LOG_OUT_DEGREE: np.log1p(np.diff(a.out_ptr)),
        NodeColumn.LOG_GROUP_SIZE: np.log1p(sizes(a.group)),
        NodeColumn.LOG_META_SIZE: np.log1p(sizes(a.meta)),
        NodeColumn.ALLOWED_SHARE: allowed.mean(axis=1),
        NodeColumn.LOOP_IN: np.log1p(count(near[a.near_loop & ~a.near_out])),
        NodeColumn.LOOP_OUT: np.log1p(count(near[a.near_loop & a.near_out])),
        NodeColumn.LOOKAHEAD_SHARE: a.lookahead.mean(axis=1) / path,
        NodeColumn.SLACK_SHARE: 1.0 - (levels.b_level + levels.t_level - work) / path,
        NodeColumn.GRAPH_COMM_TO_WORK: np.log(comm.sum() / max(1, len(comm)) + 0.01),
        NodeColumn.GRAPH_PARALLELISM: np.log(work.sum() / path / a.num_devices + 0.01),
        NodeColumn.GRAPH_SPREAD: np.abs(ratio - 1.0).mean(),
        NodeColumn.GRAPH_DEVICES: np.log(a.num_devices),
    }
    table = node_features(a)
    assert set(plain) == set(NodeColumn)
    for column, values in plain.items():
        expected = np.broadcast_to(values, a.num_ops)
        if column < NodeColumn.LOG_WORK:
            expected = (expected - expected.mean()) / (expected.std() + 1e-6)
        assert table[:, column] == pytest.approx(expected, abs=1e-9), column.name


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("kind", list(PolicyKind))
def test_messages_come_from_every_neighbour_and_are_scaled_by_their_number(name, kind):
    a = assignment_of(PAIRS[name])
    graph = graph_tensors(a, kind)
    sources, targets = graph.edge_index.numpy()
    assert (sources == a.near_op).all()
    assert (targets == np.repeat(np.arange(a.num_ops), np.diff(a.near_ptr))).all()
    relation = graph.relation.numpy()
    directed = kind is PolicyKind.improved
    assert (relation == directed * (2 * a.near_out + a.near_loop)).all()
    for op in range(a.num_ops):
        counts = np.bincount(relation[targets == op], minlength=4)
        assert graph.scale[op].numpy() == pytest.approx(np.maximum(counts, 1) ** -0.5)


def test_a_device_that_no_op_may_use_has_no_speed():
    a = assignment_of(PAIRS["plain"])
    allowed = a.allowed.copy()
    allowed[:, 1] = False
    allowed[:3, 2] = False
    found = device_features(replace(a, allowed=allowed))[:, 0]
    mean = (a.work * allowed).sum(axis=1) / allowed.sum(axis=1)
    ratio = (a.work + 0.001) / (mean[:, None] + 0.001)
    assert found == pytest.approx([-np.log(ratio[:, 0].mean()), 0.0, -np.log(ratio[3:, 2].mean())])
