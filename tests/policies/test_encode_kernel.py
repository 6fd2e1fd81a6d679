from dataclasses import replace

import numpy as np
import pytest
import torch

from doppler.policies.config import PolicyConfig, PolicyKind
from doppler.policies.device_columns import _log1p_all
from doppler.policies.dual import DualPolicy, policy_inputs
from doppler.policies.encoder import path_sums, z_rows
from doppler.policies.features import graph_tensors
from doppler.policies.tables import NUM_LOGS
from doppler.training.learner import gradient_step, make_optimizer, set_learning_rate
from tests.policies.problems import assignment_of, layered

KIND = PolicyKind.improved


def randomised(config):
    """Policies whose every weight matters."""
    policy = DualPolicy(config, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return policy


@pytest.mark.parametrize("kind", list(PolicyKind))
@pytest.mark.parametrize(("hidden", "rank"), [(24, 1), (10, 16), (24, 16), (48, 3)])
@pytest.mark.parametrize(("num_layers", "loops"), [(5, True), (2, False), (1, True), (1, False)])
def test_the_encoder_gives_the_same_embeddings_without_gradients(
    kind, hidden, rank, num_layers, loops
):
    policy = randomised(PolicyConfig(kind=kind, hidden=hidden, rank=rank, rounds=3))
    pair = layered(3, num_layers=num_layers, width=5, loops=loops)
    graph = graph_tensors(assignment_of(pair), kind)
    for encoder in (policy.select.encoder, policy.place.encoder):
        with_gradients = encoder(graph)
        with torch.no_grad():
            without = encoder(graph)
        assert with_gradients.requires_grad
        assert not without.requires_grad
        assert with_gradients.std() > 0.05
        assert torch.allclose(with_gradients, without, atol=2e-5)


def test_an_ops_embedding_does_not_depend_on_where_it_stands():
    """Ops of one kind without edges, in numbers that do not fill the last rows."""
    policy = randomised(PolicyConfig())
    graph = graph_tensors(assignment_of(layered(0, num_layers=1, width=11, loops=False)), KIND)
    same = replace(graph, nodes=graph.nodes[:1].repeat(11, 1))
    with torch.no_grad():
        embeddings = policy.select.encoder(same)
    assert (embeddings == embeddings[0]).all()


def step_of_adam(policy):
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.1)
    for parameter in policy.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def step_of_learning(policy):
    """Adam as training makes it: fused, which torch does not count as a change by itself."""
    optimizer = make_optimizer(policy)
    set_learning_rate(optimizer, 0.1)
    with torch.enable_grad():
        gradient_step(policy, optimizer, sum(p.sum() for p in policy.parameters()), 1e9)


def other_weights(policy):
    policy.load_state_dict(DualPolicy(policy.config, seed=7).state_dict())


def other_parameters(policy):
    """In the place of the old ones, and changed as often."""
    for layer in (policy.select.encoder.conv.upper, policy.place.encoder.embed):
        old = layer.weight
        layer.weight = torch.nn.Parameter(2.0 * old.detach())
        while layer.weight._version < old._version:
            layer.weight.mul_(1.0)


@pytest.mark.parametrize(
    "change", [step_of_adam, step_of_learning, other_weights, other_parameters]
)
def test_changed_weights_are_used_at_once(change):
    policy = randomised(PolicyConfig())
    assignment = assignment_of(layered(3))
    inputs = policy_inputs(assignment, policy.config)
    with torch.no_grad():
        first = policy.encode(inputs)
        assert policy.encode(inputs) is first, "nothing changed"
        change(policy)
        second = policy.encode(inputs)
    assert not torch.equal(first.scores, second.scores)
    assert not torch.equal(first.head.own, second.head.own)
    now = policy.encode(inputs)
    assert torch.allclose(now.scores, second.scores, atol=1e-5)
    assert torch.allclose(now.head.own, second.head.own, atol=1e-4)


def test_an_encoding_is_of_its_inputs_and_its_policy():
    policy, other = randomised(PolicyConfig()), DualPolicy(PolicyConfig(), seed=3)
    one, two = (policy_inputs(assignment_of(layered(seed)), policy.config) for seed in (0, 1))
    with torch.no_grad():
        first, second = policy.encode(one), policy.encode(two)
        assert not torch.equal(first.scores, second.scores)
        assert not torch.equal(other.encode(two).scores, second.scores)
        assert torch.equal(policy.encode(one).scores, first.scores)
    assert policy.encode(one).scores.requires_grad, "gradients need an encoding of their own"


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
