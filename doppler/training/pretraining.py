"""One policy over many problems: epochs of fresh lessons, checkpoints between them.

Every gradient step averages a few lessons' losses: the policy gradient on samples of the policy and
the imitation of each lesson's best plans, which its own samples and a search have found
(self-labelling). An epoch depends on the seed, its number and the policy only, so that a training
that is stopped between two epochs and resumed ends with the same weights.

Source: Corsini et al. 2024 (self-labelling); Kool et al. 2019 (leave-one-out baseline).
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from doppler.core.errors import ConfigError, FormatError
from doppler.policies.bundle import load_tensors, read_bundle, write_bundle
from doppler.policies.config import PolicyConfig
from doppler.policies.dual import DualPolicy
from doppler.policies.storage import config_document, parse_config
from doppler.training.checkpoint import below, optimizer_tensors, restore_optimizer
from doppler.training.config import ReinforceConfig, Schedule
from doppler.training.learner import (
    gradient_step,
    make_optimizer,
    set_learning_rate,
    torch_threads,
)
from doppler.training.reinforce import Lesson, study

KIND = "doppler.pretraining"
VERSION = 1

# Priors hold over all problems; they move slower here than on one graph.
PRIOR_RATE = 6.0

# What the averaged weights keep of themselves per step: they follow the last hundred or so.
AVERAGE_DECAY = 0.99

# (policy, epoch, fraction of training done, generator) -> the lessons of an epoch
Curriculum = Callable[[DualPolicy, int, float, np.random.Generator], Sequence[Lesson]]


def pretraining_reinforce() -> ReinforceConfig:
    """Returns how the policies learn from one lesson."""
    return ReinforceConfig(
        batch=16,
        learning_rate=Schedule(1e-3, 1e-4),
        entropy_weight=Schedule(1e-5, 1e-6),
        temperature=Schedule(0.2, 0.1),
        elite_weight=0.02,
        elite_scale=0.2,
        elite_batch=2,
        num_elites=6,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainingConfig:
    """How long, and how much per step.

    Attributes:
        epochs: Epochs of the whole training; schedules end where it ends.
        updates: Gradient steps per epoch.
        lessons_per_update: Lessons that one step averages.
        reinforce: How a lesson is learned from.
        seed: Seed of everything random.
    """

    epochs: int = 30
    updates: int = 30
    lessons_per_update: int = 16
    reinforce: ReinforceConfig = field(default_factory=pretraining_reinforce)
    seed: int = 0

    def __post_init__(self) -> None:
        for label in ("epochs", "updates", "lessons_per_update"):
            if getattr(self, label) < 1:
                raise ConfigError(f"{label} is at least 1, and it is {getattr(self, label)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord:
    """What one epoch did.

    Attributes:
        epoch: Its number.
        mean_ratio: Mean of episode value / heuristic's value over all episodes (at most 4 each).
        best_ratio: Mean over lessons of best value / heuristic's value.
        loss: Mean loss.
        gradient_norm: Mean norm before clipping.
        learning_rate: At the last step.
        episodes: Episodes so far, all epochs.
    """

    epoch: int
    mean_ratio: float
    best_ratio: float
    loss: float
    gradient_norm: float
    learning_rate: float
    episodes: int


class Pretraining:
    """The mutable state of a training over many problems.

    Attributes:
        policy: What is trained.
        average: The same policy with averaged weights: single steps are noisy, and this is the one
            to keep (Polyak and Juditsky 1992).
        config: Settings.
        epoch: Epochs done.
        episodes: Episodes done.
        history: One record per epoch.
    """

    def __init__(self, policy: DualPolicy, config: PretrainingConfig) -> None:
        self.policy = policy
        self.average = DualPolicy(policy.config, seed=0)
        self.average.load_state_dict(policy.state_dict())
        self.config = config
        self.optimizer = make_optimizer(policy)
        self.epoch = 0
        self.episodes = 0
        self.history: list[EpochRecord] = []

    @property
    def is_finished(self) -> bool:
        """True when no epoch is left."""
        return self.epoch >= self.config.epochs

    def run_epoch(self, curriculum: Curriculum) -> EpochRecord:
        """Makes the lessons of the next epoch and takes its gradient steps."""
        config = self.config
        rng = np.random.default_rng([config.seed, self.epoch])
        start = self.epoch / config.epochs
        with torch_threads(1):
            lessons = curriculum(self.policy, self.epoch, start, rng)
            rows = [
                self._update(lessons, start + update / config.updates / config.epochs, rng)
                for update in range(config.updates)
            ]
        ratio, loss, norm = np.mean(rows, axis=0)[:3].tolist()
        best = [
            lesson.elites.best_ns / lesson.reference_ns
            for lesson in lessons
            if lesson.elites.best_ns is not None
        ]
        self.epoch += 1
        record = EpochRecord(
            epoch=self.epoch,
            mean_ratio=ratio,
            best_ratio=float(np.mean(best)),
            loss=loss,
            gradient_norm=norm,
            learning_rate=rows[-1][3],
            episodes=self.episodes,
        )
        self.history.append(record)
        return record

    def _update(
        self, lessons: Sequence[Lesson], fraction: float, rng: np.random.Generator
    ) -> tuple[float, float, float, float]:
        config = self.config
        rate = config.reinforce.learning_rate.at(fraction)
        set_learning_rate(self.optimizer, rate, PRIOR_RATE)
        count = min(config.lessons_per_update, len(lessons))
        total = torch.zeros((), dtype=torch.float64)
        ratios = []
        for index in rng.choice(len(lessons), size=count, replace=False):
            lesson = lessons[index]
            found = study(self.policy, lesson, config.reinforce, fraction, rng)
            total = total + found.loss / count
            costs = np.minimum(found.values_B / max(1, lesson.reference_ns), 4.0)
            ratios.append(float(costs.mean()))
            self.episodes += config.reinforce.batch
        norm = gradient_step(self.policy, self.optimizer, total, config.reinforce.max_gradient)
        with torch.no_grad():
            pairs = zip(self.average.parameters(), self.policy.parameters(), strict=True)
            for mean, value in pairs:
                mean.lerp_(value, 1.0 - AVERAGE_DECAY)
        return float(np.mean(ratios)), float(total.detach()), norm, rate


def save_pretraining(state: Pretraining, directory: Path, extra: dict[str, Any]) -> None:
    """Writes the state between two epochs; `extra` is kept as it is (JSON values)."""
    tensors = {f"policy.{name}": value for name, value in state.policy.state_dict().items()}
    tensors |= {f"average.{name}": value for name, value in state.average.state_dict().items()}
    tensors |= optimizer_tensors(state.policy, state.optimizer)
    content = {
        "config": config_document(state.policy.config),
        "training": _settings(state.config),
        "epoch": state.epoch,
        "episodes": state.episodes,
        "history": [asdict(record) for record in state.history],
        "extra": extra,
    }
    write_bundle(directory, KIND, VERSION, tensors, content)


def load_pretraining(
    directory: Path, config: PretrainingConfig
) -> tuple[Pretraining, dict[str, Any]]:
    """Returns the stored state and its `extra`.

    Raises:
        FormatError: If it is absent, damaged, or was made with other settings.
    """
    keys = frozenset({"config", "training", "epoch", "episodes", "history", "extra"})
    tensors, content = read_bundle(directory, KIND, VERSION, keys)
    if content["training"] != _settings(config):
        raise FormatError(
            f"a training goes on with the settings that it began with, and {directory} has "
            f"{content['training']} where these are {_settings(config)}"
        )
    policy = DualPolicy(parse_config(content["config"], directory), seed=0)
    load_tensors(policy, below(tensors, "policy."), directory)
    state = Pretraining(policy, config)
    load_tensors(state.average, below(tensors, "average."), directory)
    restore_optimizer(policy, state.optimizer, tensors, directory)
    state.epoch, state.episodes = int(content["epoch"]), int(content["episodes"])
    state.history = [EpochRecord(**record) for record in content["history"]]
    return state, dict(content["extra"])


def new_pretraining(policy_config: PolicyConfig, config: PretrainingConfig) -> Pretraining:
    """Returns the state before the first epoch."""
    return Pretraining(DualPolicy(policy_config, seed=config.seed), config)


def _settings(config: PretrainingConfig) -> dict[str, Any]:
    return asdict(config)
