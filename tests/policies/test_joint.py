import itertools

import numpy as np
import pytest
import torch

from doppler.policies.config import Learned, PolicyConfig
from doppler.policies.dual import policy_inputs
from doppler.policies.joint import JointPolicy
from doppler.policies.sampling import SampleMode, Temperature
from tests.policies.conformance import check_policy
from tests.policies.problems import assignment_of, layered, six_ops

SMALL = PolicyConfig(learned=Learned.joint, hidden=8, rank=4, rounds=2, head_hidden=8, summary=3)


def randomised():
    policy = JointPolicy(SMALL, 0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return policy


def test_joint_policy_conforms():
    check_policy(randomised())


def all_episodes(policy, inputs, temperature):
    """Log-probability of every order and placement of the six ops, episodes x steps."""
    edges = ((0, 2), (1, 3), (2, 4), (3, 4), (4, 5))
    orders = [
        order
        for order in itertools.permutations(range(6))
        if all(order.index(a) < order.index(b) for a, b in edges)
    ]
    pairs = list(itertools.product(orders, itertools.product(range(2), repeat=6)))
    rollouts = policy.replay(
        inputs,
        np.array([pair[0] for pair in pairs]),
        np.array([pair[1] for pair in pairs]),
        temperature,
    )
    return rollouts, rollouts.select_log_probs + rollouts.place_log_probs


@pytest.mark.parametrize("temperature", [Temperature(), Temperature(select=0.4, place=1.5)])
def test_probabilities_of_all_episodes_sum_to_one_and_greedy_takes_the_likeliest_first_pair(
    temperature,
):
    policy = randomised()
    inputs = policy_inputs(assignment_of(six_ops()), SMALL)
    rollouts, logs = all_episodes(policy, inputs, temperature)
    assert np.exp(logs.sum(axis=1)).sum() == pytest.approx(1.0, abs=1e-5)
    greedy = policy.sample(
        inputs, 1, np.random.default_rng(0), mode=SampleMode.greedy, temperature=temperature
    )
    first = greedy.select_log_probs[0, 0] + greedy.place_log_probs[0, 0]
    assert first == pytest.approx(logs[:, 0].max())
    # The op's own probability is the sum over its devices.
    for op in (0, 1):
        rows = rollouts.orders[:, 0] == op
        pairs = {int(d): logs[rows & (rollouts.devices[:, 0] == d), 0][0] for d in (0, 1)}
        own = rollouts.select_log_probs[rows, 0][0]
        assert np.exp(list(pairs.values())).sum() == pytest.approx(np.exp(own))


def test_the_teachers_log_probability_is_that_of_the_largest_b_level():
    policy = randomised()
    inputs = policy_inputs(assignment_of(six_ops()), SMALL)
    rollouts = policy.replay(inputs, np.array([[1, 0, 2, 3, 4, 5]]), np.zeros((1, 6), np.int64))
    encoded = policy.encode(inputs)
    decisions = policy.decide(inputs, encoded, rollouts)
    # b-levels fall along a, b, m0, m1 (100 + 80 > 90 + 70): of (a, b) the teacher takes a, then of
    # (a, m1) a again, then of (m0, m1) m0; afterwards there is one candidate.
    chances = decisions.select.exp()[0]
    assert decisions.teacher.exp()[0].tolist() == pytest.approx(
        [1.0 - chances[0].item(), *chances[1:].tolist()]
    )
    assert policy.teacher_log_prob(encoded, decisions, rollouts) == decisions.teacher.mean()


def test_gradients_reach_the_networks_of_both_policies():
    policy = randomised()
    inputs = policy_inputs(assignment_of(layered(2)), SMALL)
    rollouts = policy.sample(inputs, 3, np.random.default_rng(0))
    decisions = policy.decide(inputs, policy.encode(inputs), rollouts)
    decisions.select[0].sum().backward()
    still = [
        name
        for name, parameter in policy.named_parameters()
        if parameter.grad is None or not parameter.grad.abs().sum() > 0
    ]
    assert still == []
