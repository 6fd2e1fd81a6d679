"""The mixture-of-experts block: counts, capacity, bytes of both all-to-alls, work."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler.core.errors import GraphError
from doppler.graphs.levels import depth
from doppler.graphs.moe import MoEShape, moe_block
from tests.graphs.test_matmul_chain import counts


def test_counts_worked_out_by_hand():
    # inputs: router, 4 x, 8 x 2 weights; 4 x (router, top_k, dispatch, combine) + 8 experts x 4
    graph = moe_block()
    assert counts(graph)[:4] == (69, 21, 48, 4 + 4 + 32 + 24 + 32 + 8)
    assert depth(graph) == 3 + 4 + 1
    assert len(set(graph.edges)) == len(graph.edges)


def test_both_all_to_alls_carry_the_capacity():
    graph = moe_block()
    op = {op.name: op for op in graph.ops}
    # 1.25 x 2 x 1024 / 8 = 320 tokens of 4096 float32
    assert op["dispatch[0]"].outputs == (320 * 4096 * 4,) * 8
    assert op["down[7]"].outputs == (320 * 4096 * 4,) * 4
    assert op["top_k[0]"].outputs == (2 * 1024 * 4, 2 * 1024 * 8)
    assert op["up[0]"].flop == 2 * 4 * 320 * 4096 * 14336
    pairs = {
        (graph.ops[e.src].name, e.output, graph.ops[e.dst].name)
        for e in graph.edges
        if graph.ops[e.src].kind == "dispatch" or graph.ops[e.src].meta_op == "down"
    }
    assert pairs == {(f"dispatch[{i}]", e, f"gather[{e}]") for i in range(4) for e in range(8)} | {
        (f"down[{e}]", i, f"combine[{i}]") for i in range(4) for e in range(8)
    }


@given(
    tokens=st.integers(4, 200),
    experts=st.integers(1, 9),
    top_k=st.integers(1, 4),
    blocks=st.integers(1, 4),
    factor=st.sampled_from(["1", "1.25", "2", "0.5"]),
)
def test_capacity_covers_its_share_and_bytes_add_up(tokens, experts, top_k, blocks, factor):
    shape = MoEShape(
        tokens=tokens,
        hidden=8,
        feed_forward=16,
        experts=experts,
        top_k=min(top_k, experts),
        capacity_factor=factor,
        row_blocks=blocks,
    )
    graph = moe_block(shape, dtype="float16")
    op = {op.name: op for op in graph.ops}
    assert sum(op[f"combine[{i}]"].outputs[0] for i in range(blocks)) == tokens * 8 * 2
    for i in range(blocks):
        height = op[f"x[{i}]"].outputs[0] // 16
        capacity = shape.capacity(height)
        share = float(factor) * shape.top_k * height / experts
        assert capacity == height or share <= capacity < share + 1
        # what is sent to an expert comes back from it
        for e in range(experts):
            assert op[f"dispatch[{i}]"].outputs[e] == op[f"down[{e}]"].outputs[i] == capacity * 16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_k": 9}, "top_k is from 1 to 8, and it is 9"),
        ({"capacity_factor": "0"}, "positive decimal"),
        ({"capacity_factor": "much"}, "positive decimal, and it is 'much'"),
        ({"experts": 0}, "experts is at least 1"),
        ({"row_blocks": 0}, "cut into 1 to 4096 parts"),
    ],
)
def test_impossible_shapes_are_refused(changes, message):
    with pytest.raises(GraphError, match=message):
        MoEShape(**changes)
