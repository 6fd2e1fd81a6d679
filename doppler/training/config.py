"""Settings of training; every schedule says where it starts and ends."""

import enum
from dataclasses import dataclass, field

from doppler.core.errors import ConfigError


class Stage(enum.Enum):
    """I: imitation; II: the simulator's reward; III: the running job's reward."""

    imitation = "I"
    simulation = "II"
    system = "III"


class LearnedMode(enum.Enum):
    """How the learned planner spends its budget; see `doppler.planners.learned`."""

    greedy = "greedy"
    sample = "sample"
    tune = "tune"
    polish = "polish"


class Start(enum.Enum):
    """Where a planner's policies come from: those that ship with the project, or nothing."""

    pretrained = "pretrained"
    scratch = "scratch"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Goes geometrically from `start` to `end` (both positive) as progress goes from 0 to 1."""

    start: float
    end: float

    def __post_init__(self) -> None:
        if not (self.start > 0.0 and self.end > 0.0):
            raise ConfigError(
                f"a schedule goes between positive values, and it is {self.start} to {self.end}"
            )

    def at(self, progress: float) -> float:
        """Returns the value at `progress` in [0, 1]."""
        return float(self.start * (self.end / self.start) ** min(1.0, max(0.0, progress)))


@dataclass(frozen=True, slots=True)
class LinearSchedule(Schedule):
    """Goes in a straight line from `start` to `end`."""

    def at(self, progress: float) -> float:
        """Returns the value at `progress` in [0, 1]."""
        return float(self.start + (self.end - self.start) * min(1.0, max(0.0, progress)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImitationConfig:
    """Stage I.

    Attributes:
        num_updates: Gradient steps towards the critical-path teacher.
        num_elite_updates: Gradient steps towards the elites that a first search found.
        batch: Episodes of the student per step, labelled by the teacher; elites per step.
        learning_rate: Of Adam.
        temperature: Of the student's episodes; above 1 visits states that the teacher would not.
        select_elite_weight: Weight of an elite's order relative to its devices.
    """

    num_updates: int = 30
    num_elite_updates: int = 30
    batch: int = 8
    learning_rate: Schedule = Schedule(1e-2, 3e-3)
    temperature: Schedule = Schedule(1.5, 0.7)
    select_elite_weight: float = 0.25

    def __post_init__(self) -> None:
        _at_least("num_updates", self.num_updates, 0)
        _at_least("num_elite_updates", self.num_elite_updates, 0)
        _at_least("batch", self.batch, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforceConfig:
    """Stages II and III.

    Attributes:
        batch: Episodes per update (K); the baseline of one is the mean of the others.
        learning_rate: Of Adam.
        entropy_weight: Of the mean entropy per decision; trades exploration against progress.
        temperature: Of sampling and of the learned distribution.
        gamma: Discount per decision of the one reward at the end; below 1 the first decisions
            hardly learn (0.99 over 229 decisions leaves a tenth).
        advantage_floor: Smallest deviation of a batch, as a part of the reference value, that
            advantages are divided by; smaller differences push less.
        max_gradient: Norm to which gradients are clipped.
        elite_weight: Weight of imitating elites beside the policy gradient.
        elite_scale: Distance from the samples' mean, as a part of the reference value, at which an
            elite has its full weight; below it has less, in proportion. 0 = full weight always.
        elite_batch: Elites replayed per update.
        num_elites: Distinct best plans that are kept.
        select_elite_weight: Weight of an elite's order relative to its devices.
    """

    batch: int = 32
    learning_rate: Schedule = Schedule(8e-3, 1e-3)
    entropy_weight: Schedule = Schedule(1e-2, 1e-3)
    temperature: Schedule = Schedule(0.6, 0.3)
    gamma: float = 1.0
    advantage_floor: float = 0.005
    max_gradient: float = 1.0
    elite_weight: float = 0.3
    elite_scale: float = 0.0
    elite_batch: int = 4
    num_elites: int = 16
    select_elite_weight: float = 0.25

    def __post_init__(self) -> None:
        _at_least("batch", self.batch, 2)
        _at_least("elite_batch", self.elite_batch, 0)
        _at_least("num_elites", self.num_elites, 1)
        for label in ("advantage_floor", "max_gradient"):
            if getattr(self, label) <= 0.0:
                raise ConfigError(f"{label} is positive, and it is {getattr(self, label)}")
        if not 0.0 < self.gamma <= 1.0:
            raise ConfigError(f"gamma is above 0 and at most 1, and it is {self.gamma}")
        for label in ("elite_weight", "elite_scale", "select_elite_weight"):
            if getattr(self, label) < 0.0:
                raise ConfigError(f"{label} is at least 0, and it is {getattr(self, label)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOConfig(ReinforceConfig):
    """Stages II and III by proximal policy optimisation: several gradient steps per batch.

    Source: Schulman et al. 2017 (arXiv 1707.06347), equation 7, per decision.

    Attributes:
        epochs: Gradient steps on one batch; trades simulations against time of learning.
        clip: A decision whose probability has changed by more than this part is pushed no further.
    """

    learning_rate: Schedule = Schedule(4e-3, 5e-4)
    epochs: int = 4
    clip: float = 0.2

    def __post_init__(self) -> None:
        ReinforceConfig.__post_init__(self)
        _at_least("epochs", self.epochs, 1)
        if not 0.0 < self.clip < 1.0:
            raise ConfigError(f"clip lies between 0 and 1, and it is {self.clip}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """How the learned planner spends its budget.

    Attributes:
        imitation: Stage I (needs no simulation).
        reinforce: Stage II; `PPOConfig` for PPO.
        search_share: Part of the budget for a first search whose plans become elites.
        learn_share: Part of the budget for stage II; what is left polishes its best plans.
        guide_share: Part of the budget that mode `polish` spends on guides round trained policies
            (`doppler.planners.guided`), taken from the last search.
        most_guides: Guides at most.
        most_samples, most_episodes: Samples and episodes of stage II that mode `polish` takes at
            most: an episode costs as much time as ten to forty plans of the search.
        restarts: Times that stage II starts from the imitating policy.
        num_seeds: Elites that the last search starts from.
        threads: Threads of sampler and network.
    """

    imitation: ImitationConfig = field(default_factory=ImitationConfig)
    reinforce: ReinforceConfig = field(default_factory=ReinforceConfig)
    search_share: float = 0.1
    learn_share: float = 0.4
    guide_share: float = 0.0
    most_guides: int = 1_000_000
    most_samples: int = 1_000_000
    most_episodes: int = 1_000_000
    restarts: int = 1
    num_seeds: int = 4
    threads: int = 1

    def __post_init__(self) -> None:
        for label in (
            "most_samples",
            "most_guides",
            "most_episodes",
            "restarts",
            "num_seeds",
            "threads",
        ):
            _at_least(label, getattr(self, label), 1)
        for label in ("search_share", "learn_share", "guide_share"):
            if not 0.0 <= getattr(self, label) <= 1.0:
                raise ConfigError(f"{label} lies in [0, 1], and it is {getattr(self, label)}")
        if self.search_share + self.learn_share > 1.0:
            raise ConfigError(
                f"search_share and learn_share are at most 1 together, and they are "
                f"{self.search_share} and {self.learn_share}"
            )


def _at_least(label: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{label} is at least {least}, and it is {value}")


PAPER = ReinforceConfig(
    batch=2,
    learning_rate=LinearSchedule(1e-4, 1e-7),
    entropy_weight=Schedule(1e-2, 1e-2),
    temperature=Schedule(1.0, 1.0),
    gamma=0.99,
    max_gradient=1e9,
    elite_weight=0.0,
    elite_batch=0,
)
"""Stage II as DOPPLER's paper sets it: rate, entropy, discount, no clipping, no elites. Two things
differ: the baseline is that of the other episode of an update, not the mean of past ones, and
exploration is the softmax itself, not a uniform choice with probability 0.2 to 0."""

NOISY = ReinforceConfig(
    batch=128,
    learning_rate=Schedule(1.2e-2, 3e-3),
    temperature=Schedule(0.8, 0.1),
    elite_weight=0.0,
    elite_batch=0,
    num_elites=16,
)
"""Stage II from scratch where values carry noise. The best values so far are lucky ones, so no
elites are imitated. Large batches average the noise; they begin hotter, where plans differ by more
than it, and end cold: the policy then holds what the averages say. Chosen on seeds 0 to 9 of the
matrix chain with 10 % lognormal noise (`benchmarks/noisy_reward.py`)."""
