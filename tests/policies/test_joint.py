import itertools

import numpy as np
import pytest
import torch

from doppler.policies.config import PolicyConfig
from doppler.policies.dual import policy_inputs
from doppler.policies.joint import JointPolicy
from doppler.policies.sampling import SampleMode
from tests.policies.problems import assignment_of, layered, six_ops

SMALL = PolicyConfig(hidden=8, rank=4, rounds=2, head_hidden=8, summary=3)


def randomised():
    policy = JointPolicy(SMALL, 0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return policy


@pytest.mark.parametrize(("groups", "num_devices"), [(0, 3), (2, 2), (0, 1)])
def test_sampler_and_network_agree(groups, num_devices):
    policy = randomised()
    inputs = policy_inputs(assignment_of(layered(1, groups=groups, num_devices=num_devices)), SMALL)
    rollouts = policy.sample_joint(inputs, 5, np.random.default_rng(0), temperature=0.7)
    log_probs, entropies = policy.joint_log_probs(inputs, policy.encode(inputs), rollouts)
    assert np.abs(log_probs.detach().numpy() - rollouts.log_probs).max() < 1e-5
    assert (entropies.detach() >= -1e-9).all()
    for row in range(5):
        order = rollouts.orders[row].tolist()
        assert sorted(order) == list(range(inputs.assignment.num_ops))
        for step, op in enumerate(order):
            sources = inputs.assignment.in_src[
                inputs.assignment.in_ptr[op] : inputs.assignment.in_ptr[op + 1]
            ]
            assert all(order.index(src) < step for src in sources)
            assert inputs.assignment.allowed[op, rollouts.devices[row, step]]


def test_probabilities_of_all_episodes_sum_to_one_and_greedy_takes_the_likeliest_first_pair():
    policy = randomised()
    inputs = policy_inputs(assignment_of(six_ops()), SMALL)
    edges = ((0, 2), (1, 3), (2, 4), (3, 4), (4, 5))
    orders = [
        order
        for order in itertools.permutations(range(6))
        if all(order.index(a) < order.index(b) for a, b in edges)
    ]
    pairs = list(itertools.product(orders, itertools.product(range(2), repeat=6)))
    rollouts = policy.replay_joint(
        inputs, np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])
    )
    assert np.exp(rollouts.log_probs.sum(axis=1)).sum() == pytest.approx(1.0, abs=1e-5)
    greedy = policy.sample_joint(inputs, 1, np.random.default_rng(0), mode=SampleMode.greedy)
    assert greedy.log_probs[0, 0] == pytest.approx(rollouts.log_probs[:, 0].max())


def test_gradients_reach_the_networks_of_both_policies():
    policy = randomised()
    inputs = policy_inputs(assignment_of(layered(2)), SMALL)
    rollouts = policy.sample_joint(inputs, 3, np.random.default_rng(0))
    log_probs, _ = policy.joint_log_probs(inputs, policy.encode(inputs), rollouts)
    log_probs[0].sum().backward()
    still = [
        name
        for name, parameter in policy.named_parameters()
        if parameter.grad is None or not parameter.grad.abs().sum() > 0
    ]
    assert still == []
