"""What every planner is: a function of problem, scorer, budget and generator to a plan."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from doppler.core.errors import ConfigError
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import Scorer


@dataclass(frozen=True, slots=True)
class Budget:
    """How many plans a planner may have scored (`scorer.num_calls` counts them).

    Attributes:
        calls: At least 1. A planner may use fewer, never more.
    """

    calls: int

    def __post_init__(self) -> None:
        if self.calls < 1:
            raise ConfigError(f"a budget allows at least 1 scored plan, and it is {self.calls}")


class Planner(Protocol):
    """Makes a plan that fits the problem."""

    def __call__(
        self, problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator
    ) -> Plan:
        """Returns a plan that `check_plan` accepts, the best one that the planner scored.

        Equal problems, budgets and generator states give equal plans.

        Args:
            problem: What is placed.
            scorer: Scores plans of this problem; holds the costs.
            budget: Plans that may be scored.
            rng: The only source of randomness.

        Raises:
            PlanError: If no placement obeys pins, kinds, groups and links.
            CapacityError: If no plan that was found fits in memory.
        """
        ...
