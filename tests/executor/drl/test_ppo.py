"""PPO's formulas: by hand, against autograd, and as sums over parts."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.drl.policy import ActorCritic, FlatPolicy, aligned_zeros
from executor.drl.ppo import (
    Batch,
    LossParts,
    LossSettings,
    gaussian_entropy,
    gaussian_log_prob,
    generalized_advantages,
    loss_and_gradients,
    normalized_advantages,
    part_gradient,
)

SETTINGS = LossSettings(clip=0.2, value_coef=0.7, entropy_coef=0.01, clip_value=True)


def column(*values, dtype=np.float32):
    return np.array(values, dtype)[:, None]


def advantages(rewards, values, last, terminated=(0, 0, 0), truncated=(0, 0, 0)):
    result = generalized_advantages(
        column(*rewards),
        column(*values),
        np.array([last], np.float32),
        column(*terminated, dtype=bool),
        column(*truncated, dtype=bool),
        gamma=0.5,
        lam=0.5,
    )
    return result[:, 0].tolist()


def test_advantages_by_hand_without_an_end():
    # delta = r + 0.5 V' - V = (1 + 2 - 2, 1 + 1 - 4, 1 + 4 - 2) = (1, -2, 3)
    # A2 = 3;  A1 = -2 + 0.25 * 3 = -1.25;  A0 = 1 + 0.25 * -1.25 = 0.6875
    assert advantages((1, 1, 1), (2, 4, 2), 8) == [0.6875, -1.25, 3.0]


def test_a_termination_is_worth_nothing_and_stops_the_trace():
    # Step 1 terminates: V' = 0, delta1 = 1 + 0 - 4 = -3, A1 = -3; A0 = 1 + 0.25 * -3 = 0.25
    assert advantages((1, 1, 1), (2, 4, 2), 8, terminated=(0, 1, 0)) == [0.25, -3.0, 3.0]


def test_a_truncation_bootstraps_from_the_value_before_the_reset():
    # Step 1 is cut: V' = V_1 = 4, delta1 = 1 + 2 - 4 = -1, A1 = -1; A0 = 1 - 0.25 = 0.75
    assert advantages((1, 1, 1), (2, 4, 2), 8, truncated=(0, 1, 0)) == [0.75, -1.0, 3.0]


def test_the_last_step_may_end_an_episode():
    assert advantages((1, 1, 1), (2, 4, 2), 8, terminated=(0, 0, 1))[2] == -1.0
    assert advantages((1, 1, 1), (2, 4, 2), 8, truncated=(0, 0, 1))[2] == 0.0


@settings(deadline=None)
@given(st.integers(1, 12), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**31))
def test_lambda_one_gives_discounted_returns_minus_values(steps, gamma, scale, seed):
    random = np.random.default_rng(seed)
    rewards, values = (random.normal(size=(steps, 3)).astype(np.float32) for _ in range(2))
    last = random.normal(size=3).astype(np.float32)
    never = np.zeros((steps, 3), bool)
    result = generalized_advantages(rewards * scale, values, last, never, never, gamma, 1.0)
    expected, following = np.empty_like(result), last.astype(np.float64)
    for t in range(steps - 1, -1, -1):
        following = rewards[t] * scale + gamma * following
        expected[t] = following - values[t]
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_advantages_are_normalised_with_the_mean_and_deviation_given():
    raw = torch.tensor([1.0, 3.0])
    torch.testing.assert_close(normalized_advantages(raw, 2.0, 0.5), torch.tensor([-2.0, 2.0]))


def test_gaussian_log_prob_and_entropy_agree_with_torch():
    mean, log_std = torch.tensor([[0.5, -1.0]]), torch.tensor([0.1, -0.7])
    actions = torch.tensor([[0.0, 1.0]])
    reference = torch.distributions.Normal(mean, log_std.exp())
    torch.testing.assert_close(
        gaussian_log_prob(actions, mean, log_std), reference.log_prob(actions).sum(-1)
    )
    torch.testing.assert_close(gaussian_entropy(log_std), reference.entropy().sum())


def rows(count, obs_dim=3, act_dim=2, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    return Batch(
        obs=normal(count, obs_dim),
        actions=normal(count, act_dim),
        log_probs=normal(count) - 2.0,
        values=normal(count),
        advantages=normal(count),
        returns=normal(count),
    )


def one_row(log_ratio, advantage, value=0.0, old_value=0.0, target=0.0):
    """A row whose action is the mean of a unit Gaussian, so log_prob = -log(2 pi) / 2."""
    log_prob = -0.5 * float(np.log(2 * np.pi))
    batch = Batch(
        obs=torch.zeros(1, 1),
        actions=torch.zeros(1, 1),
        log_probs=torch.tensor([log_prob - log_ratio]),
        values=torch.tensor([old_value]),
        advantages=torch.tensor([advantage]),
        returns=torch.tensor([target]),
    )
    return (torch.zeros(1, 1), torch.zeros(1), torch.tensor([value])), batch


def losses_of(outputs, batch, settings_=SETTINGS):
    return loss_and_gradients(outputs, batch, 0.0, 1.0, 1, settings_)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.1, 2.0, -2.2, 0.0),  # inside the clip
        (1.5, 2.0, -2.4, 1.0),  # min(3.0, 1.2 * 2) = 2.4
        (1.5, -2.0, 3.0, 1.0),  # min(-3.0, -2.4) = -3: a bad action made likelier is not forgiven
        (0.5, -2.0, 1.6, 1.0),  # min(-1.0, 0.8 * -2) = -1.6
        (0.5, 2.0, -1.0, 1.0),  # min(1.0, 1.6) = 1
    ],
)
def test_clipped_surrogate_by_hand(ratio, advantage, loss, clipped):
    outputs, batch = one_row(float(np.log(ratio)), advantage)
    losses, _ = losses_of(outputs, batch)
    assert losses.policy == pytest.approx(loss, rel=1e-5)
    assert losses.clip_fraction == clipped
    assert losses.approx_kl == pytest.approx(ratio - 1 - np.log(ratio), abs=1e-5)


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "gradient"),
    [
        (0.1, 0.0, 1.0, 0.5 * 0.9**2, -0.9),  # within the clip
        (0.5, 0.0, 1.0, 0.5 * 0.8**2, 0.0),  # moved too far towards the target: flat
        (0.5, 0.0, -1.0, 0.5 * 1.5**2, 1.5),  # moved away from it: pulled back
    ],
)
def test_clipped_value_loss_by_hand(value, old, target, loss, gradient):
    outputs, batch = one_row(0.0, 0.0, value, old, target)
    losses, gradients = losses_of(outputs, batch)
    assert losses.value == pytest.approx(loss, rel=1e-5)
    assert gradients.value.item() == pytest.approx(0.7 * gradient, abs=1e-6)


def reference_loss(outputs, batch, mean, std, s):
    """The objective in autograd's terms."""
    action_mean, log_std, value = outputs
    normal = torch.distributions.Normal(action_mean, log_std.exp())
    ratio = (normal.log_prob(batch.actions).sum(-1) - batch.log_probs).exp()
    advantage = (batch.advantages - mean) / (std + 1e-8)
    surrogate = torch.min(ratio * advantage, ratio.clamp(1 - s.clip, 1 + s.clip) * advantage)
    value_loss = (value - batch.returns) ** 2
    if s.clip_value:
        clipped = batch.values + (value - batch.values).clamp(-s.clip, s.clip)
        value_loss = torch.max(value_loss, (clipped - batch.returns) ** 2)
    entropy = normal.entropy().sum(-1)
    return (-surrogate + s.value_coef * 0.5 * value_loss - s.entropy_coef * entropy).mean()


