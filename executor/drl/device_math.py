"""What the tensor kernels compute, on tensors wherever they lie; one function per formula.

The kernels for cores compute the same with numpy, which is faster on small arrays; tests hold both
together. Nothing here waits for the device or names one. On a GPU *not yet run on hardware*.

Shape legend: H time steps, N environments, O observation values, A action values, L floats of a
segment.
"""

import threading
from collections.abc import Mapping, Sequence
from math import log, pi, sqrt
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from executor.drl.adam import BETA1, BETA2, EPSILON, NORM_FLOOR, check_state
from executor.drl.importance import Importance
from executor.drl.normalizer import CLIP_DEVIATIONS, VARIANCE_FLOOR

_HALF_LOG_2PI = 0.5 * log(2.0 * pi)


def normalize(obs: Tensor, moments: Tensor) -> Tensor:
    """Returns clip((obs - mean) / sqrt(variance + 1e-5), -10, 10) of obs[..., O].

    Args:
        obs: Raw observations, float32.
        moments: [1 + 2 O] as `executor.drl.normalizer` lays them out, float64.
    """
    columns = obs.shape[-1]
    mean = moments[1 : 1 + columns].to(torch.float32)
    variance = moments[1 + columns :] / moments[0]
    scale = (variance + VARIANCE_FLOOR).rsqrt().to(torch.float32)
    return (obs - mean).mul_(scale).clamp_(-CLIP_DEVIATIONS, CLIP_DEVIATIONS)


def measure_moments(rows: Tensor) -> Tensor:
    """Returns count, means and sums of squared deviations [1 + 2 O] of rows[N, O], float64."""
    wide = rows.to(torch.float64)
    mean = wide.mean(0)
    count = torch.full((1,), float(len(rows)), dtype=torch.float64, device=rows.device)
    return torch.cat([count, mean, (wide - mean).square_().sum(0)])


class Decision(NamedTuple):
    """What an agent decides: actions [N, A], their log-probabilities [N], values [N]."""

    actions: Tensor
    log_probs: Tensor
    values: Tensor


def decide(outputs: tuple[Tensor, Tensor, Tensor], noise: Tensor) -> Decision:
    """Returns mean + noise x std, with the density of what was drawn.

    Args:
        outputs: (mean[N, A], log_std[A] or [N, A], value[N]) of the policy.
        noise: [N, A] standard normal.
    """
    mean, log_std, value = outputs
    log_probs = (noise.square() * -0.5 - log_std - _HALF_LOG_2PI).sum(-1)
    return Decision(noise * log_std.exp() + mean, log_probs, value)


def generalized_advantages(
    rewards: Tensor,
    values: Tensor,
    last_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    lam: float,
) -> Tensor:
    """Returns advantages [H, N]; arguments and formula as `executor.drl.ppo` has them."""
    delta, goes_on = td_errors(rewards, values, last_value, terminated, truncated, gamma)
    carry = goes_on * (gamma * lam)
    advantages = torch.empty_like(rewards)
    following = torch.zeros_like(last_value)
    for t in range(len(rewards) - 1, -1, -1):
        following = torch.addcmul(delta[t], carry[t], following, out=advantages[t])
    return advantages


def td_errors(
    rewards: Tensor,
    values: Tensor,
    last_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
) -> tuple[Tensor, Tensor]:
    """Returns (delta, goes_on) as `executor.drl.ppo.td_errors`."""
    successor = torch.cat([values[1:], last_value.unsqueeze(0)])
    successor = torch.where(truncated, values, successor).masked_fill_(terminated, 0.0)
    return rewards + gamma * successor - values, ~(terminated | truncated)


def importance_estimates(
    kind: Importance,
    parts: Sequence[Tensor],
    gamma: float,
    lam: float,
    bounds: tuple[float, float],
) -> tuple[Tensor, Tensor]:
    """Returns (advantages, targets) as `executor.drl.importance.importance_estimates`.

    `parts` are the fields of its `Experience`.
    """
    rewards, values, last_value, terminated, truncated, log_ratios = parts
    rho, c = (log_ratios.clamp(max=log(bound)).exp() for bound in bounds)
    if kind is Importance.truncated:
        advantages = generalized_advantages(
            rewards, values, last_value, terminated, truncated, gamma, lam
        )
        return rho * advantages, values + advantages
    delta, goes_on = td_errors(rewards, values, last_value, terminated, truncated, gamma)
    decay = goes_on * (gamma * lam)
    carry, corrected = decay * c, rho * delta
    following = torch.zeros_like(last_value)
    advantages, targets = torch.empty_like(delta), torch.empty_like(delta)
    for t in range(len(delta) - 1, -1, -1):
        advantages[t] = rho[t] * torch.addcmul(delta[t], decay[t], following)
        following = torch.addcmul(corrected[t], carry[t], following)
        targets[t] = values[t] + following
    return advantages, targets


def clip_scale(squared_norms: Sequence[Tensor], max_norm: float) -> Tensor:
    """Returns min(1, max_norm / (norm + 1e-6)) of all segments together, float32[]."""
    norm = torch.stack([square.reshape(()) for square in squared_norms]).sum().sqrt()
    return (max_norm / (norm + NORM_FLOOR)).clamp_(max=1.0).to(torch.float32)


class DeviceAdamSegment:
    """`AdamSegment` on a device; their states are each other's.

    Args:
        parameters: [L] where they begin.
        torch_device: Where they are to lie.

    Attributes:
        parameters: [L] current values, there.
        lock: Held by whoever takes a step.
    """

    def __init__(self, parameters: NDArray[np.float32], torch_device: str) -> None:
        self.parameters = torch.from_numpy(parameters.copy()).to(torch_device)
        self.lock = threading.Lock()
        self._m = torch.zeros_like(self.parameters)
        self._v = torch.zeros_like(self.parameters)
        self._steps = 0

    @property
    def num_steps(self) -> int:
        """Steps taken."""
        return self._steps

    def step(self, gradient: Tensor, scale: Tensor, learning_rate: float) -> Tensor:
        """Takes one step with gradient[L] x scale[] and returns the parameters (not a copy)."""
        self._steps += 1
        gradient = gradient * scale
        # m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
        self._m.mul_(BETA1).add_(gradient, alpha=1 - BETA1)
        self._v.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        # p -= lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)
        below = self._v.sqrt().mul_(1.0 / sqrt(1.0 - BETA2**self._steps)).add_(EPSILON)
        rate = learning_rate / (1.0 - BETA1**self._steps)
        return self.parameters.addcdiv_(self._m, below, value=-rate)

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """Returns copies of parameters, moments and step count in host memory."""
        return {
            "parameters": _on_host(self.parameters),
            "m": _on_host(self._m),
            "v": _on_host(self._v),
            "steps": np.array([self._steps], np.int64),
        }

    def import_state(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Continues from an exported state, of this class or of `AdamSegment`.

        Raises:
            ExecutionError: A name or shape is not that of this segment.
        """
        check_state(self.export_state(), state)
        for name, mine in (("parameters", self.parameters), ("m", self._m), ("v", self._v)):
            mine.copy_(torch.from_numpy(np.array(state[name])))
        self._steps = int(state["steps"][0])

    def set_threads(self, num_threads: int) -> None:
        """Has no effect: the work is the device's."""


def _on_host(tensor: Tensor) -> NDArray[np.generic]:
    array: NDArray[np.generic] = tensor.cpu().numpy().copy()
    return array
