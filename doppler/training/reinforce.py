"""Stages II and III: REINFORCE with a leave-one-out baseline, elites, entropy and temperature.

One function for both stages: it is handed `evaluate`, and whether a simulator or the running job
stands behind it is not known here.

Source: Williams 1992; leave-one-out baseline as in Kool et al. 2019; self-imitation of elites as
in Oh et al. 2018; DOPPLER section 5, stages II and III.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from doppler.core.runtime import INFEASIBLE_NS
from doppler.policies.assignment import Floats, Ints
from doppler.policies.dual import Decisions, head_arrays, log_probs
from doppler.policies.sampling import (
    Rollouts,
    Temperature,
    join_rollouts,
    plan_arrays,
    replay_episodes,
    sample_episodes,
)
from doppler.training.config import ReinforceConfig, Stage
from doppler.training.learner import Learner, torch_threads
from doppler.training.metrics import OnRecord, TrainingRecord

# (placements_BV, priorities_BV) -> value in ns per plan, int64[B]
Evaluate = Callable[[Ints, Ints], Ints]

WORST = 4.0


def reinforce(
    learner: Learner,
    evaluate: Evaluate,
    config: ReinforceConfig,
    num_episodes: int,
    *,
    stage: Stage,
    reference_ns: int,
    on_record: OnRecord | None = None,
) -> None:
    """Runs `num_episodes` // batch updates; a stage that was stopped half-way goes on.

    Args:
        learner: Policy and state.
        evaluate: Values of plans, smaller is better.
        config: How to learn.
        num_episodes: Episodes of the whole stage.
        stage: `simulation` or `system`, for the records only.
        reference_ns: A heuristic's value; advantages are in parts of it.
        on_record: Called after every update.
    """
    num_updates = num_episodes // config.batch
    progress = learner.progress
    same = progress.stage is stage and progress.num_updates == num_updates
    if not same or progress.is_finished:
        learner.begin(stage, num_updates)
    while not learner.progress.is_finished:
        with torch_threads(learner.threads):
            record = reinforce_update(learner, evaluate, config, reference_ns)
        if on_record is not None:
            on_record(record)


def reinforce_update(
    learner: Learner, evaluate: Evaluate, config: ReinforceConfig, reference_ns: int
) -> TrainingRecord:
    """Samples and scores one batch, adds elites, and takes one gradient step."""
    progress = learner.progress
    fraction = progress.fraction
    value = config.temperature.at(fraction)
    temperature = Temperature(select=value, place=value)
    learner.set_learning_rate(config.learning_rate.at(fraction))
    # One encoding serves sampling and learning: the weights do not change in between.
    encoded = learner.policy.encode(learner.inputs)
    heads = head_arrays(encoded)
    rollouts = sample_episodes(
        learner.inputs.tables,
        heads,
        config.batch,
        learner.rng,
        temperature=temperature,
        threads=learner.threads,
    )
    values_B = evaluate(*plan_arrays(learner.inputs.assignment, rollouts))
    elites = learner.elites.draw(config.elite_batch, learner.rng)
    learner.elites.add_episodes(rollouts.orders, rollouts.devices, values_B)
    batch = rollouts
    if elites:
        orders, devices = learner.elites.episodes(elites)
        replayed = replay_episodes(learner.inputs.tables, heads, orders, devices, temperature)
        batch = join_rollouts(rollouts, replayed)
    decisions = log_probs(encoded, batch)
    advantages_B = leave_one_out(values_B, reference_ns, config.advantage_floor)
    loss = _loss(decisions, batch, advantages_B, config, config.entropy_weight.at(fraction))
    norm = learner.step(loss, config.max_gradient)
    progress.update += 1
    progress.episodes += config.batch
    progress.simulations += len(values_B)
    feasible = values_B[values_B < INFEASIBLE_NS]
    choices = max(1, len(decisions.place_rows))
    return TrainingRecord(
        stage=progress.stage,
        update=progress.update - 1,
        num_updates=progress.num_updates,
        episodes=progress.episodes,
        best_ns=learner.elites.best_ns,
        mean_ns=float(feasible.mean()) if len(feasible) else None,
        select_entropy=float(decisions.select_entropy.detach().mean()),
        place_entropy=float(decisions.place_entropy.detach().sum()) / choices,
        loss=float(loss.detach()),
        learning_rate=learner.learning_rate,
        temperature=value,
        gradient_norm=norm,
        simulations=progress.simulations,
    )


def leave_one_out(values_B: Ints, reference_ns: int, floor: float) -> Floats:
    """Returns (mean of the others - own value) / deviation, in parts of the reference, B.

    Values above 4 references (infeasible ones too) count as 4; the deviation is at least `floor`.
    """
    costs = np.minimum(values_B / max(1, reference_ns), WORST)
    others = (costs.sum() - costs) / (len(costs) - 1)
    advantages: Floats = (others - costs) / max(float(costs.std()), floor)
    return advantages


def _loss(
    decisions: Decisions,
    batch: Rollouts,
    advantages_B: Floats,
    config: ReinforceConfig,
    entropy_weight: float,
) -> Tensor:
    """Policy gradient, entropy and elites, all per decision."""
    num_sampled = len(advantages_B)
    choices = (torch.from_numpy(batch.masks).sum(dim=2) > 1).sum(dim=1).clamp(min=1)
    select = decisions.select.mean(dim=1)
    place = decisions.place.sum(dim=1) / choices
    entropy = decisions.select_entropy.mean(dim=1) + decisions.place_entropy.sum(dim=1) / choices
    advantages = torch.from_numpy(advantages_B)
    gain = (advantages * (select + place)[:num_sampled]).mean()
    loss = -gain - entropy_weight * entropy[:num_sampled].mean()
    if num_sampled < batch.num_episodes and config.elite_weight > 0.0:
        target = config.select_elite_weight * select[num_sampled:] + place[num_sampled:]
        loss = loss - config.elite_weight * target.mean()
    return loss
