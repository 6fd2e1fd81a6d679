# ruff: noqa: N815 - shape suffixes (devices_TBU) are upper case
"""PLACETO: sweeps over a complete placement, one unit at a time, learned on the target graph.

The state is a complete placement; a sweep visits every unit once and may move it; the reward of a
step is the improvement of the simulated time. Every move is a call of the scorer (a unit that
stays costs none). Several sweeps walk side by side, as the original's parallel workers do.

As in the original: node features, 8 rounds of messages forward and 8 backward at every step, three
pools, REINFORCE with a baseline per step (mean of the last 10 rounds), entropy weight from 1.0,
gradient clip 1.25, rate 1e-3 to 1e-4, penalty for memory. Beyond it, because the problems are
wider: times per device as features, groups move as one, masks for kinds, pins, links and state. A
policy that moves nothing any more would leave its budget unspent: after ten such sweeps it begins
anew, with other weights and from the best placement so far, where the original would go on in vain.
Devices only are chosen; the order is the b-level's (see `placement_inputs`).

Source: Addanki et al. 2019 (arXiv 1906.08879).
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

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
from doppler.planners.mask import Bools, Ints
from doppler.planners.placement_inputs import PlacementInputs, legal_devices
from doppler.planners.round_robin import deal
from doppler.planners.tables import Floats
from doppler.policies.config import MessagePassing
from doppler.policies.placeto.network import PlacetoNetwork

ROWS_AT_ONCE = 40_000
BASELINE_ROUNDS = 10
# Beginnings in a row that move nothing, after which there is nothing to move.
MAX_IDLE_RESTARTS = 3
MAX_GRADIENT = 1.25
# Reward in per cent of the start's time, so that an entropy weight of 1.0 means something.
REWARD_SCALE = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacetoConfig(TrainingSettings):
    """Settings beside those of all such planners; defaults are the original's where it states them.

    Stage I imitates the critical-path rule at every step of a sweep; what begins anew has none.

    Attributes:
        messages: When embeddings are made.
        workers: Sweeps side by side.
        hidden: Width of an embedding.
        rounds: Rounds of messages in each direction.
        memory_factor: A placement that does not fit counts as that many times the longest time that
            was seen of any that does.
    """

    messages: MessagePassing = MessagePassing.per_step
    workers: int = 4
    hidden: int = 16
    rounds: int = 8
    memory_factor: float = 2.0

    def __post_init__(self) -> None:
        check_settings(self, "PLACETO", "workers", "hidden", "rounds")


def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the best plan that PLACETO saw.

    Raises:
        CapacityError: If no plan that was scored fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    return PlacetoPlanner()(problem, scorer, budget, rng)


@dataclass(slots=True, kw_only=True)
class PlacetoPlanner(PlacementPlanner):
    """PLACETO with its settings; `values_ns` are means at the end of each finished sweep.

    Attributes:
        config: Settings.
    """

    source = "placeto"
    config: PlacetoConfig = field(default_factory=PlacetoConfig)

    def learn(self, run: PlacementRun) -> list[float]:
        """Learns from the best of round robin and the single devices, or from m-ETF's plan.

        That is where neither fits in memory.
        """
        inputs, evaluator = run.inputs, run.evaluator
        calls, mask = evaluator.remaining, inputs.mask
        single = (mask.complete(mask.prefer_device(d)) for d in range(mask.num_devices))
        starts_SU = np.stack([deal(mask), *single])
        priorities_SV = np.tile(inputs.priority_V, (len(starts_SU), 1))
        values_S = evaluator.score(mask.placement(starts_SU), priorities_SV)
        start_U = starts_SU[int(values_S.argmin())]
        roomy = run.plan_that_fits()
        if roomy is not None:
            start_U = mask.devices_of(roomy.placement)
        return _Run(inputs, evaluator, self.config, start_U, run.rng).learn(calls)


@dataclass(frozen=True, slots=True)
class _Sweep:
    """What one sweep of B workers left: T steps."""

    devices_TBU: Ints
    actions_TB: Ints
    rewards_TB: Floats
    legal_TBD: Bools


class _Run:
    def __init__(
        self,
        inputs: PlacementInputs,
        evaluator: Evaluator,
        config: PlacetoConfig,
        start_U: Ints,
        rng: np.random.Generator,
    ) -> None:
        self._inputs, self._evaluator, self._config = inputs, evaluator, config
        self._rng = rng
        self._static = torch.from_numpy(inputs.static_NF.astype(np.float32))
        self._times_ND = inputs.times_ND.astype(np.float32)
        self._src, self._dst = torch.from_numpy(inputs.src_E), torch.from_numpy(inputs.dst_E)
        self._sweep_U = [
            int(unit) for unit in inputs.sweep_U if inputs.mask.allowed_UD[unit].sum() > 1
        ]
        weights = [self._weights(unit) for unit in self._sweep_U]
        self._members_TN = [row for row, _ in weights]
        self._pools_T3N = [row for _, row in weights]
        self._longest_ns = float(evaluator.best_ns)
        self._begin(start_U)

    def _begin(self, start_U: Ints) -> None:
        """New weights, nothing of the past, sweeps from `start_U`."""
        inputs, config = self._inputs, self._config
        self._start_U = start_U
        # The start's value; where it did not fit, that of any plan that did.
        self._start_ns = float(self._evaluator.best_ns)
        num_devices = inputs.mask.num_devices
        num_features = self._static.shape[1] + num_devices + 4
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(self._rng.integers(2**31)))
            self._network = PlacetoNetwork(num_features, num_devices, config.hidden, config.rounds)
        self._optimizer = torch.optim.Adam(self._network.parameters(), lr=config.rate)
        self._past: deque[Floats] = deque(maxlen=BASELINE_ROUNDS)

    def learn(self, calls: int) -> list[float]:
        """Sweeps and learns until the budget ends; returns the mean value after each sweep."""
        values: list[float] = []
        if not self._sweep_U or self._evaluator.best_ns >= INFEASIBLE_NS:
            return values
        self._imitate()
        idle = 0
        while self._evaluator.remaining > 0:
            before = self._evaluator.remaining
            sweep, ends_B = self._sweep()
            if self._evaluator.remaining <= 0:
                break
            values.append(float(ends_B.mean()))
            done = 1.0 - self._evaluator.remaining / calls
            self._update(sweep, done)
            # A policy that moves nothing any more spends nothing and learns nothing.
            idle = idle + 1 if self._evaluator.remaining == before else 0
            if idle == MAX_IDLE_RESTARTS * BASELINE_ROUNDS:
                break
            if idle and idle % BASELINE_ROUNDS == 0:
                self._begin(self._best_devices())
        return values

    def _best_devices(self) -> Ints:
        """Devices of the best placement so far."""
        best_V = self._evaluator.best_placement_V
        assert best_V is not None  # `learn` sweeps only where something fits
        return self._inputs.mask.devices_of(best_V)

    def _weights(self, unit: int) -> tuple[Tensor, Tensor]:
        """Weights of a unit's ops, N, and of ancestors, descendants and parallel peers, 3 x N."""
        inputs = self._inputs
        members = inputs.members_of(unit)
        own = np.zeros(inputs.num_ops, dtype=np.bool_)
        own[members] = True
        above = inputs.ancestors_NN[members].any(axis=0) & ~own
        below = inputs.ancestors_NN[:, members].any(axis=1) & ~own
        rows = np.stack([above, below, ~(above | below | own)]).astype(np.float32)
        rows /= np.maximum(1.0, rows.sum(axis=1, keepdims=True))
        row = own.astype(np.float32) / len(members)
        return torch.from_numpy(row), torch.from_numpy(rows)

    def _features(self, devices_SU: Ints, steps_S: Ints) -> Tensor:
        """Features N x S x F of S states: placement and step."""
        inputs = self._inputs
        devices_SN = devices_SU[:, inputs.unit_N]
        count, num_ops = devices_SN.shape
        num_devices = inputs.mask.num_devices
        rank_U = np.full(inputs.mask.num_units, -1, dtype=np.int64)
        rank_U[self._sweep_U] = np.arange(len(self._sweep_U))
        rank_N = rank_U[inputs.unit_N]
        dynamic = np.zeros((num_ops, count, num_devices + 4), dtype=np.float32)
        dynamic[..., 0] = np.log(self._times_ND[np.arange(num_ops)[:, None], devices_SN.T] + 0.01)
        dynamic[..., 1] = inputs.starts(devices_SU).T
        dynamic[..., 2] = rank_N[:, None] < steps_S
        dynamic[..., 3] = rank_N[:, None] == steps_S
        np.put_along_axis(dynamic[..., 4:], devices_SN.T[..., None], 1.0, axis=2)
        static = self._static[:, None, :].expand(-1, count, -1)
        return torch.cat([static, torch.from_numpy(dynamic)], dim=2)

    def _logits(self, devices_SU: Ints, steps_S: Ints, legal_SD: Bools, base_SU: Ints) -> Tensor:
        """Log-probabilities S x D; `base_SU` is the state whose embeddings are read."""
        network = self._network
        features = self._features(devices_SU, steps_S)
        seen = features
        if self._config.messages is MessagePassing.once:
            seen = self._features(base_SU, np.full(len(base_SU), -1, dtype=np.int64))
        embeddings = network.encode(seen, self._src, self._dst)
        members = torch.stack([self._members_TN[step] for step in steps_S.tolist()])
        pools = torch.stack([self._pools_T3N[step] for step in steps_S.tolist()], dim=1)
        logits = network.logits(embeddings, features, members, pools)
        blocked = torch.from_numpy(~legal_SD)
        return torch.log_softmax(logits.masked_fill(blocked, -1e9), dim=1)

    def _sweep(self) -> tuple[_Sweep, Floats]:
        workers, units = self._config.workers, self._sweep_U
        mask, evaluator = self._inputs.mask, self._evaluator
        devices_BU = np.tile(self._start_U, (workers, 1))
        values_B = np.full(workers, self._start_ns)
        states, actions, rewards, legals = [], [], [], []
        for step, unit in enumerate(units):
            legal_BD = legal_devices(mask, devices_BU, unit)
            steps_B = np.full(workers, step, dtype=np.int64)
            base_BU = np.tile(self._start_U, (workers, 1))
            with torch.no_grad():
                chances = self._logits(devices_BU, steps_B, legal_BD, base_BU).exp().numpy()
            action_B = self._draw(chances, legal_BD)
            states.append(devices_BU.copy())
            moved = np.flatnonzero(action_B != devices_BU[:, unit])
            devices_BU[:, unit] = action_B
            new_B = values_B.copy()
            if len(moved):
                placements = mask.placement(devices_BU[moved])
                priorities = np.tile(self._inputs.priority_V, (len(moved), 1))
                found = evaluator.score(placements, priorities)
                new_B[moved[: len(found)]] = self._times(found)
            actions.append(action_B)
            legals.append(legal_BD)
            rewards.append((values_B - new_B) / self._start_ns * REWARD_SCALE)
            values_B = new_B
            if evaluator.remaining <= 0:
                break
        sweep = _Sweep(np.stack(states), np.stack(actions), np.stack(rewards), np.stack(legals))
        return sweep, values_B

    def _times(self, found_B: Ints) -> Floats:
        """Values as times; what does not fit is worse than anything that does."""
        fits_B = found_B < INFEASIBLE_NS
        self._longest_ns = max(self._longest_ns, float(found_B[fits_B].max(initial=0)))
        penalty_ns = self._config.memory_factor * self._longest_ns
        return np.where(fits_B, found_B.astype(np.float64), penalty_ns)

    def _draw(self, chances_BD: Floats, legal_BD: Bools) -> Ints:
        """One device per row by inverse distribution; never one that is not legal."""
        chances = chances_BD * legal_BD
        cumulative = np.cumsum(chances / chances.sum(axis=1, keepdims=True), axis=1)
        drawn = (cumulative <= self._rng.random((len(chances), 1))).sum(axis=1)
        last = legal_BD.shape[1] - 1 - legal_BD[:, ::-1].argmax(axis=1)
        return np.asarray(np.minimum(drawn, last), dtype=np.int64)

    def _update(self, sweep: _Sweep, done: float) -> None:
        """One REINFORCE step over all decisions of a sweep."""
        config = self._config
        returns_TB = sweep.rewards_TB[::-1].cumsum(axis=0)[::-1]
        if self._past:
            baseline_TB = np.mean(self._past, axis=0)[:, None]
        else:  # the first round has no past: the other workers of the same round
            others = max(1, config.workers - 1)
            baseline_TB = (returns_TB.sum(axis=1, keepdims=True) - returns_TB) / others
        self._past.append(returns_TB.mean(axis=1))
        advantages_TB = returns_TB - baseline_TB
        entropy_weight = config.entropy * (1.0 - done)
        self._set_rate(config.rate + (config.last_rate - config.rate) * done)
        self._optimizer.zero_grad(set_to_none=True)
        steps, workers = sweep.actions_TB.shape
        for first in self._chunks(steps, workers):
            rows = slice(first[0], first[1])
            log_chances = self._step_logits(sweep, rows)
            actions = torch.from_numpy(sweep.actions_TB[rows].reshape(-1))
            weights = torch.from_numpy(advantages_TB[rows].reshape(-1).astype(np.float32))
            chosen = log_chances.gather(1, actions[:, None])[:, 0]
            entropy = -(log_chances.exp() * log_chances).sum(dim=1)
            loss = -(weights * chosen + entropy_weight * entropy).sum() / (steps * workers)
            loss.backward()  # type: ignore[no-untyped-call]
        self._step()

    def _imitate(self) -> None:
        """Stage I: all its updates go towards one teacher, along the sweep that it would make."""
        if not self._config.imitation:
            return
        mask, teacher_U = self._inputs.mask, self._inputs.teacher(self._rng)
        devices_U, states, legals = self._start_U.copy(), [], []
        for unit in self._sweep_U:
            states.append(devices_U.copy())
            legal_D = legal_devices(mask, devices_U[None], unit)[0]
            legals.append(legal_D)
            if legal_D[teacher_U[unit]]:
                devices_U[unit] = teacher_U[unit]
        actions = teacher_U[self._sweep_U]
        legal_TD = np.stack(legals)
        followed = legal_TD[np.arange(len(actions)), actions].astype(np.float64)
        sweep = _Sweep(
            np.stack(states)[:, None], actions[:, None], followed[:, None], legal_TD[:, None]
        )
        self._set_rate(self._config.rate)
        for _ in range(self._config.imitation):
            self._follow(sweep, followed)

    def _follow(self, sweep: _Sweep, followed_T: Floats) -> None:
        """One update towards the actions of a sweep of one worker, where they were legal."""
        actions = torch.from_numpy(sweep.actions_TB[:, 0])
        self._optimizer.zero_grad(set_to_none=True)
        for first, last in self._chunks(len(actions), 1):
            log_chances = self._step_logits(sweep, slice(first, last))
            chosen = log_chances.gather(1, actions[first:last, None])[:, 0]
            weights = torch.from_numpy(followed_T[first:last].astype(np.float32))
            loss = -(weights * chosen).sum() / len(actions)
            loss.backward()  # type: ignore[no-untyped-call]
        self._step()

    def _step_logits(self, sweep: _Sweep, rows: slice) -> Tensor:
        states = sweep.devices_TBU[rows]
        count, workers = states.shape[:2]
        steps = np.repeat(np.arange(rows.start, rows.start + count), workers)
        flat = states.reshape(count * workers, -1)
        legal = sweep.legal_TBD[rows].reshape(count * workers, -1)
        return self._logits(flat, steps, legal, np.tile(self._start_U, (len(flat), 1)))

    def _chunks(self, steps: int, workers: int) -> list[tuple[int, int]]:
        size = max(1, ROWS_AT_ONCE // max(1, workers * self._inputs.num_ops))
        return [(first, min(steps, first + size)) for first in range(0, steps, size)]

    def _set_rate(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def _step(self) -> None:
        torch.nn.utils.clip_grad_norm_(self._network.parameters(), MAX_GRADIENT)
        self._optimizer.step()
