"""FFNN: the published counts, true bytes, and the instructions compute a softmax."""

import numpy as np
import pytest

from doppler.core.errors import GraphError
from doppler.graphs.ffnn import FFNNShape, ffnn
from doppler.graphs.levels import depth
from doppler.graphs.matmul_chain import ChainShards, matmul_chain
from doppler.graphs.tensor_kinds import result_shape
from tests.graphs.test_matmul_chain import counts


def test_counts_at_the_default_cut():
    graph = ffnn().graph
    assert counts(graph) == (192, 12, 180, 208, 16, 16, 12, 4, 8)
    assert len(set(graph.edges)) == len(graph.edges)
    kinds = [op.kind for op in graph.ops]
    assert kinds.count("sum") == 52
    assert len(kinds) - kinds.count("sum") - kinds.count("input") == 128


def test_bytes_and_work():
    graph = ffnn().graph
    op = {op.name: op for op in graph.ops}
    assert op["XW1[0,0]"].outputs == (512 << 20,)
    assert op["XW1W2[0,0]"].outputs == (1 << 20,)
    assert op["form_XW1W2[0]"].outputs == (256 << 10,) * 4
    assert op["exp[15]"].outputs == (256 << 10,)
    assert op["XW1[3,3]"].flop == 2 << 32
    assert depth(graph) == 12


KINDS = {
    "matmul": lambda a, b: a @ b,
    "sum": lambda *parts: sum(parts),
    "add": lambda a, b: a + b,
    "relu": lambda a: np.maximum(a, 0),
    "row_max": lambda a: a.max(axis=1, keepdims=True),
    "row_sum": lambda a: a.sum(axis=1, keepdims=True),
    "subtract": lambda a, b: a - b,
    "divide": lambda a, b: a / b,
    "exp": np.exp,
}


def evaluate(program, inputs):
    """Output arrays per op name, computed as the instructions say."""
    graph, values = program.graph, {}
    for op_id in graph.topological_order:
        op = graph.ops[op_id]
        instruction = program.instructions[op.name]
        operands = [
            values[graph.ops[graph.edges[e].src].name][graph.edges[e].output]
            for e in graph.in_edges[op_id]
        ]
        assert [a.shape for a in operands] == list(instruction.in_shapes)
        result = inputs[op.name] if op.is_input else KINDS[instruction.kind](*operands)
        values[op.name] = np.split(result, len(instruction.out_shapes))
        assert [a.shape for a in values[op.name]] == list(instruction.out_shapes)
    return values


def draw_inputs(program, rng):
    return {
        name: rng.normal(size=instruction.out_shapes[0])
        for name, instruction in program.instructions.items()
        if instruction.kind == "input"
    }


def test_the_program_computes_the_softmax_of_the_network():
    shape = FFNNShape(batch=8, features=3, hidden=5, batch_blocks=2, hidden_blocks=2, tail_blocks=4)
    program = ffnn(shape)
    inputs = draw_inputs(program, np.random.default_rng(0))
    values = evaluate(program, inputs)
    x = np.concatenate([inputs["X[0]"], inputs["X[1]"]])
    w1 = np.concatenate([inputs["W1[0]"], inputs["W1[1]"]], axis=1)
    w2 = np.concatenate([inputs["W2[0]"], inputs["W2[1]"]])
    logits = np.maximum(x @ w1, 0) @ w2
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    found = np.concatenate([values[f"divide[{r}]"][0] for r in range(4)])
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_the_chain_computes_its_formula():
    program = matmul_chain(11, ChainShards(rows=3, inner=2, cols=2, de_inner=3))
    inputs = draw_inputs(program, np.random.default_rng(1))
    values = evaluate(program, inputs)

    def whole(name, arrays):
        rows = 1 + max(int(key.split("[")[1].split(",")[0]) for key in arrays if key[0] == name)
        cols = 1 + max(int(key.split(",")[1][:-1]) for key in arrays if key[0] == name)
        return np.block([[arrays[f"{name}[{i},{j}]"] for j in range(cols)] for i in range(rows)])

    a, b, c, d, e = (whole(name, inputs) for name in "ABCDE")
    found = np.block([[values[f"result[{i},{j}]"][0] for j in range(2)] for i in range(3)])
    np.testing.assert_allclose(found, a @ b + c @ (d @ e), rtol=1e-10)


def test_impossible_shapes_are_refused():
    with pytest.raises(GraphError, match="multiple of batch_blocks"):
        FFNNShape(tail_blocks=6)
    with pytest.raises(GraphError, match="does not take operands of shapes"):
        result_shape("matmul", [(2, 3), (4, 2)], "x")
    with pytest.raises(GraphError, match="kind 'conv'"):
        result_shape("conv", [(2, 3)], "x")
