"""Ablations of the learned planner: what each part is worth, from nothing at equal simulations.

`VARIANTS` are the columns of `doppler experiment ablation`; the four that only change what learns
are registered as planners. What they cost and what they lose: docs/ablation.md.

Source: DOPPLER, dual-policy ablation (SEL-only, PLC-only) and message passing once per episode.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import Scorer
from doppler.planners.base import Budget
from doppler.planners.learned import LearnedPlanner
from doppler.policies.config import Learned, PolicyConfig, PolicyKind
from doppler.training.config import (
    ImitationConfig,
    LearnedMode,
    PPOConfig,
    ReinforceConfig,
    TrainingConfig,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A learned planner from scratch with one part left out or exchanged; it is a `Planner`.

    Attributes:
        mode: `tune` = stage II; `sample` = no stage II; `polish` = stage II and search.
        policy: What learns, which pair, which sizes.
        imitates: Stage I, imitation of the critical-path teacher, comes first.
        reinforce: Stage II.
    """

    mode: LearnedMode = LearnedMode.tune
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    imitates: bool = True
    reinforce: ReinforceConfig = field(default_factory=ReinforceConfig)

    def __call__(
        self, problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator
    ) -> Plan:
        """Returns the best plan; see `doppler.planners.base.Planner`.

        Raises:
            CapacityError: If no plan that was scored fits in memory.
            PlanError: If no placement obeys pins, kinds, groups and links.
        """
        imitation = ImitationConfig() if self.imitates else ImitationConfig(num_updates=0)
        planner = LearnedPlanner(
            mode=self.mode,
            policy_config=self.policy,
            training=TrainingConfig(imitation=imitation, reinforce=self.reinforce),
        )
        plan, learned = planner(problem, scorer, budget, rng), self.policy.learned
        return plan if learned is Learned.both else replace(plan, source=f"learned_{learned.value}")


def _learns(learned: Learned, kind: PolicyKind = PolicyKind.improved) -> PolicyConfig:
    return PolicyConfig(learned=learned, kind=kind)


_PAPER = PolicyConfig(kind=PolicyKind.paper)
_SMALL = PolicyConfig(hidden=24, rank=8, rounds=2)
_NO_ELITES = ReinforceConfig(elite_weight=0.0, elite_batch=0)

select_only = Variant(policy=_learns(Learned.select_only))
place_only = Variant(policy=_learns(Learned.place_only))
joint = Variant(policy=_learns(Learned.joint))
per_step = Variant(policy=_learns(Learned.per_step))

VARIANTS: dict[str, Variant] = {
    "dual": Variant(),
    "select_only": select_only,
    "place_only": place_only,
    "joint": joint,
    "stage_one": Variant(mode=LearnedMode.sample),
    "stage_two": Variant(imitates=False),
    "no_elites": Variant(reinforce=_NO_ELITES),
    "stage_two_no_elites": Variant(imitates=False, reinforce=_NO_ELITES),
    "joint_no_elites": Variant(policy=_learns(Learned.joint), reinforce=_NO_ELITES),
    "ppo": Variant(reinforce=PPOConfig()),
    "paper": Variant(policy=_PAPER),
    "paper_stage_one": Variant(policy=_PAPER, mode=LearnedMode.sample),
    "paper_stage_two": Variant(policy=_PAPER, imitates=False),
    "paper_select_only": Variant(policy=_learns(Learned.select_only, PolicyKind.paper)),
    "paper_place_only": Variant(policy=_learns(Learned.place_only, PolicyKind.paper)),
    "dual_search": Variant(mode=LearnedMode.polish),
    "small": Variant(policy=_SMALL),
    "small_per_step": Variant(policy=replace(_SMALL, learned=Learned.per_step)),
}
"""Columns of the ablation table. `small` is the base of `small_per_step`: messages at every step
cost as many encodings as there are steps, so both sides have a smaller network."""
