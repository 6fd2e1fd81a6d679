"""Stages II and III: REINFORCE with a leave-one-out baseline, elites, entropy and temperature.

With `PPOConfig` a batch is learned from several times, with clipped ratios of probabilities.

One function for both stages: it is handed `evaluate`, and whether a simulator or the running job
stands behind it is not known here.

Source: Williams 1992; leave-one-out baseline as in Kool et al. 2019; self-imitation of elites as
in Oh et al. 2018; DOPPLER section 5, stages II and III.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from doppler.core.runtime import INFEASIBLE_NS
from doppler.policies.assignment import Floats, Ints
from doppler.policies.dual import Decisions, DualPolicy, PolicyInputs
from doppler.policies.sampling import (
    Rollouts,
    Temperature,
    join_rollouts,
    plan_arrays,
)
from doppler.training.config import PPOConfig, ReinforceConfig, Stage
from doppler.training.elites import Elite, EliteBuffer
from doppler.training.learner import Learner, run_stage
from doppler.training.metrics import OnRecord, TrainingRecord

# (placements_BV, priorities_BV) -> value in ns per plan, int64[B]
Evaluate = Callable[[Ints, Ints], Ints]

WORST = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One problem to learn on.

    Attributes:
        inputs: The problem as the policies see it.
        evaluate: Values of plans, smaller is better.
        elites: Its best plans.
        reference_ns: A heuristic's value; advantages are in parts of it.
    """

    inputs: PolicyInputs
    evaluate: Evaluate
    elites: EliteBuffer
    reference_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Scored episodes, elites after them, and what each of them has to teach.

    Attributes:
        rollouts: Samples, then elites.
        values_B: Value per sample.
        advantages_B: `leave_one_out` per sample.
        gains: `elite_gains` per elite.
        entropy_weight: Of this update.
    """

    rollouts: Rollouts
    values_B: Ints  # noqa: N815
    advantages_B: Floats  # noqa: N815
    gains: Floats
    entropy_weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Studied:
    """One batch on one lesson: loss (with gradients), value per episode, and all decisions."""

    loss: Tensor
    values_B: Ints  # noqa: N815
    decisions: Decisions
    batch: Batch


def reinforce(
    learner: Learner,
    evaluate: Evaluate,
    config: ReinforceConfig,
    num_episodes: int,
    *,
    stage: Stage,
    reference_ns: int,
    on_record: OnRecord | None = None,
    spent: Callable[[], float] | None = None,
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
        spent: Part of the stage's time that has passed (`doppler.training.learner.run_stage`).
    """
    run_stage(
        learner,
        stage,
        num_episodes // config.batch,
        lambda: reinforce_update(learner, evaluate, config, reference_ns),
        on_record=on_record,
        spent=spent,
    )


def reinforce_update(
    learner: Learner, evaluate: Evaluate, config: ReinforceConfig, reference_ns: int
) -> TrainingRecord:
    """Samples and scores one batch, adds elites, and takes one gradient step; PPO several."""
    progress = learner.progress
    fraction = progress.fraction
    learner.set_learning_rate(config.learning_rate.at(fraction))
    lesson = Lesson(
        inputs=learner.inputs,
        evaluate=evaluate,
        elites=learner.elites,
        reference_ns=reference_ns,
    )
    found = study(learner.policy, lesson, config, fraction, learner.rng, learner.threads)
    loss, values_B, decisions = found.loss, found.values_B, found.decisions
    norm = learner.step(loss, config.max_gradient)
    if isinstance(config, PPOConfig):
        for _ in range(config.epochs - 1):
            again = ppo_loss(learner.policy, learner.inputs, found.batch, decisions, config)
            learner.step(again, config.max_gradient)
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
        temperature=config.temperature.at(fraction),
        gradient_norm=norm,
        simulations=progress.simulations,
    )


def study(
    policy: DualPolicy,
    lesson: Lesson,
    config: ReinforceConfig,
    fraction: float,
    rng: np.random.Generator,
    threads: int = 1,
) -> Studied:
    """Samples and scores one batch, adds elites, and returns the loss to minimise.

    Args:
        policy: What learns.
        lesson: One problem.
        config: How to learn.
        fraction: Where the schedules are, 0 at the start and 1 at the end.
        rng: Source of randomness.
        threads: Threads of the sampler.
    """
    value = config.temperature.at(fraction)
    temperature = Temperature(select=value, place=value)
    # One encoding serves sampling and learning: the weights do not change in between.
    encoded = policy.encode(lesson.inputs)
    rollouts = policy.episodes(
        lesson.inputs, encoded, config.batch, rng, temperature=temperature, threads=threads
    )
    values_B = lesson.evaluate(*plan_arrays(lesson.inputs.assignment, rollouts))
    elites = lesson.elites.draw(config.elite_batch, rng)
    lesson.elites.add_episodes(rollouts.orders, rollouts.devices, values_B)
    judged = rollouts
    if elites:
        orders, devices = lesson.elites.episodes(elites)
        replayed = policy.replayed(lesson.inputs, encoded, orders, devices, temperature)
        judged = join_rollouts(rollouts, replayed)
    batch = Batch(
        rollouts=judged,
        values_B=values_B,
        advantages_B=leave_one_out(values_B, lesson.reference_ns, config.advantage_floor),
        gains=elite_gains(values_B, elites, lesson.reference_ns, config.elite_scale),
        entropy_weight=config.entropy_weight.at(fraction),
    )
    decisions = policy.decide(lesson.inputs, encoded, judged)
    loss = _loss(decisions, batch, config, decisions.select, decisions.place)
    return Studied(loss=loss, values_B=values_B, decisions=decisions, batch=batch)


