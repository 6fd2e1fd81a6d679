"""Stage I: the policies learn from a teacher, on states that they visit themselves.

The teacher is the critical-path rule: SEL's label is the candidate with the largest b-level, PLC's
the device with the earliest finish (on equal devices the earliest start); all ties count equally.

Source: Ross et al. 2011 (DAgger); DOPPLER section 5, stage I.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from doppler.policies.dual import Decisions, DualPolicy, Encoded
from doppler.policies.sampling import Rollouts, Temperature
from doppler.training.config import ImitationConfig, Stage
from doppler.training.learner import Learner, run_stage
from doppler.training.metrics import OnRecord, TrainingRecord


def imitate(
    learner: Learner,
    config: ImitationConfig,
    on_record: OnRecord | None = None,
    spent: Callable[[], float] | None = None,
) -> None:
    """Runs stage I; one that was stopped half-way goes on. No plan is scored.

    `on_record` and `spent` are those of `doppler.training.learner.run_stage`.
    """
    run_stage(
        learner,
        Stage.imitation,
        config.num_updates,
        lambda: imitation_update(learner, config),
        on_record=on_record,
        spent=spent,
    )


def imitation_update(learner: Learner, config: ImitationConfig) -> TrainingRecord:
    """Samples episodes of the student, labels them, and takes one gradient step."""
    progress = learner.progress
    temperature = config.temperature.at(progress.fraction)
    learner.set_learning_rate(config.learning_rate.at(progress.fraction))
    rollouts = learner.policy.sample(
        learner.inputs,
        config.batch,
        learner.rng,
        temperature=Temperature(select=temperature, place=temperature),
        threads=learner.threads,
    )
    encoded = learner.policy.encode(learner.inputs)
    decisions = learner.policy.decide(learner.inputs, encoded, rollouts)
    loss = teacher_loss(learner.policy, encoded, decisions, rollouts)
    norm = learner.step(loss, max_gradient=1.0)
    progress.update += 1
    progress.episodes += config.batch
    return _record(learner, decisions, loss, norm, temperature)


def imitate_elites(
    learner: Learner,
    config: ImitationConfig,
    on_record: OnRecord | None = None,
    spent: Callable[[], float] | None = None,
) -> None:
    """Pulls the policies towards the elites, `config.num_elite_updates` gradient steps.

    Good plans, weighted by quality, replace the teacher; no plan is scored. Without elites nothing
    happens. One that was stopped half-way goes on; see `imitate`.
    """
    if not len(learner.elites):
        return
    run_stage(
        learner,
        Stage.imitation,
        config.num_elite_updates,
        lambda: elite_update(learner, config),
        on_record=on_record,
        spent=spent,
    )


def elite_update(learner: Learner, config: ImitationConfig) -> TrainingRecord:
    """Replays `batch` elites and takes one gradient step on their negative log-likelihood."""
    progress = learner.progress
    learner.set_learning_rate(config.learning_rate.at(progress.fraction))
    encoded = learner.policy.encode(learner.inputs)
    orders, devices = learner.elites.episodes(learner.elites.draw(config.batch, learner.rng))
    rollouts = learner.policy.replayed(learner.inputs, encoded, orders, devices, Temperature())
    decisions = learner.policy.decide(learner.inputs, encoded, rollouts)
    choices = max(1, len(decisions.place_rows))
    select, place = decisions.select.mean(), decisions.place.sum() / choices
    loss = -(config.select_elite_weight * select + place)
    norm = learner.step(loss, max_gradient=1.0)
    progress.update += 1
    progress.episodes += config.batch
    return _record(learner, decisions, loss, norm, temperature=1.0)


def teacher_loss(
    policy: DualPolicy, encoded: Encoded, decisions: Decisions, rollouts: Rollouts
) -> Tensor:
    """Returns the mean cross-entropy per decision to the teacher's labels, SEL plus PLC."""
    select = -policy.teacher_log_prob(encoded, decisions, rollouts)
    if not len(decisions.place_rows):
        return select
    teacher = torch.from_numpy(rollouts.teacher).flatten(0, 1)[decisions.place_rows]
    weights = teacher / teacher.sum(dim=1, keepdim=True)
    place = -(weights * decisions.place_logs).sum(dim=1).mean()
    return select + place


def _record(
    learner: Learner, decisions: Decisions, loss: Tensor, norm: float, temperature: float
) -> TrainingRecord:
    progress = learner.progress
    choices = max(1, len(decisions.place_rows))
    return TrainingRecord(
        stage=progress.stage,
        update=progress.update - 1,
        num_updates=progress.num_updates,
        episodes=progress.episodes,
        best_ns=learner.elites.best_ns,
        mean_ns=None,
        select_entropy=float(decisions.select_entropy.detach().mean()),
        place_entropy=float(decisions.place_entropy.detach().sum()) / choices,
        loss=float(loss.detach()),
        learning_rate=learner.learning_rate,
        temperature=temperature,
        gradient_norm=norm,
        simulations=progress.simulations,
    )
