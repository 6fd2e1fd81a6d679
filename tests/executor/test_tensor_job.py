"""Tensor graphs run for real give what plain torch gives."""

from dataclasses import asdict

import numpy as np
import pytest
import torch
from core_clusters import plan_of, problem_of

from doppler.core.errors import ConfigError, ExecutionError
from doppler.graphs.ffnn import FFNNShape, ffnn
from doppler.graphs.matmul_chain import ChainShards, matmul_chain
from executor.job_spec import JobSpec
from executor.runtime import CoreExecutor
from executor.tensors.job import TensorJob

pytestmark = pytest.mark.timeout(60)


def spec_of(program, seed=3):
    return JobSpec(
        path="executor.tensors.job:TensorJob",
        config={
            "dtype": program.dtype,
            "seed": seed,
            "instructions": {name: asdict(i) for name, i in program.instructions.items()},
        },
    )


def run_once(program):
    """Returns every tensor by (op name, output), computed on two devices."""
    problem = problem_of(program.graph)
    placement = tuple(op * 7 % 3 % 2 for op in range(program.graph.num_ops))
    with CoreExecutor(spec_of(program), problem) as executor:
        executor.run(problem, plan_of(problem, *placement), 2)
        return {
            (op.name, output): torch.from_numpy(executor.read_output(index, output))
            .view(getattr(torch, program.dtype))
            .view(program.instructions[op.name].out_shapes[output])
            for index, op in enumerate(program.graph.ops)
            for output in range(len(op.outputs))
        }


def blocks(tensors, name, rows, cols):
    """Joins the blocks name[i,j] to one matrix."""
    return torch.cat(
        [torch.cat([tensors[f"{name}[{i},{j}]", 0] for j in range(cols)], 1) for i in range(rows)]
    )


def test_matmul_chain_equals_plain_torch():
    program = matmul_chain(70, ChainShards(rows=3, inner=2, cols=2, de_inner=3), "float64")
    tensors = run_once(program)
    a, b = blocks(tensors, "A", 3, 2), blocks(tensors, "B", 2, 2)
    c, d, e = blocks(tensors, "C", 3, 2), blocks(tensors, "D", 2, 3), blocks(tensors, "E", 3, 2)
    assert a.shape == (70, 70)
    assert a.std() == pytest.approx(1 / np.sqrt(35), rel=0.1)  # blocks have 35 columns
    torch.testing.assert_close(
        blocks(tensors, "result", 3, 2), a @ b + c @ (d @ e), rtol=1e-12, atol=1e-12
    )


def test_ffnn_equals_plain_torch():
    shape = FFNNShape(
        batch=64, features=8, hidden=48, batch_blocks=2, hidden_blocks=3, tail_blocks=4
    )
    tensors = run_once(ffnn(shape))
    x = torch.cat([tensors[f"X[{i}]", 0] for i in range(2)])
    w1 = torch.cat([tensors[f"W1[{j}]", 0] for j in range(3)], 1)
    w2 = torch.cat([tensors[f"W2[{j}]", 0] for j in range(3)])
    result = torch.cat([tensors[f"divide[{r}]", 0] for r in range(4)])
    torch.testing.assert_close(result, torch.softmax(torch.relu(x @ w1) @ w2, 1))


def test_inputs_follow_from_seed_and_name():
    program = matmul_chain(8, ChainShards(rows=1, inner=1, cols=1, de_inner=1))
    first = TensorJob(spec_of(program, seed=1).config).initial("A[0,0]", 0, 0)
    again = TensorJob(spec_of(program, seed=1).config).initial("A[0,0]", 0, 0)
    other = TensorJob(spec_of(program, seed=2).config).initial("A[0,0]", 0, 0)
    assert first.shape == (8, 8)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    name = TensorJob(spec_of(program, seed=1).config).initial("B[0,0]", 0, 0)
    assert not np.array_equal(first, name)


RELU = {"kind": "relu", "in_shapes": [[2, 3]], "out_shapes": [[2, 3]]}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"sead": 1}, "did you mean 'seed'"),
        ({"dtype": "float23"}, "did you mean 'float32'"),
        ({"instructions": {"a": {**RELU, "kind": "rely"}}}, "op 'a' is of kind 'rely'; did you"),
        ({"instructions": {"a": {"kind": "relu"}}}, "an instruction has kind, in_shapes"),
        ({"instructions": {"a": {**RELU, "out_shapes": []}}}, "op 'a' has none"),
        ({"instructions": {"a": {**RELU, "in_shapes": [[2, -3]]}}}, "two positive sizes"),
    ],
)
def test_wrong_configuration_is_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        TensorJob(config)


def test_wrong_ops_are_refused():
    job = TensorJob({"instructions": {"a": RELU}})
    with pytest.raises(ExecutionError, match="no op 'b'"):
        job.bind("b", "relu", None, 1)
    with pytest.raises(ExecutionError, match="of kind 'exp' in the graph and 'relu'"):
        job.bind("a", "exp", None, 1)
    with pytest.raises(ExecutionError, match="no groups"):
        job.create_group("g", 1)


def test_row_blocks_cut_the_result():
    entry = {"kind": "exp", "in_shapes": [[4, 2]], "out_shapes": [[2, 2], [2, 2]]}
    kernel = TensorJob({"instructions": {"a": entry}}).bind("a", "exp", None, 1)
    data = np.arange(8, dtype=np.float32)
    outputs = [np.zeros(16, dtype=np.uint8) for _ in range(2)]
    kernel(0, [data.view(np.uint8)], outputs)
    joined = np.concatenate([output.view(np.float32) for output in outputs])
    np.testing.assert_allclose(joined, np.exp(data), rtol=1e-6)
