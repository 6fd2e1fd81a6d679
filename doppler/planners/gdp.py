"""GDP: devices of all ops in one shot from a graph network, learned on the target graph by PPO.

As in the original: GraphSAGE with max-pooled neighbours, a placer of segment-recurrent attention
without positions, superposition of the graph's embedding, PPO, reward = -sqrt(run time), a large
penalty for placements that cannot run, the kind of an op as a feature. Beyond it, because the
problems are wider: times per device as features, one decision per group, masks for kinds and pins.
Devices only are chosen; the order is the b-level's (see `placement_inputs`). A placement that lacks
a link or room for state is given the penalty without a call of the scorer.

Source: Zhou et al. 2019 (arXiv 1910.01578); Schulman et al. 2017 (PPO, equation 7).
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from doppler.core.errors import ConfigError
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import INFEASIBLE_NS, Scorer
from doppler.planners.base import Budget
from doppler.planners.evaluator import Evaluator
from doppler.planners.learned_placement import (
    PlacementPlanner,
    PlacementRun,
    TrainingSettings,
    check_settings,
)
from doppler.planners.mask import Ints
from doppler.planners.placement_inputs import PlacementInputs
from doppler.planners.tables import Floats
from doppler.policies.gdp.network import GdpNetwork

PENALTY = -10.0
# Calls kept for m-ETF while nothing that was sampled fits.
RESERVE = 4
MAX_IDLE = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GdpConfig(TrainingSettings):
    """Settings, beside those of all such planners.

    Attributes:
        samples: Placements per update.
        epochs: Gradient steps per update.
        clip: Largest change of a probability ratio that is rewarded.
        hidden: Width of an embedding.
        sage_layers, placer_layers, heads, segment: Shape of the network.
        memory: Part of the old baseline that an update keeps.
    """

    samples: int = 16
    epochs: int = 4
    clip: float = 0.2
    hidden: int = 64
    sage_layers: int = 3
    placer_layers: int = 2
    heads: int = 4
    segment: int = 128
    entropy: float = 0.03
    memory: float = 0.9

    def __post_init__(self) -> None:
        check_settings(
            self, "GDP", "samples", "epochs", "sage_layers", "placer_layers", "heads", "segment"
        )
        if self.hidden < 1 or self.hidden % self.heads:
            raise ConfigError(
                f"hidden of GDP is a multiple of heads ({self.heads}), and it is {self.hidden}"
            )


def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the best plan that GDP saw.

    Raises:
        CapacityError: If no plan that was scored fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    return GdpPlanner()(problem, scorer, budget, rng)


@dataclass(slots=True, kw_only=True)
class GdpPlanner(PlacementPlanner):
    """GDP with its settings; `values_ns` are means over the feasible samples of an update.

    Attributes:
        config: Settings.
    """

    source = "gdp"
    config: GdpConfig = field(default_factory=GdpConfig)

    def learn(self, run: PlacementRun) -> list[float]:
        """Learns; where no sample fits in memory, m-ETF's plan is the best one."""
        calls = run.evaluator.remaining
        values = _Run(run.inputs, run.evaluator, self.config, run.rng).learn(calls)
        run.plan_that_fits()
        return values


