"""What learning carries from update to update: policy, optimiser, generator, elites, progress."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from doppler.policies.dual import DualPolicy, PolicyInputs
from doppler.training.config import Stage
from doppler.training.elites import EliteBuffer
from doppler.training.metrics import OnRecord, TrainingRecord

# A prior's weight is one scalar that may have to move from its start to 0 in a few dozen steps.
PRIOR_RATE = 20.0


@dataclass(slots=True)
class Progress:
    """Where a stage stands; a finished stage has `update == num_updates`.

    Attributes:
        stage: Stage of training.
        update: Updates done.
        num_updates: Updates that the stage has, so that schedules end where it ends.
        episodes: Episodes done.
        simulations: Plans scored.
        spent: Part of the stage's time that had passed before the update, 0 without a deadline.
    """

    stage: Stage
    update: int = 0
    num_updates: int = 0
    episodes: int = 0
    simulations: int = 0
    spent: float = 0.0

    @property
    def is_finished(self) -> bool:
        """True when no update is left."""
        return self.update >= self.num_updates

    @property
    def fraction(self) -> float:
        """0 at the first update, 1 at the last, or when the time is spent."""
        return max(self.update / max(1, self.num_updates - 1), self.spent)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Gives torch `count` threads inside the block; small networks lose time with more than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def make_optimizer(policy: DualPolicy) -> torch.optim.Adam:
    """Returns Adam over both policies; the weights of their priors are a group of their own."""
    priors = [p for name, p in policy.named_parameters() if ".prior." in name]
    others = [p for name, p in policy.named_parameters() if ".prior." not in name]
    optimizer = torch.optim.Adam([{"params": others}, {"params": priors}], lr=1e-3, fused=True)
    optimizer.register_step_post_hook(_count_changes)
    return optimizer


def _count_changes(optimizer: torch.optim.Optimizer, arguments: Any, named: Any) -> None:
    """Counts a step as a change of the weights, which torch's fused step does not do itself."""
    del arguments, named
    for group in optimizer.param_groups:
        increment_version(group["params"])


def set_learning_rate(
    optimizer: torch.optim.Adam, value: float, prior_rate: float = PRIOR_RATE
) -> None:
    """Sets the rate where the optimiser reads it; the priors' is `prior_rate` times as high."""
    for group, factor in zip(optimizer.param_groups, (1.0, prior_rate), strict=True):
        group["lr"] = factor * value


def gradient_step(
    policy: DualPolicy, optimizer: torch.optim.Adam, loss: Tensor, max_gradient: float
) -> float:
    """Takes one gradient step; returns the gradient's norm before clipping."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_gradient)
    optimizer.step()
    return float(norm)


class Learner:
    """The mutable state of training on one problem.

    Attributes:
        policy: Both policies.
        inputs: The problem as they see it.
        optimizer: One Adam over both (no parameter is shared, so it is two in one).
        rng: Source of all randomness after the policy's initialisation.
        elites: Best plans.
        progress: Of the stage that runs.
        threads: Threads of sampler and network.
    """

    def __init__(
        self,
        policy: DualPolicy,
        inputs: PolicyInputs,
        elites: EliteBuffer,
        rng: np.random.Generator,
        threads: int = 1,
    ) -> None:
        self.policy = policy
        self.inputs = inputs
        self.elites = elites
        self.rng = rng
        self.threads = threads
        self.optimizer = make_optimizer(policy)
        self.progress = Progress(Stage.imitation)

    def begin(self, stage: Stage, num_updates: int) -> None:
        """Starts a stage."""
        self.progress = Progress(stage, num_updates=num_updates)

    def set_learning_rate(self, value: float) -> None:
        """Sets the rate of both parts of the optimiser."""
        set_learning_rate(self.optimizer, value)

    @property
    def learning_rate(self) -> float:
        """The rate as the optimiser reads it."""
        return float(self.optimizer.param_groups[0]["lr"])

    def step(self, loss: Tensor, max_gradient: float) -> float:
        """Takes one gradient step; returns the gradient's norm before clipping."""
        return gradient_step(self.policy, self.optimizer, loss, max_gradient)


def run_stage(
    learner: Learner,
    stage: Stage,
    num_updates: int,
    update: Callable[[], TrainingRecord],
    *,
    on_record: OnRecord | None = None,
    spent: Callable[[], float] | None = None,
) -> None:
    """Runs the updates of a stage; one that was stopped half-way goes on.

    Args:
        learner: Policy and state.
        stage: What the records say.
        num_updates: Updates at most.
        update: One gradient step, several with PPO.
        on_record: Called after every update.
        spent: Part of the stage's time that has passed, looked at before every update: schedules
            follow it where it is ahead of the updates, and at 1 the stage ends.
    """
    same = learner.progress.stage is stage and learner.progress.num_updates == num_updates
    if not same or learner.progress.is_finished:
        learner.begin(stage, num_updates)
    progress = learner.progress
    while not progress.is_finished:
        if spent is not None:
            progress.spent = spent()
            if progress.spent >= 1.0:
                progress.num_updates = progress.update
                break
        with torch_threads(learner.threads):
            record = update()
        if on_record is not None:
            on_record(record)
