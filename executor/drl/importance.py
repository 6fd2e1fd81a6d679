"""Importance weights for experience of older policies: truncated weights and V-trace.

The environments of an asynchronous job act on weights that may be some versions old. Before it is
learned from, their experience is measured against the policy that is about to be trained, pi: the
weight of a step is pi(a|x) / mu(a|x), mu the policy that acted, and PPO's own ratio is then taken
to pi. The advantages that leave here are weighted by at most `rho_bar`; after that PPO normalises
them by mean and deviation of the batch as it does without weights, so a step of weight 0 ends at
-mean / deviation, not at 0. (PPO's clip alone does not bound weights: where the advantage is
negative, a large ratio passes.)

Shape legend: H time steps, N environments.

Source: Espeholt et al. 2018, "IMPALA", equation 1; the lambda of its remark 2, with the bootstrap
lambda v + (1 - lambda) V in the advantage, so that equal policies give GAE for every lambda;
Hilton et al. 2022, "Batch size-invariance for policy optimization", for a ratio to a policy that
did not act.
"""

import enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from executor.drl.ppo import generalized_advantages, td_errors

Float = NDArray[np.float32]


class Importance(enum.Enum):
    """How an asynchronous job weighs the experience of older policies.

    Attributes:
        none: Not at all.
        truncated: Advantages are multiplied by min(rho_bar, pi / mu); value targets are not
            corrected.
        vtrace: Targets and advantages of V-trace.
    """

    none = "none"
    truncated = "truncated"
    vtrace = "vtrace"


class Experience(NamedTuple):
    """What an estimate is made from, each [H, N] but `last_value`.

    Attributes:
        rewards: Scaled rewards.
        values: V_t under pi.
        last_value: [N] V_H.
        terminated: Ended for good.
        truncated: Cut by the time limit.
        log_ratios: log pi(a|x) - log mu(a|x).
    """

    rewards: Float
    values: Float
    last_value: Float
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    log_ratios: Float


def truncated_weights(log_ratios: Float, bound: float) -> Float:
    """Returns min(bound, exp(log_ratios))."""
    weights: Float = np.exp(np.minimum(log_ratios, np.float32(np.log(bound))))
    return weights


def weighted_advantages(
    experience: Experience, gamma: float, lam: float, rho_bar: float
) -> tuple[Float, Float]:
    """Returns (advantages, value targets), each [H, N]: rho_t A_t and V_t + A_t, A_t from GAE."""
    rewards, values, last_value, terminated, truncated, log_ratios = experience
    advantages = generalized_advantages(
        rewards, values, last_value, terminated, truncated, gamma, lam
    )
    return truncated_weights(log_ratios, rho_bar) * advantages, values + advantages


def vtrace(
    experience: Experience, gamma: float, lam: float, rho_bar: float, c_bar: float
) -> tuple[Float, Float]:
    """Returns (advantages, value targets v), each [H, N].

    With rho_t = min(rho_bar, pi / mu), c_t = lam min(c_bar, pi / mu), and delta_t = r_t + gamma
    V'_t - V_t as in `generalized_advantages`:

    v_t - V_t = rho_t delta_t + gamma c_t (1 - done_t) (v_{t+1} - V_{t+1});
    A_t = rho_t (delta_t + gamma lam (1 - done_t) (v_{t+1} - V_{t+1})).

    Args:
        experience: Steps in time order.
        gamma: Discount per step.
        lam: Trades bias (0) against variance (1).
        rho_bar: Decides which policy's values are learned: pi's where it is infinite, nearer to
            mu's the smaller it is.
        c_bar: How far corrections reach back: trades variance against speed.
    """
    rewards, values, last_value, terminated, truncated, log_ratios = experience
    delta, goes_on = td_errors(rewards, values, last_value, terminated, truncated, gamma)
    rho = truncated_weights(log_ratios, rho_bar)
    decay = goes_on * np.float32(gamma * lam)
    carry = decay * truncated_weights(log_ratios, c_bar)
    advantages, targets = np.empty_like(delta), np.empty_like(delta)
    following = np.zeros_like(last_value)
    for t in range(len(delta) - 1, -1, -1):
        advantages[t] = rho[t] * (delta[t] + decay[t] * following)
        following = rho[t] * delta[t] + carry[t] * following
        targets[t] = values[t] + following
    return advantages, targets


def importance_estimates(
    kind: Importance, experience: Experience, gamma: float, lam: float, bounds: tuple[float, float]
) -> tuple[Float, Float]:
    """Returns (advantages, value targets) of `kind`, which is not none.

    Args:
        kind: Which.
        experience: Steps in time order.
        gamma: Discount per step.
        lam: As the estimators.
        bounds: rho_bar, c_bar.
    """
    if kind is Importance.vtrace:
        return vtrace(experience, gamma, lam, *bounds)
    return weighted_advantages(experience, gamma, lam, bounds[0])
