"""Noise of op times, drawn once from a given generator; no engine owns one.

Legend: R replicas, I iterations, V ops.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from doppler.core.costs import Costs
from doppler.core.errors import ConfigError
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from simulator.engine.tables import Int64


@dataclass(frozen=True, kw_only=True)
class LognormalNoise:
    """Multiplies every duration by exp(sigma Z), Z standard normal: the median stays the cost.

    Attributes:
        sigma: Spread of op kinds without one of their own; 0 = exact. The standard deviation of
            the logarithm, about the relative spread while it is small.
        sigma_by_kind: Op kind -> its own spread.

    Raises:
        ConfigError: If a spread is negative or not finite.
    """

    sigma: float = 0.0
    sigma_by_kind: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind, sigma in (("every kind", self.sigma), *self.sigma_by_kind.items()):
            if not 0.0 <= sigma < float("inf"):
                raise ConfigError(f"sigma is finite and at least 0, and that of {kind} is {sigma}")

    def draw(
        self,
        problem: Problem,
        costs: Costs,
        plan: Plan,
        replicas: int,
        iterations: int,
        rng: np.random.Generator,
    ) -> Int64:
        """Returns durations on the plan's devices, int64[R, I, V], each rounded to the nanosecond.

        The normal numbers depend on the generator and the shape alone, so that two plans drawn
        with equal generators meet the same luck (common random numbers).

        Args:
            problem: The graph and the cluster.
            costs: Median times.
            plan: Where each op runs.
            replicas: Independent runs.
            iterations: Iterations of each run.
            rng: Where the numbers come from.

        Raises:
            ConfigError: If `replicas` or `iterations` is below 1.
        """
        if replicas < 1 or iterations < 1:
            raise ConfigError(
                f"replicas and iterations are at least 1, and they are {replicas} and {iterations}"
            )
        ops = problem.graph.ops
        median_V = np.array([costs.op_ns[op][plan.placement[op]] for op in range(len(ops))])
        sigma_V = np.array([self.sigma_by_kind.get(op.kind, self.sigma) for op in ops])
        normal_RIV = rng.standard_normal((replicas, iterations, len(ops)))
        duration_RIV: Int64 = np.rint(median_V * np.exp(sigma_V * normal_RIV)).astype(np.int64)
        return duration_RIV
