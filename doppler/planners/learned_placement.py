"""What planners that learn devices on the target graph share: settings, and the frame of a call."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from doppler.core.errors import ConfigError
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import INFEASIBLE_NS, Scorer
from doppler.planners import m_etf
from doppler.planners.base import Budget
from doppler.planners.evaluator import Evaluator
from doppler.planners.placement_inputs import PlacementInputs, make_placement_inputs
from doppler.planners.watched import run_within
from doppler.training.learner import torch_threads


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """Settings that all of them have.

    Attributes:
        imitation: Updates of stage I before the first sample: imitation of runs of the
            critical-path rule (no plan is scored).
        rate, last_rate: Learning rate, linear over the budget.
        entropy: First entropy weight; it falls linearly to 0.
    """

    imitation: int = 0
    rate: float = 1e-3
    last_rate: float = 1e-4
    entropy: float = 1.0


def check_settings(settings: TrainingSettings, name: str, *counts: str) -> None:
    """Checks the settings of a planner called `name`, `counts` being those that are 1 or more.

    Raises:
        ConfigError: Names the setting and its value.
    """
    for label in counts:
        if getattr(settings, label) < 1:
            raise ConfigError(
                f"{label} of {name} is at least 1, and it is {getattr(settings, label)}"
            )
    for label in ("imitation", "entropy"):
        if getattr(settings, label) < 0:
            raise ConfigError(
                f"{label} of {name} is at least 0, and it is {getattr(settings, label)}"
            )
    if not 0 < settings.last_rate <= settings.rate:
        raise ConfigError(
            f"learning rates of {name} keep 0 < last_rate <= rate, and last_rate is "
            f"{settings.last_rate} and rate {settings.rate}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRun:
    """What one call learns with.

    Attributes:
        problem, scorer, rng: What the planner was called with.
        inputs: The problem as arrays.
        evaluator: Scores placements, and keeps the budget and the best one.
    """

    problem: Problem
    scorer: Scorer
    rng: np.random.Generator
    inputs: PlacementInputs
    evaluator: Evaluator

    def plan_that_fits(self) -> Plan | None:
        """Returns m-ETF's plan where nothing that was seen fits in memory, None if all is well."""
        evaluator = self.evaluator
        if evaluator.best_ns < INFEASIBLE_NS:
            return None
        return run_within(
            m_etf.plan, self.problem, self.scorer, evaluator, evaluator.remaining, self.rng
        )


@dataclass(slots=True, kw_only=True)
class PlacementPlanner(ABC):
    """A planner that learns devices on the target graph and returns the best plan that it saw.

    Attributes:
        values_ns: After a call, the mean value of each update.
    """

    source: ClassVar[str]
    values_ns: list[float] = field(default_factory=list)

    def __call__(
        self, problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator
    ) -> Plan:
        """Returns the best plan; see `doppler.planners.base.Planner`.

        Raises:
            CapacityError: If no plan that was scored fits in memory.
            PlanError: If no placement obeys pins, kinds, groups and links.
        """
        run = PlacementRun(
            problem=problem,
            scorer=scorer,
            rng=rng,
            inputs=make_placement_inputs(problem, scorer.costs),
            evaluator=Evaluator(problem, scorer, budget, self.source),
        )
        with torch_threads(1):
            self.values_ns = self.learn(run)
        return run.evaluator.plan()

    @abstractmethod
    def learn(self, run: PlacementRun) -> list[float]:
        """Learns until the evaluator's budget ends; returns the mean value of each update."""
