"""Stages II and III: REINFORCE with a leave-one-out baseline, elites, entropy and temperature.

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
from doppler.training.config import ReinforceConfig, Stage
from doppler.training.elites import Elite, EliteBuffer
from doppler.training.learner import Learner, torch_threads
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
class Studied:
    """One batch on one lesson: loss (with gradients), value per episode, and all decisions."""

    loss: Tensor
    values_B: Ints  # noqa: N815
    decisions: Decisions


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
    batch = rollouts
    if elites:
        orders, devices = lesson.elites.episodes(elites)
        replayed = policy.replayed(lesson.inputs, encoded, orders, devices, temperature)
        batch = join_rollouts(rollouts, replayed)
    decisions = policy.decide(lesson.inputs, encoded, batch)
    advantages_B = leave_one_out(values_B, lesson.reference_ns, config.advantage_floor)
    gains = elite_gains(values_B, elites, lesson.reference_ns, config.elite_scale)
    loss = _loss(decisions, batch, advantages_B, gains, config, config.entropy_weight.at(fraction))
    return Studied(loss=loss, values_B=values_B, decisions=decisions)


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
    decisions: Decisions,
    batch: Rollouts,
    advantages_B: Floats,
    gains_B: Floats,
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
        loss = loss - config.elite_weight * (torch.from_numpy(gains_B) * target).mean()
    return loss
