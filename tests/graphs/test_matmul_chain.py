"""CHAINMM: the published counts, true bytes, and work that adds up whatever the cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler.core.errors import GraphError
from doppler.graphs.levels import depth
from doppler.graphs.matmul_chain import ChainShards, matmul_chain


def counts(graph):
    """(n, inputs, placed ops, edges between placed ops, roots, sinks, depth, max in, max out)."""
    edges = [e for e in graph.edges if not graph.ops[e.src].is_input]
    ends = {e.dst for e in edges}
    starts = {e.src for e in edges}
    indegree = [sum(e.dst == op for e in edges) for op in graph.placeable]
    outdegree = [sum(e.src == op for e in edges) for op in graph.placeable]
    return (
        graph.num_ops,
        graph.num_ops - len(graph.placeable),
        len(graph.placeable),
        len(edges),
        sum(op not in ends for op in graph.placeable),
        sum(op not in starts for op in graph.placeable),
        depth(graph),
        max(indegree),
        max(outdegree),
    )


def test_counts_at_the_default_cut():
    graph = matmul_chain().graph
    assert counts(graph) == (112, 36, 76, 80, 32, 8, 5, 4, 4)
    assert len(set(graph.edges)) == len(graph.edges)
    assert sum(op.kind == "matmul" for op in graph.ops) == 48
    assert sum(op.kind == "sum" for op in graph.ops) == 20


def test_bytes_are_elements_times_four():
    graph = matmul_chain().graph
    op = {op.name: op for op in graph.ops}
    assert op["AB[0,0,0]"].outputs == (2500 * 5000 * 4,)
    assert op["DE[0,0,0]"].outputs == (5000 * 5000 * 4,)
    assert op["CDE[3,1,1]"].outputs == (50_000_000,)
    assert op["AB[0,0,0]"].flop == 2 * 62_500_000_000
    # reads 2500 x 5000 and 5000 x 5000, writes 2500 x 5000
    assert op["AB[0,0,0]"].bytes_moved == 4 * (12_500_000 + 25_000_000 + 12_500_000)


@given(st.integers(8, 60), *[st.integers(1, 4)] * 4)
@settings(max_examples=40, deadline=None)
def test_work_adds_up_for_every_cut(size, rows, inner, cols, de_inner):
    shards = ChainShards(rows=rows, inner=inner, cols=cols, de_inner=de_inner)
    program = matmul_chain(size, shards)
    graph = program.graph
    assert sum(op.flop for op in graph.ops if op.kind == "matmul") == 3 * 2 * size**3
    result = [op.outputs[0] for op in graph.ops if op.name.startswith("result")]
    assert sum(result) == 4 * size * size
    assert set(program.instructions) == {op.name for op in graph.ops}
    for op in graph.ops:
        instruction = program.instructions[op.name]
        assert [4 * a * b for a, b in instruction.out_shapes] == list(op.outputs)


def test_half_precision_halves_the_bytes():
    full, half = matmul_chain(64).graph, matmul_chain(64, dtype="float16").graph
    assert [2 * size for op in half.ops for size in op.outputs] == [
        size for op in full.ops for size in op.outputs
    ]


def test_too_many_parts_are_refused():
    with pytest.raises(GraphError, match="cut into 1 to 3 parts, not 4"):
        matmul_chain(3)
    with pytest.raises(GraphError, match="not 0"):
        matmul_chain(8, ChainShards(rows=0))