def ppo_loss(
    policy: DualPolicy, inputs: PolicyInputs, batch: Batch, before: Decisions, config: PPOConfig
) -> Tensor:
    """Returns the loss of a batch whose decisions were sampled with other weights.

    Every decision's `A log pi` becomes `min(r A, clip(r, 1 - c, 1 + c) A)` with r its probability
    over that before; at r = 1 the gradients of both are equal.
    """
    decisions = policy.decide(inputs, policy.encode(inputs), batch.rollouts)
    weights = torch.ones(batch.rollouts.num_episodes, dtype=torch.float64)
    weights[: len(batch.advantages_B)] = torch.from_numpy(batch.advantages_B)
    surrogates = [
        clipped_gain(now, old.detach(), weights[:, None], config.clip)
        for now, old in ((decisions.select, before.select), (decisions.place, before.place))
    ]
    return _loss(decisions, batch, config, *surrogates)


def clipped_gain(now: Tensor, before: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """Returns min(r A, clip(r) A) / A per decision, r = exp(now - before); r where A is 0."""
    ratio = (now - before).exp()
    low = torch.where(advantages < 0.0, 1.0 - clip, 0.0)
    high = torch.where(advantages > 0.0, 1.0 + clip, torch.inf)
    return ratio.clamp(low, high)


def leave_one_out(values_B: Ints, reference_ns: int, floor: float) -> Floats:
    """Returns (mean of the others - own value) / deviation, in parts of the reference, B.

    Values above 4 references (infeasible ones too) count as 4; the deviation is at least `floor`.
    """
    costs = np.minimum(values_B / max(1, reference_ns), WORST)
    others = (costs.sum() - costs) / (len(costs) - 1)
    advantages: Floats = (others - costs) / max(float(costs.std()), floor)
    return advantages


def elite_gains(values_B: Ints, elites: list[Elite], reference_ns: int, scale: float) -> Floats:
    """Returns in [0, 1] how much each elite has to teach, one per elite.

    It is the distance from the samples' mean to the elite, in parts of the reference, over `scale`;
    1 for all where the scale is 0. An elite that is hardly better than the samples differs from
    them by chance.
    """
    if scale == 0.0:
        return np.ones(len(elites))
    reference = max(1, reference_ns)
    mean = float(np.minimum(values_B / reference, WORST).mean())
    gains = [(mean - elite.value_ns / reference) / scale for elite in elites]
    clipped: Floats = np.clip(np.array(gains), 0.0, 1.0)
    return clipped


def _loss(
    decisions: Decisions, batch: Batch, config: ReinforceConfig, select: Tensor, place: Tensor
) -> Tensor:
    """Policy gradient with discounts, entropy and elites, all per decision.

    Args:
        decisions: Of samples and elites, as the policy is.
        batch: What they are worth.
        config: Weights.
        select: What an advantage pushes per choice of an op, B x N: its log-probability, or PPO's
            clipped ratio.
        place: The same per choice of a device.
    """
    count = len(batch.advantages_B)
    masks = torch.from_numpy(batch.rollouts.masks)
    choices = (masks.sum(dim=2) > 1).sum(dim=1).clamp(min=1)
    later = torch.arange(select.shape[1] - 1, -1, -1)
    kept_select, kept_place = (config.gamma ** later.to(part.dtype) for part in (select, place))
    pushed = (kept_select * select).mean(dim=1) + (kept_place * place).sum(dim=1) / choices
    entropy = decisions.select_entropy.mean(dim=1) + decisions.place_entropy.sum(dim=1) / choices
    gain = (torch.from_numpy(batch.advantages_B) * pushed[:count]).mean()
    loss = -gain - batch.entropy_weight * entropy[:count].mean()
    if count < batch.rollouts.num_episodes and config.elite_weight > 0.0:
        order = decisions.select[count:].mean(dim=1)
        devices = decisions.place[count:].sum(dim=1) / choices[count:]
        target = config.select_elite_weight * order + devices
        loss = loss - config.elite_weight * (torch.from_numpy(batch.gains) * target).mean()
    return loss