class _Run:
    def __init__(
        self,
        inputs: PlacementInputs,
        evaluator: Evaluator,
        config: GdpConfig,
        rng: np.random.Generator,
    ) -> None:
        self._inputs, self._evaluator, self._config, self._rng = inputs, evaluator, config, rng
        mask = inputs.mask
        features = np.concatenate([inputs.static_NF, inputs.kind_NK], axis=1)
        self._features = torch.from_numpy(features.astype(np.float32))
        self._src, self._dst = torch.from_numpy(inputs.src_E), torch.from_numpy(inputs.dst_E)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**31)))
            self._network = GdpNetwork(
                self._features.shape[1],
                mask.num_devices,
                config.hidden,
                config.sage_layers,
                config.placer_layers,
                config.heads,
                config.segment,
            )
        self._optimizer = torch.optim.Adam(self._network.parameters(), lr=config.rate)
        self._unit = torch.from_numpy(inputs.unit_N)
        counts = np.bincount(inputs.unit_N, minlength=mask.num_units)
        self._share = torch.from_numpy((1.0 / np.maximum(1, counts)).astype(np.float32))
        self._blocked = torch.from_numpy(~mask.allowed_UD)
        self._baseline: float | None = None
        self._scale_ns = 0.0

    def learn(self, calls: int) -> list[float]:
        """Samples and learns until the budget ends; returns the mean value of each update."""
        values: list[float] = []
        evaluator, config = self._evaluator, self._config
        if not self._inputs.mask.num_units:
            self._score(np.zeros((1, 0), dtype=np.int64))
            return values
        self._imitate()
        self._score(self._completed())
        idle = 0
        while evaluator.remaining > 0 and idle < MAX_IDLE:
            kept = RESERVE if evaluator.best_ns >= INFEASIBLE_NS else 0
            if evaluator.remaining <= kept:
                break
            before = evaluator.remaining
            with torch.no_grad():
                old = self._log_chances()
            devices_BU = self._draw(old.exp().numpy(), min(config.samples, before - kept))
            values_B = self._score(devices_BU)
            feasible = values_B < INFEASIBLE_NS
            if feasible.any():
                values.append(float(values_B[feasible].mean()))
            self._update(devices_BU, values_B, old, 1.0 - evaluator.remaining / calls)
            idle = idle + 1 if evaluator.remaining == before else 0
        if evaluator.remaining > 0 and evaluator.best_ns < INFEASIBLE_NS:
            self._score(self._completed())
        return values

    def _log_chances(self) -> Tensor:
        """Log-probabilities U x D: the mean logit of a unit's ops, masked."""
        logits_ND = self._network(self._features, self._src, self._dst)
        summed = logits_ND.new_zeros(len(self._share), logits_ND.shape[1])
        logits = summed.index_add(0, self._unit, logits_ND) * self._share[:, None]
        return torch.log_softmax(logits.masked_fill(self._blocked, -1e9), dim=1)

    def _completed(self) -> Ints:
        """The most likely placement; where it is not legal, the nearest that the mask finds."""
        with torch.no_grad():
            chances = self._log_chances().numpy()
        preference_UD = np.argsort(-chances, axis=1, kind="stable")
        return self._inputs.mask.complete(preference_UD)[None]

    def _draw(self, chances_UD: Floats, count: int) -> Ints:
        cumulative = np.cumsum(chances_UD / chances_UD.sum(axis=1, keepdims=True), axis=1)
        draws = self._rng.random((count, len(chances_UD), 1))
        devices = (cumulative[None] <= draws).sum(axis=2)
        allowed_UD = self._inputs.mask.allowed_UD
        last_U = allowed_UD.shape[1] - 1 - allowed_UD[:, ::-1].argmax(axis=1)
        return np.asarray(np.minimum(devices, last_U), dtype=np.int64)

    def _score(self, devices_BU: Ints) -> Ints:
        """Values in ns; what is not legal is infeasible and costs no call."""
        mask = self._inputs.mask
        values = np.full(len(devices_BU), INFEASIBLE_NS, dtype=np.int64)
        legal = np.asarray([b for b, row in enumerate(devices_BU) if mask.is_legal(row)], np.int64)
        if len(legal):
            placements = mask.placement(devices_BU[legal])
            priorities = np.tile(self._inputs.priority_V, (len(legal), 1))
            found = self._evaluator.score(placements, priorities)
            values[legal[: len(found)]] = found
        return values

    def _update(self, devices_BU: Ints, values_B: Ints, old_UD: Tensor, done: float) -> None:
        """PPO over the decisions of all units of all samples."""
        config = self._config
        feasible = values_B < INFEASIBLE_NS
        if not self._scale_ns and feasible.any():
            self._scale_ns = float(values_B[feasible].mean())
        scale = max(1.0, self._scale_ns)
        rewards_B = np.where(feasible, -np.sqrt(values_B / scale), PENALTY)
        mean = float(rewards_B.mean())
        baseline = mean if self._baseline is None else self._baseline
        self._baseline = config.memory * baseline + (1.0 - config.memory) * mean
        advantages = rewards_B - baseline
        advantages /= float(advantages.std()) + 1e-6
        weights = torch.from_numpy(advantages.astype(np.float32))[:, None]
        actions = torch.from_numpy(devices_BU.T.copy())
        before = old_UD.gather(1, actions).T
        entropy_weight = config.entropy * (1.0 - done)
        rate = config.rate + (config.last_rate - config.rate) * done
        for _ in range(config.epochs):
            now_UD = self._log_chances()
            ratio = (now_UD.gather(1, actions).T - before).exp()
            clipped = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
            gain = torch.minimum(ratio * weights, clipped * weights).mean()
            entropy = -(now_UD.exp() * now_UD).sum(dim=1).mean()
            self._step(-(gain + entropy_weight * entropy), rate)

    def _imitate(self) -> None:
        """Stage I: all its updates go towards one teacher."""
        if not self._config.imitation:
            return
        teacher = torch.from_numpy(self._inputs.teacher(self._rng))[:, None]
        for _ in range(self._config.imitation):
            self._step(-self._log_chances().gather(1, teacher).mean(), self._config.rate)

    def _step(self, loss: Tensor, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._network.parameters(), 1.0)
        self._optimizer.step()
