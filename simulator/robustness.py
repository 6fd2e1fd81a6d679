"""How much a plan's value moves when the cost table is wrong."""

from dataclasses import dataclass, replace

import numpy as np

from doppler.core.costs import Costs
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from simulator.noise import TableError
from simulator.replicas import Spread, spread_of
from simulator.scorer import CompiledScorer


@dataclass(frozen=True, slots=True, kw_only=True)
class Robustness:
    """A plan under wrong cost tables.

    Attributes:
        value_ns: Value under the table as it is.
        spread: Values under the wrong tables.
    """

    value_ns: int
    spread: Spread

    @property
    def worst_over_value(self) -> float:
        """Largest value over the value under the table as it is; 1.0 where that is 0."""
        return self.spread.largest_ns / self.value_ns if self.value_ns else 1.0


def robustness(
    problem: Problem,
    costs: Costs,
    plan: Plan,
    *,
    error: float = 0.2,
    tables: int = 100,
    seed: int = 0,
    threads: int = 1,
) -> Robustness:
    """Returns the plan's objective under cost tables with random errors.

    Every entry of the table (op kind and device) is multiplied by its own factor, uniform in
    [1 - error, 1 + error]; slowdown and dispatch costs stay. Two plans with the same seed meet the
    same tables.

    Args:
        problem: Graph, cluster and objective (makespan or period).
        costs: The table.
        plan: The plan, not changed by the errors.
        error: Largest relative error of an entry, in [0, 1).
        tables: Wrong tables to draw, at least 1.
        seed: Seed of the factors.
        threads: Threads that simulate; they change nothing.

    Raises:
        PlanError: If the plan does not fit the problem.
        ConfigError: If `error` or `tables` is out of range.
    """
    wrong = wrong_tables(problem, costs, error, tables, np.random.default_rng(seed))
    scorer = CompiledScorer(problem, costs, threads)
    value, *others = scorer.score_costs(plan, [costs, *wrong]).tolist()
    return Robustness(value_ns=value, spread=spread_of(others))


def wrong_tables(
    problem: Problem, costs: Costs, error: float, tables: int, rng: np.random.Generator
) -> list[Costs]:
    """Returns cost tables whose entries are wrong by up to `error`, rounded to the nanosecond.

    Raises:
        ConfigError: If `error` or `tables` is out of range.
    """
    factor_RVD = TableError(spread=error).factors(problem, tables, rng)
    op_ns_VD = np.array(costs.op_ns, np.int64)
    return [
        replace(costs, op_ns=tuple(map(tuple, np.rint(op_ns_VD * factor_VD).astype(int).tolist())))
        for factor_VD in factor_RVD
    ]
