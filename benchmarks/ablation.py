"""What each part of the learned planner is worth: policies, stages, elites, search.

Every row plans from scratch with the same budget of simulations, so that no row profits from the
pretrained pair. "value" is the simulated makespan over the best of all rows and seeds.

    python benchmarks/ablation.py [--episodes 1500] [--seeds 3] [--graphs matmul_chain ffnn]
"""

import argparse
import dataclasses
import json
from dataclasses import dataclass

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from support.common import finish

from doppler.curriculum import Pair
from doppler.planners.base import Budget
from doppler.planners.learned import LearnedPlanner
from doppler.policies.build import build_assignment
from doppler.policies.config import Learned, PolicyConfig, PolicyKind
from doppler.policies.dual import policy_inputs
from doppler.policies.joint import JointPolicy
from doppler.training.config import ImitationConfig, LearnedMode, ReinforceConfig, TrainingConfig
from doppler.training.learner import (
    gradient_step,
    make_optimizer,
    set_learning_rate,
    torch_threads,
)
from doppler.training.reinforce import leave_one_out
from doppler.transfer import problem_of
from simulator.scorer import CompiledScorer

SEED = 0
CLUSTER = "p100_pcie_4"
JOINT = "joint (op, device), II, no elites"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One row of the table.

    Attributes:
        name: What is said about it.
        mode: `sample` = no stage II.
        learned: Which policies learn.
        kind: Which pair.
        stage_one: Imitation of the critical-path teacher first.
        elites: Elites imitated in stage II.
    """

    name: str
    mode: LearnedMode = LearnedMode.tune
    learned: Learned = Learned.both
    kind: PolicyKind = PolicyKind.improved
    stage_one: bool = True
    elites: bool = True

    def planner(self) -> LearnedPlanner:
        """Returns the planner of this row."""
        reinforce = ReinforceConfig()
        if not self.elites:
            reinforce = dataclasses.replace(reinforce, elite_weight=0.0, elite_batch=0)
        imitation = ImitationConfig() if self.stage_one else ImitationConfig(num_updates=0)
        return LearnedPlanner(
            mode=self.mode,
            policy_config=PolicyConfig(kind=self.kind, learned=self.learned),
            training=TrainingConfig(imitation=imitation, reinforce=reinforce),
        )


VARIANTS = (
    Variant(name="dual, I + II"),
    Variant(name="SEL only, I + II", learned=Learned.select_only),
    Variant(name="PLC only, I + II", learned=Learned.place_only),
    Variant(name="dual, I", mode=LearnedMode.sample),
    Variant(name="dual, II", stage_one=False),
    Variant(name="dual, I + II, no elites", elites=False),
    Variant(name="dual, II, no elites", stage_one=False, elites=False),
    Variant(name="paper's pair, I + II", kind=PolicyKind.paper),
    Variant(name="paper's pair, I", kind=PolicyKind.paper, mode=LearnedMode.sample),
    Variant(name="paper's pair, II", kind=PolicyKind.paper, stage_one=False),
    Variant(
        name="paper's pair, SEL only, I + II", kind=PolicyKind.paper, learned=Learned.select_only
    ),
    Variant(
        name="paper's pair, PLC only, I + II", kind=PolicyKind.paper, learned=Learned.place_only
    ),
    Variant(name="dual, I + II + search", mode=LearnedMode.polish),
)


def values(variant: Variant, pair: Pair, episodes: int, seeds: int) -> list[int]:
    """Value of the variant's plan per seed."""
    found = []
    for seed in range(SEED, SEED + seeds):
        scorer = CompiledScorer(*pair)
        rng = np.random.default_rng(seed)
        plan = variant.planner()(pair[0], scorer, Budget(episodes), rng)
        found.append(int(CompiledScorer(*pair).score_plans([plan])[0]))
    return found


def joint_values(pair: Pair, episodes: int, seeds: int) -> list[int]:
    """Best value per seed of the joint policy: stage II without elites."""
    config, found = ReinforceConfig(), []
    for seed in range(SEED, SEED + seeds):
        scorer, rng = CompiledScorer(*pair), np.random.default_rng(seed)
        policy = JointPolicy(PolicyConfig(), seed)
        inputs = policy_inputs(build_assignment(*pair), policy.config)
        optimizer = make_optimizer(policy)
        best, reference, updates = 1 << 62, 0, episodes // config.batch
        for update in range(updates):
            fraction = update / max(1, updates - 1)
            set_learning_rate(optimizer, config.learning_rate.at(fraction))
            rollouts = policy.sample_joint(
                inputs, config.batch, rng, temperature=config.temperature.at(fraction)
            )
            plans = inputs.assignment.plan_arrays(rollouts.orders, rollouts.devices)
            costs = scorer.score(*plans)
            best = min(best, int(costs.min()))
            reference = reference or best
            advantages = leave_one_out(costs, reference, config.advantage_floor)
            log_probs, entropies = policy.joint_log_probs(inputs, policy.encode(inputs), rollouts)
            gain = (torch.from_numpy(advantages) * log_probs.mean(dim=1)).mean()
            loss = -gain - config.entropy_weight.at(fraction) * entropies.mean()
            gradient_step(policy, optimizer, loss, config.max_gradient)
        found.append(best)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--graphs", nargs="+", default=["matmul_chain", "ffnn"])
    arguments = parser.parse_args()
    rows: dict[str, dict[str, list[int]]] = {}
    with torch_threads(1):
        for graph in arguments.graphs:
            pair = problem_of(graph, CLUSTER)
            for variant in VARIANTS:
                rows.setdefault(variant.name, {})[graph] = values(
                    variant, pair, arguments.episodes, arguments.seeds
                )
            rows.setdefault(JOINT, {})[graph] = joint_values(
                pair, arguments.episodes, arguments.seeds
            )
    best = {g: min(min(row[g]) for row in rows.values()) for g in arguments.graphs}
    table = Table(title=f"{arguments.episodes} simulations, {arguments.seeds} seeds, {CLUSTER}")
    table.add_column("variant")
    for graph in arguments.graphs:
        table.add_column(f"{graph}: over best, mean (min to max)", justify="right")
    for name, row in rows.items():
        cells = [np.array(row[graph]) / best[graph] for graph in arguments.graphs]
        table.add_row(name, *(f"{c.mean():.3f} ({c.min():.3f} to {c.max():.3f})" for c in cells))
    Console().print(table)
    print(json.dumps({"best_ns": best, "rows_ns": rows}))
    full = {g: float(np.mean(rows[VARIANTS[0].name][g])) for g in arguments.graphs}
    figures = {
        f"{label}_over_dual": float(
            np.mean([np.mean(rows[name][g]) / full[g] for g in arguments.graphs])
        )
        for label, name in (
            ("select_only", "SEL only, I + II"),
            ("place_only", "PLC only, I + II"),
            ("stage_one", "dual, I"),
            ("stage_two", "dual, II"),
            ("no_elites", "dual, I + II, no elites"),
            ("dual_two_no_elites", "dual, II, no elites"),
            ("joint_two_no_elites", JOINT),
            ("paper", "paper's pair, I + II"),
        )
    }
    finish("ablation", figures, {}, seed=SEED)


if __name__ == "__main__":
    main()
