import numpy as np
import torch

from doppler.policies.config import Learned, PolicyConfig
from doppler.policies.dual import policy_inputs
from doppler.policies.step_policy import StepPolicy
from tests.policies.conformance import check_policy
from tests.policies.problems import assignment_of, layered, six_ops

SMALL = PolicyConfig(learned=Learned.per_step, hidden=8, rank=4, rounds=2, head_hidden=8, summary=3)


def randomised(scale=0.3):
    policy = StepPolicy(SMALL, 0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return policy


def test_step_policy_conforms():
    check_policy(randomised())


def test_the_encoder_sees_where_the_ops_are():
    # Two episodes that differ in the device of op a only, which is equal on both devices: b, m0 and
    # m1 keep their places, so that only the embeddings can tell SEL's second choice apart.
    policy = randomised()
    inputs = policy_inputs(assignment_of(six_ops()), SMALL)
    orders = np.array([[0, 1, 2, 3, 4, 5]] * 2)
    devices = np.array([[0, 0, 0, 1, 0, 0], [1, 0, 0, 1, 0, 0]])
    found = policy.replay(inputs, orders, devices)
    assert found.select_log_probs[0, 0] == found.select_log_probs[1, 0]
    # Which device a is on is a name only; where it is beside b is not.
    assert abs(found.select_log_probs[0, 1] - found.select_log_probs[1, 1]) < 1e-6
    assert abs(found.select_log_probs[0, 2] - found.select_log_probs[1, 2]) > 1e-4


def test_the_first_step_is_that_of_the_dual_policy():
    policy = randomised()
    inputs = policy_inputs(assignment_of(layered(1)), SMALL)
    rollouts = policy.sample(inputs, 4, np.random.default_rng(0))
    heads = policy.encode(inputs)
    candidates = np.flatnonzero(np.diff(inputs.assignment.in_ptr) == 0)
    logs = torch.log_softmax(heads.scores[candidates], dim=0)
    first = [int(np.flatnonzero(candidates == op)[0]) for op in rollouts.orders[:, 0]]
    expected = logs[first].detach().numpy()
    assert np.abs(rollouts.select_log_probs[:, 0] - expected).max() < 1e-5


def test_gradients_of_all_decisions_reach_both_networks_and_blocks_add_up(monkeypatch):
    policy = randomised()
    inputs = policy_inputs(assignment_of(layered(2)), SMALL)
    rollouts = policy.sample(inputs, 3, np.random.default_rng(0))
    gradients = []
    for numbers in (1 << 21, 20 * 8 * 7):  # one block, and blocks of seven states
        monkeypatch.setattr("doppler.policies.step_policy.BLOCK_NUMBERS", numbers)
        policy.zero_grad()
        decisions = policy.decide(inputs, policy.encode(inputs), rollouts)
        (decisions.select.sum() + decisions.place.sum() + decisions.teacher.sum()).backward()
        gradients.append({n: p.grad.clone() for n, p in policy.named_parameters()})
    for name, gradient in gradients[0].items():
        assert gradient.abs().sum() > 0, name
        assert torch.allclose(gradient, gradients[1][name], rtol=1e-3, atol=1e-4), name
