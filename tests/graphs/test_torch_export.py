"""A module as a graph: bytes and flop worked out by hand, and what cannot be a graph is refused."""

import subprocess
import sys

import pytest
import torch

from doppler.core.errors import GraphError
from doppler.graphs.torch_export import graph_of_module
from tests.graphs.imports import check_round_trip


class TwoLayer(torch.nn.Module):
    """relu(x W1 + b1) is cut in halves; their product goes through softmax and a sum."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 6)
        self.register_buffer("never_read", torch.zeros(3))

    def forward(self, x):
        hidden = torch.relu(self.first(x)).reshape(5, 2, 6)
        left, right = hidden.split(3, dim=-1)
        return torch.softmax(left * right, dim=-1).sum(), torch.cat([left, left])


@pytest.fixture(scope="module")
def imported():
    return graph_of_module(TwoLayer(), (torch.zeros(10, 8),))


def test_ops_bytes_and_flop_by_hand(imported):
    """x is 10 x 8 floats; the product takes 2 * 10 * 8 * 6 flop; hidden has 60 elements."""
    graph = imported.graph
    assert graph.name == "TwoLayer"
    rows = [(op.kind, op.outputs, op.flop, op.bytes_moved) for op in graph.ops]
    assert rows == [
        ("input", (192,), 0, 0),  # weight, 48 floats
        ("input", (24,), 0, 0),  # bias
        ("input", (320,), 0, 0),
        ("aten.addmm", (240,), 960, 24 + 320 + 192 + 240),
        ("aten.relu", (240,), 60, 480),
        ("aten.split_with_sizes", (120, 120), 0, 0),
        ("aten.mul", (120,), 30, 360),
        ("aten._softmax", (120,), 30, 240),
        ("aten.sum", (4,), 30, 124),
        ("aten.cat", (240,), 0, 480),
    ]
    assert imported.ignored == {
        "formula of aten._softmax (one flop per element instead)": 1,
        "tensor that no op reads": 1,
    }
    assert imported.op_ns is None


def test_edges_carry_the_tensor_that_is_read(imported):
    graph = imported.graph
    ids = {op.kind: index for index, op in enumerate(graph.ops)}
    cut, product, joined = ids["aten.split_with_sizes"], ids["aten.mul"], ids["aten.cat"]
    reads = {op: [(e.src, e.output) for e in graph.edges if e.dst == op] for op in ids.values()}
    assert reads[product] == [(cut, 0), (cut, 1)]
    assert reads[joined] == [(cut, 0), (cut, 0)]
    assert reads[cut] == [(ids["aten.relu"], 0)]  # the reshape is no op
    assert [graph.ops[src].outputs for src, _ in reads[ids["aten.addmm"]]] == [
        (24,),
        (320,),
        (192,),
    ]


def test_goes_through_json(imported, tmp_path):
    check_round_trip(imported, tmp_path)


def test_a_part_is_an_op_so_that_only_the_part_is_sent():
    class Part(torch.nn.Module):
        def forward(self, x):
            return x[:2] + 1

    graph = graph_of_module(Part(), (torch.zeros(10, 3),)).graph
    rows = [(op.kind, op.outputs, op.flop, op.bytes_moved) for op in graph.ops]
    assert rows == [
        ("input", (120,), 0, 0),
        ("aten.slice", (24,), 0, 0),
        ("aten.add", (24,), 6, 48),
    ]


def test_attention_uses_the_formulas_of_torch():
    """4 heads of 5 x 2 queries: two products of 2 * 4 * 5 * 2 * 5 flop for each of 3 sequences."""
    attention = torch.nn.functional.scaled_dot_product_attention

    class Attention(torch.nn.Module):
        def forward(self, q, k, v):
            return attention(q, k, v)

    query = torch.zeros(3, 4, 5, 2)
    graph = graph_of_module(Attention(), (query, query, query)).graph
    products = [op.flop for op in graph.ops if "mm" in op.kind or "attention" in op.kind]
    assert sum(products) == 2 * (3 * 2 * 4 * 5 * 2 * 5)


def test_control_flow_and_sizes_that_depend_on_data_are_refused():
    class Branch(torch.nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))

    with pytest.raises(GraphError, match="control flow has no dataflow graph"):
        graph_of_module(Branch(), (torch.zeros(3),))

    class Data(torch.nn.Module):
        def forward(self, x):
            return x.nonzero()

    with pytest.raises(GraphError, match="node 'nonzero' has a result"):
        graph_of_module(Data(), (torch.zeros(3),))


def test_other_readers_leave_torch_alone():
    code = (
        "import sys, doppler.graphs.dot, doppler.graphs.graphml, doppler.graphs.wfcommons, "
        "doppler.graphs.cost_text, doppler.graphs.stg, doppler.graphs.files; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
