"""Guides: what one episode is decoded with, how they are drawn, and how they become plans.

Sources: Plappert et al. 2018 (noise that lasts for an episode); facts of the portfolio study (keys
that a list rule decodes).
"""

from dataclasses import dataclass, replace

import numpy as np

from doppler.planners.list_schedule import ListScheduler
from doppler.planners.setting_checks import check_at_least, check_budget_parts, check_parts
from doppler.policies.assignment import Floats, Ints
from doppler.policies.dual import PolicyInputs
from doppler.policies.sampling import (
    MIN_TEMPERATURE,
    SampleMode,
    Temperature,
    plan_arrays,
    sample_episodes,
)
from doppler.policies.tables import Heads

STRENGTHS = (0.0, 0.5, 1.0)
SCORE_SCALE = 8.0
"""SEL's scores begin as this times b-level over critical path; HEFT's ranks are brought to it."""

_COLD = Temperature(select=MIN_TEMPERATURE, place=MIN_TEMPERATURE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidedSettings:
    """How the budget is spent, and how far a guide moves.

    Attributes:
        draw_share: Part of the budget for guides drawn round the policies.
        polish_share: Part for annealing from the best plan.
        finish_share: Part of the drawn guides whose devices are those of the earliest finish; at 1
            the policies are not asked at all.
        head_start: The steps go on from the policies' best guide, unless the best one of the
            earliest finish is better by more than this part.
        order_noise: Deviation of the scores of drawn guides (a part of the score where devices are
            those of the earliest finish, as in perturbed HEFT).
        order_spread: That deviation is drawn per guide, the logarithm uniform within so much of it.
        weight_noise: Deviation of the logarithm of the weights of drawn guides.
        shared_share: Part of the drawn guides round the policies whose scores move together for the
            shards of a tensor operation, so that shards keep their order.
        free_share: Part of the drawn guides round the policies whose timeline leaves out that
            transfers wait for each other: waiting in the order of placement keeps work from devices
            that would be free in time.
        step_ops: Largest part of the ops whose score one step changes.
        step_order: Deviation of such a change.
        step_weight: Deviation of the logarithm of a weight that a step changes.
    """

    draw_share: float = 0.5
    polish_share: float = 0.25
    finish_share: float = 0.4
    head_start: float = 0.04
    order_noise: float = 0.3
    order_spread: float = 0.0
    weight_noise: float = 1.0
    shared_share: float = 0.0
    free_share: float = 0.0
    step_ops: float = 0.4
    step_order: float = 0.5
    step_weight: float = 0.3

    def __post_init__(self) -> None:
        check_budget_parts(self, "draw_share", "polish_share")
        check_parts(self, "finish_share", "shared_share", "free_share", "step_ops")
        check_at_least(self, 0.0, "head_start", "order_noise", "order_spread", "weight_noise")
        check_at_least(self, 0.0, "step_order", "step_weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """What one episode is decoded with; N placed ops.

    Attributes:
        scores: The op of the largest score among the candidates comes next, N.
        weights: Of PLC's terms.
        strength: Of PLC's network.
        by_finish: True where devices are those of the earliest finish (HEFT's rule).
        free_wires: True where transfers of the timeline do not wait for each other.
    """

    scores: Floats
    weights: Floats
    strength: float
    by_finish: bool
    free_wires: bool = False


class GuideDecoder:
    """Turns guides into plans.

    Attributes:
        policy: The policies as they are.
        heft: HEFT's ranks, devices by earliest finish.
        lists: List schedules of the problem.
    """

    def __init__(self, inputs: PolicyInputs, heads: Heads, lists: ListScheduler) -> None:
        self._inputs, self._heads, self.lists = inputs, heads, lists
        self._free = inputs.tables._replace(bus_ptr=np.zeros_like(inputs.tables.bus_ptr))
        meta = inputs.assignment.meta
        alone = meta.max(initial=0) + 1 + np.arange(len(meta))
        _, first, same = np.unique(
            np.where(meta < 0, alone, meta), return_index=True, return_inverse=True
        )
        self._first_of_meta = first[same]
        ranks = lists.ranks_V[inputs.assignment.op_ids]
        self.policy = Guide(
            scores=heads.scores, weights=heads.priors, strength=1.0, by_finish=False
        )
        self.heft = replace(
            self.policy, scores=SCORE_SCALE * ranks / max(1.0, float(ranks.max())), by_finish=True
        )

    def decode(self, guide: Guide, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Returns (placements_BV, priorities_BV), B = 1."""
        if guide.by_finish:
            keys_BV = np.zeros((1, len(self.lists.ranks_V)))
            keys_BV[0, self._inputs.assignment.op_ids] = guide.scores
            devices_BU, priorities_BV, _ = self.lists.decode(keys_BV)
            return self.lists.mask.placement(devices_BU), priorities_BV
        heads = self._heads._replace(
            scores=guide.scores,
            priors=guide.weights,
            output=(self._heads.output * guide.strength).astype(np.float32),
        )
        tables = self._free if guide.free_wires else self._inputs.tables
        rollouts = sample_episodes(tables, heads, 1, rng, temperature=_COLD, mode=SampleMode.greedy)
        return plan_arrays(self._inputs.assignment, rollouts)

    def drawn(self, first: Guide, settings: GuidedSettings, rng: np.random.Generator) -> Guide:
        """Returns a guide round another one: all scores, all weights and the strength are drawn."""
        noise = settings.order_noise * rng.standard_normal(len(first.scores))
        if settings.order_spread > 0.0:
            noise *= np.exp(rng.uniform(-settings.order_spread, settings.order_spread))
        if first.by_finish:
            return replace(first, scores=first.scores * (1.0 + noise))
        scale = settings.weight_noise * rng.standard_normal(len(first.weights))
        strength = float(rng.choice(STRENGTHS))
        if settings.shared_share > 0.0 and rng.random() < settings.shared_share:
            noise = noise[self._first_of_meta]
        free_wires = settings.free_share > 0.0 and bool(rng.random() < settings.free_share)
        return replace(
            first,
            scores=first.scores + noise,
            weights=first.weights * np.exp(scale),
            strength=strength,
            free_wires=free_wires,
        )
