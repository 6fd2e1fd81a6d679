import numpy as np
import pytest
import torch

from doppler.policies import encode_kernel
from doppler.policies.config import PolicyConfig, PolicyKind
from doppler.policies.device_columns import _log1p_all
from doppler.policies.dual import DualPolicy
from doppler.policies.encoder import path_sums, z_rows
from doppler.policies.features import graph_tensors
from doppler.policies.tables import NUM_LOGS
from tests.policies.problems import assignment_of, layered


@pytest.mark.parametrize("kind", list(PolicyKind))
@pytest.mark.parametrize("rank", [1, 4, 16])
@pytest.mark.parametrize("block", [encode_kernel.BLOCK, 7])
def test_the_encoder_gives_the_same_embeddings_without_gradients(kind, rank, block, monkeypatch):
    monkeypatch.setattr(encode_kernel, "BLOCK", block)
    config = PolicyConfig(kind=kind, hidden=24, rank=rank, rounds=3)
    policy = DualPolicy(config, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    graph = graph_tensors(assignment_of(layered(3)), kind)
    for encoder in (policy.select.encoder, policy.place.encoder):
        with_gradients = encoder(graph)
        with torch.no_grad():
            without = encoder(graph)
        assert with_gradients.requires_grad
        assert not without.requires_grad
        assert with_gradients.std() > 0.1
        assert torch.allclose(with_gradients, without, atol=2e-5)


@pytest.mark.parametrize("shape", [(5,), (2, 5)])
def test_path_sums_and_z_rows_are_the_same_without_gradients(shape):
    assignment = assignment_of(layered(8))
    graph = graph_tensors(assignment, PolicyKind.improved)
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(assignment.num_ops, *shape, generator=generator)
    for jumps in (graph.down_jumps, graph.up_jumps, graph.up_jumps[:0]):
        with torch.no_grad():
            fast = path_sums(values, jumps)
        assert torch.allclose(path_sums(values, jumps), fast, atol=1e-5)
    with torch.no_grad():
        fast = z_rows(values)
    assert torch.allclose(z_rows(values), fast, atol=1e-5)


def test_logarithms_of_columns_are_those_of_the_library():
    values = np.concatenate([[-1.0, 0.0], np.geomspace(1e-9, 1e12, 4000), 2.0 ** np.arange(30) - 1])
    ours = values[: len(values) // NUM_LOGS * NUM_LOGS].astype(np.float32).reshape(-1, NUM_LOGS)
    theirs = np.log1p(np.maximum(ours, 0.0).astype(np.float64))
    _log1p_all(ours)
    assert ours == pytest.approx(theirs, rel=3e-7, abs=3e-7)