@pytest.mark.parametrize("clip_value", [True, False])
@pytest.mark.parametrize("per_row_std", [True, False])
def test_written_out_derivatives_agree_with_autograd(clip_value, per_row_std):
    s = LossSettings(clip=0.2, value_coef=0.7, entropy_coef=0.01, clip_value=clip_value)
    batch = rows(200)
    generator = torch.Generator().manual_seed(1)
    shape = (200, 2) if per_row_std else (2,)
    outputs = (
        torch.randn(200, 2, generator=generator, requires_grad=True),
        torch.randn(shape, generator=generator).mul_(0.1).requires_grad_(),
        torch.randn(200, generator=generator, requires_grad=True),
    )
    loss = reference_loss(outputs, batch, 0.3, 1.4, s)
    expected = torch.autograd.grad(loss, outputs)
    losses, gradients = loss_and_gradients(outputs, batch, 0.3, 1.4, 200, s)
    assert losses.total == pytest.approx(loss.item(), rel=1e-5)
    for got, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-7)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_parts_of_a_minibatch_add_up_to_it(lengths):
    policy = FlatPolicy(ActorCritic(3, 2, (16, 8), -0.5))
    whole, parts = (aligned_zeros(policy.layout.size) for _ in range(2))
    total = sum(lengths)
    batch = rows(total)
    policy.bind_gradient(whole)
    expected = part_gradient(policy.module, batch, 0.1, 1.1, total, SETTINGS)
    policy.bind_gradient(parts)
    losses, first = [], 0
    for length in lengths:
        part = Batch(*[tensor[first : first + length] for tensor in batch])
        losses.append(part_gradient(policy.module, part, 0.1, 1.1, total, SETTINGS))
        first += length
    assert np.linalg.norm(parts - whole) <= 1e-5 * np.linalg.norm(whole)
    np.testing.assert_allclose(np.sum(losses, axis=0), expected, rtol=1e-4, atol=1e-6)
    assert LossParts(*np.sum(losses, axis=0)).rows == pytest.approx(1.0)
