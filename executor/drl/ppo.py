"""Proximal policy optimisation as pure functions.

Shape legend: H time steps, N environments, B rows, A action values, P parameters.

Source: Schulman et al. 2017, "Proximal policy optimization algorithms"; Schulman et al. 2016,
"High-dimensional continuous control using generalized advantage estimation".
"""

from dataclasses import dataclass
from math import log, pi
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Float = NDArray[np.float32]
_LOG_2PI = log(2.0 * pi)
_EPSILON = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """Weights of the PPO objective.

    Attributes:
        clip: Half-width of the ratio's clip, and of the value's.
        value_coef: Weight of the value loss.
        entropy_coef: Weight of the entropy bonus.
        clip_value: Whether the value may move at most `clip` from its old one for free.
    """

    clip: float
    value_coef: float
    entropy_coef: float
    clip_value: bool


class LossParts(NamedTuple):
    """Losses of the rows of one part, each divided by the rows of the whole minibatch.

    Parts of a minibatch therefore add up to the minibatch's means.

    Attributes:
        policy: Clipped surrogate, negated.
        value: Half the squared value error.
        entropy: Entropy of the action distribution, nat.
        approx_kl: mean((ratio - 1) - log ratio).
        clip_fraction: Share of rows whose ratio lies outside the clip.
        total: policy + value_coef x value - entropy_coef x entropy.
        ratio: Mean ratio of new to old probability.
        rows: Share of the minibatch's rows in this part.
    """

    policy: float
    value: float
    entropy: float
    approx_kl: float
    clip_fraction: float
    total: float
    ratio: float
    rows: float


NUM_LOSSES = len(LossParts._fields)


class Batch(NamedTuple):
    """Training rows.

    Attributes:
        obs: [B, O] normalised observations.
        actions: [B, A].
        log_probs: [B] log-probability under the policy that acted.
        values: [B] value under the policy that acted.
        advantages: [B] raw advantages.
        returns: [B] value targets.
    """

    obs: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor


def generalized_advantages(
    rewards: Float,
    values: Float,
    last_value: Float,
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    gamma: float,
    lam: float,
) -> Float:
    """Returns advantages [H, N].

    delta_t = r_t + gamma V'_t - V_t;  A_t = delta_t + gamma lam (1 - done_t) A_{t+1}, where V'_t is
    0 after a termination, V_t after a truncation (the state after it was replaced by the reset, and
    V_t is the nearest value known, as in IsaacGymEnvs' value bootstrap), and V_{t+1} otherwise.

    Args:
        rewards: [H, N].
        values: [H, N] V_t.
        last_value: [N] V_H.
        terminated: [H, N].
        truncated: [H, N].
        gamma: Discount per step.
        lam: Trades bias (0) against variance (1).
    """
    delta, goes_on = td_errors(rewards, values, last_value, terminated, truncated, gamma)
    carry = np.float32(gamma * lam) * goes_on
    advantages = np.empty_like(rewards)
    following = np.zeros_like(last_value)
    for t in range(len(rewards) - 1, -1, -1):
        following = delta[t] + carry[t] * following
        advantages[t] = following
    return advantages


def td_errors(
    rewards: Float,
    values: Float,
    last_value: Float,
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    gamma: float,
) -> tuple[Float, NDArray[np.bool_]]:
    """Returns delta_t = r_t + gamma V'_t - V_t and where episodes go on; each [H, N].

    Arguments and V' as `generalized_advantages` has them.
    """
    successor = np.empty_like(values)
    successor[:-1] = values[1:]
    successor[-1] = last_value
    np.copyto(successor, values, where=truncated)
    successor[terminated] = 0.0
    delta = rewards + np.float32(gamma) * successor - values
    return delta, ~(terminated | truncated)


