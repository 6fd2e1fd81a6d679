"""Noise of op times, drawn once from a given generator; no engine owns one.

Every kind of noise is a distribution of factors with which the cost of an op is multiplied. Factors
do not depend on the plan, so plans that are scored with equal factors meet the same luck (common
random numbers), and a placement only picks the cost that they multiply.

Legend: R replicas, I iterations, V ops, D devices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from doppler.core.costs import Costs
from doppler.core.errors import ConfigError
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import INFEASIBLE_NS
from simulator.engine.tables import Int64

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Luck:
    """What was drawn: a factor per op, and one per device.

    Attributes:
        op_factors: Factor of each execution of an op, float64[R, I, V].
        device_factors: Factor of all ops of a device during a replica, float64[R, D].
    """

    op_factors: Float64
    device_factors: Float64

    def durations_ns(self, op_ns_VD: npt.NDArray[np.int64], placement_V: Sequence[int]) -> Int64:
        """Returns durations of a placement, int64[R, I, V], each rounded to the nanosecond.

        Args:
            op_ns_VD: Costs.
            placement_V: Device per op; what is no device is not looked at here.

        Raises:
            ConfigError: If a duration leaves 62 bits.
        """
        places = np.clip(np.asarray(placement_V, np.int64), 0, op_ns_VD.shape[1] - 1)
        median_V = op_ns_VD[np.arange(len(places)), places]
        factor_RIV = self.op_factors * self.device_factors[:, places][:, None, :]
        duration_RIV = np.rint(median_V * factor_RIV)
        if duration_RIV.max(initial=0.0) >= INFEASIBLE_NS:
            raise ConfigError(
                f"a duration is below {INFEASIBLE_NS} ns, and noise has drawn "
                f"{duration_RIV.max():.3g}"
            )
        drawn_RIV: Int64 = duration_RIV.astype(np.int64)
        return drawn_RIV


class Noise(Protocol):
    """Draws factors."""

    def luck(
        self, problem: Problem, replicas: int, iterations: int, rng: np.random.Generator
    ) -> Luck:
        """Returns factors; equal generators and shapes give equal ones.

        Raises:
            ConfigError: If `replicas` or `iterations` is below 1.
        """
        ...


def draw_durations(
    noise: Noise,
    problem: Problem,
    costs: Costs,
    plan: Plan,
    replicas: int,
    iterations: int,
    rng: np.random.Generator,
) -> Int64:
    """Returns durations of one plan, int64[R, I, V].

    Args:
        noise: The distribution.
        problem: The graph and the cluster.
        costs: Times without noise.
        plan: Where each op runs.
        replicas: Independent runs.
        iterations: Iterations of each run.
        rng: Where the numbers come from.

    Raises:
        ConfigError: If `replicas` or `iterations` is below 1, or a duration leaves 62 bits.
    """
    luck = noise.luck(problem, replicas, iterations, rng)
    return luck.durations_ns(np.array(costs.op_ns, np.int64), plan.placement)


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

    def luck(
        self, problem: Problem, replicas: int, iterations: int, rng: np.random.Generator
    ) -> Luck:
        """See `Noise`."""
        shape = _shape(problem, replicas, iterations)
        sigma_V = [self.sigma_by_kind.get(op.kind, self.sigma) for op in problem.graph.ops]
        normal_RIV = rng.standard_normal(shape)
        return Luck(np.exp(np.array(sigma_V) * normal_RIV), _no_device(problem, replicas))


@dataclass(frozen=True, kw_only=True)
class HeavyTailNoise:
    """Now and then an execution takes far longer: what page faults, other programs, retries do.

    With `probability`, independently per execution, the factor is a Pareto variable of minimum 1
    (P(factor > x) = x ** -alpha), cut at `largest`; else it is 1. The median stays the cost.

    Attributes:
        probability: Part of the executions that are hit, in [0, 0.5).
        alpha: Shape; smaller = heavier. Without the cut the mean is alpha / (alpha - 1), infinite
            for alpha <= 1.
        largest: Largest factor, at least 1.

    Raises:
        ConfigError: If a number is out of range.
    """

    probability: float = 0.01
    alpha: float = 1.5
    largest: float = 100.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.probability < 0.5:
            raise ConfigError(f"probability lies in [0, 0.5), and it is {self.probability}")
        if not 0.0 < self.alpha < float("inf"):
            raise ConfigError(f"alpha is finite and above 0, and it is {self.alpha}")
        if not 1.0 <= self.largest < float("inf"):
            raise ConfigError(f"largest is finite and at least 1, and it is {self.largest}")

    def luck(
        self, problem: Problem, replicas: int, iterations: int, rng: np.random.Generator
    ) -> Luck:
        """See `Noise`."""
        shape = _shape(problem, replicas, iterations)
        hit_RIV = rng.random(shape) < self.probability
        # 1 - random() lies in (0, 1].
        tail_RIV = np.minimum((1.0 - rng.random(shape)) ** (-1.0 / self.alpha), self.largest)
        return Luck(np.where(hit_RIV, tail_RIV, 1.0), _no_device(problem, replicas))


@dataclass(frozen=True, kw_only=True)
class StragglerNoise:
    """Devices that are slow for a whole run: what thermal limits and busy neighbours do.

    Attributes:
        probability: Chance of each device to be slow in a replica, independently, in [0, 1].
        factor: How much longer its ops take, at least 1.

    Raises:
        ConfigError: If a number is out of range.
    """

    probability: float = 0.1
    factor: float = 2.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.probability <= 1.0:
            raise ConfigError(f"probability lies in [0, 1], and it is {self.probability}")
        if not 1.0 <= self.factor < float("inf"):
            raise ConfigError(f"factor is finite and at least 1, and it is {self.factor}")

    def luck(
        self, problem: Problem, replicas: int, iterations: int, rng: np.random.Generator
    ) -> Luck:
        """See `Noise`."""
        shape = _shape(problem, replicas, iterations)
        slow_RD = rng.random((replicas, problem.cluster.num_devices)) < self.probability
        return Luck(np.ones(shape), np.where(slow_RD, self.factor, 1.0))


@dataclass(frozen=True, kw_only=True)
class TableError:
    """A cost table that is wrong: one uniform factor per op kind and device, for a whole replica.

    The error is that of a table's entry, so all ops of one kind on one device share it.

    Attributes:
        spread: Factors are uniform in [1 - spread, 1 + spread]; in [0, 1).

    Raises:
        ConfigError: If the spread is out of range.
    """

    spread: float = 0.2

    def __post_init__(self) -> None:
        if not 0.0 <= self.spread < 1.0:
            raise ConfigError(f"spread lies in [0, 1), and it is {self.spread}")

    def factors(self, problem: Problem, replicas: int, rng: np.random.Generator) -> Float64:
        """Returns a factor per op and device, float64[R, V, D].

        Raises:
            ConfigError: If `replicas` is below 1.
        """
        _shape(problem, replicas, 1)
        kinds = sorted({op.kind for op in problem.graph.ops})
        row_V = [kinds.index(op.kind) for op in problem.graph.ops]
        shape = (replicas, len(kinds), problem.cluster.num_devices)
        factor_RKD = rng.uniform(1.0 - self.spread, 1.0 + self.spread, shape)
        return factor_RKD[:, row_V, :]


@dataclass(frozen=True)
class CombinedNoise:
    """Several independent kinds of noise; their factors are multiplied.

    Attributes:
        parts: The kinds, drawn one after the other from the same generator.

    Raises:
        ConfigError: If there is none.
    """

    parts: tuple[Noise, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ConfigError("combined noise has at least one part, and it has none")

    def luck(
        self, problem: Problem, replicas: int, iterations: int, rng: np.random.Generator
    ) -> Luck:
        """See `Noise`."""
        drawn = [part.luck(problem, replicas, iterations, rng) for part in self.parts]
        op_RIV, device_RD = drawn[0].op_factors, drawn[0].device_factors
        for luck in drawn[1:]:
            op_RIV, device_RD = op_RIV * luck.op_factors, device_RD * luck.device_factors
        return Luck(op_RIV, device_RD)


def _shape(problem: Problem, replicas: int, iterations: int) -> tuple[int, int, int]:
    if replicas < 1 or iterations < 1:
        raise ConfigError(
            f"replicas and iterations are at least 1, and they are {replicas} and {iterations}"
        )
    return replicas, iterations, problem.graph.num_ops


def _no_device(problem: Problem, replicas: int) -> Float64:
    return np.ones((replicas, problem.cluster.num_devices))