def gaussian_log_prob(actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Returns the log-density [B] of actions [B, A] under independent Gaussians."""
    z = (actions - mean) * torch.exp(-log_std)
    terms = z.square().mul_(-0.5).sub_(log_std)
    return terms.sum(-1).sub_(0.5 * _LOG_2PI * actions.shape[-1])


def gaussian_entropy(log_std: Tensor) -> Tensor:
    """Returns the entropy [...] of independent Gaussians with log_std [..., A], nat."""
    return log_std.sum(-1) + 0.5 * (1.0 + _LOG_2PI) * log_std.shape[-1]


def normalized_advantages(advantages: Tensor, mean: float | Tensor, std: float | Tensor) -> Tensor:
    """Returns (A - mean) / (std + 1e-8)."""
    return (advantages - mean) / (std + _EPSILON)


class OutputGradients(NamedTuple):
    """Derivatives of the total loss by the policy's outputs: mean [B, A], log_std, value [B]."""

    mean: Tensor
    log_std: Tensor
    value: Tensor


def means_and_gradients(
    outputs: tuple[Tensor, Tensor, Tensor],
    batch: Batch,
    advantage_mean: float | Tensor,
    advantage_std: float | Tensor,
    minibatch_rows: int,
    settings: LossSettings,
) -> tuple[Tensor, OutputGradients]:
    """Returns one part's losses and their derivatives by the policy's outputs, where those lie.

    The derivatives are written out, so autograd only has to walk the network itself. Everything is
    divided by `minibatch_rows`, so that the parts of one minibatch add up to its mean.

    Args:
        outputs: (mean[B, A], log_std[A] or [B, A], value[B]) of the current policy.
        batch: The rows of this part.
        advantage_mean: Mean advantage of the whole batch.
        advantage_std: Standard deviation of the advantages of the whole batch.
        minibatch_rows: Rows of the minibatch that this is a part of.
        settings: Weights of the objective.

    Returns:
        [6] policy, value, entropy, approx_kl, clip_fraction and ratio of `LossParts`; gradients.
    """
    mean, log_std, value = (tensor.detach() for tensor in outputs)
    weight = 1.0 / minibatch_rows
    inverse_std = torch.exp(-log_std)
    z = (batch.actions - mean) * inverse_std
    z2 = z.square()
    constant = 0.5 * _LOG_2PI * mean.shape[-1]
    log_prob = (z2 * -0.5 - log_std).sum(-1) - constant
    log_ratio = log_prob - batch.log_probs
    ratio = torch.exp(log_ratio)
    advantage = normalized_advantages(batch.advantages, advantage_mean, advantage_std)
    free = ratio * advantage
    clipped = ratio.clamp(1.0 - settings.clip, 1.0 + settings.clip) * advantage
    surrogate = torch.minimum(free, clipped)
    # d min(free, clipped) / d log_prob = free where it is the smaller, else 0 (clipped is flat).
    by_log_prob = torch.where(free <= clipped, free, 0.0).mul_(-weight).unsqueeze(-1)
    by_mean = by_log_prob * z * inverse_std
    by_log_std = by_log_prob * (z2 - 1.0) - settings.entropy_coef * weight
    if log_std.dim() == 1:
        by_log_std = by_log_std.sum(0)
    value_losses, by_value = _value_loss(value, batch, settings)
    by_value = by_value * (settings.value_coef * weight)
    entropy = gaussian_entropy(log_std)
    rows = len(value)
    entropy_sum = entropy * rows if log_std.dim() == 1 else entropy.sum()
    outside = (ratio - 1.0).abs() > settings.clip
    sums = torch.stack(
        [
            -surrogate.sum(),
            value_losses.sum(),
            entropy_sum,
            (ratio - 1.0 - log_ratio).sum(),
            outside.sum().to(torch.float32),
            ratio.sum(),
        ]
    )
    return sums * weight, OutputGradients(by_mean, by_log_std, by_value)


def loss_and_gradients(
    outputs: tuple[Tensor, Tensor, Tensor],
    batch: Batch,
    advantage_mean: float,
    advantage_std: float,
    minibatch_rows: int,
    settings: LossSettings,
) -> tuple[LossParts, OutputGradients]:
    """Returns one part's losses as numbers, and gradients; the rest as `means_and_gradients`."""
    means, gradients = means_and_gradients(
        outputs, batch, advantage_mean, advantage_std, minibatch_rows, settings
    )
    policy, value_loss, entropy_mean, kl, fraction, ratio_mean = means.tolist()
    losses = LossParts(
        policy=policy,
        value=value_loss,
        entropy=entropy_mean,
        approx_kl=kl,
        clip_fraction=fraction,
        total=policy + settings.value_coef * value_loss - settings.entropy_coef * entropy_mean,
        ratio=ratio_mean,
        rows=len(batch.values) * (1.0 / minibatch_rows),
    )
    return losses, gradients


def _value_loss(value: Tensor, batch: Batch, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """Returns (loss[B], d loss / d value[B]) of max((V - R)^2, (V_clipped - R)^2) / 2."""
    error = value - batch.returns
    loss = error.square()
    if not settings.clip_value:
        return loss * 0.5, error
    moved = value - batch.values
    far = moved.abs() > settings.clip
    clipped = batch.values + moved.clamp(-settings.clip, settings.clip)
    # Within the clip both errors are one; computing it twice would differ by rounding.
    clipped_loss = torch.where(far, (clipped - batch.returns).square_(), loss)
    # Where the clipped error is the larger, the value has moved too far already: flat.
    gradient = torch.where(clipped_loss > loss, 0.0, error)
    return torch.maximum(loss, clipped_loss) * 0.5, gradient


def part_gradient(
    module: torch.nn.Module,
    batch: Batch,
    advantage_mean: float,
    advantage_std: float,
    minibatch_rows: int,
    settings: LossSettings,
) -> LossParts:
    """Adds one part's gradient to the parameters' `.grad` and returns its losses.

    The gradient is a sum over rows divided by `minibatch_rows`: parts of one minibatch add up to
    the gradient of its mean loss, whatever the number of parts.
    """
    outputs = module(batch.obs)
    losses, gradients = loss_and_gradients(
        outputs, batch, advantage_mean, advantage_std, minibatch_rows, settings
    )
    torch.autograd.backward(outputs, gradients)
    return losses
