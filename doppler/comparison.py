"""Compares planners at equal budget from several seeds: means with spread, table and JSON."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from doppler.api import PlannerResult, plan_problem
from doppler.commands import check_output, check_planners, read_problem
from doppler.console import View
from doppler.core.costs import Costs
from doppler.core.errors import ConfigError
from doppler.core.problem import Problem
from doppler.core.serialize import save, write_atomic
from doppler.graph_config import CompareConfig
from doppler.planners.bounds import bound_words, bounds_within
from doppler.results import command_text
from simulator.noise import Noise


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSpread:
    """What one planner made of a problem from several seeds.

    Attributes:
        planner: Its name.
        results: One per seed, in the order of the seeds.
    """

    planner: str
    results: tuple[PlannerResult, ...]

    @property
    def values_ns(self) -> list[int]:
        """Value per seed."""
        return [result.value_ns for result in self.results]

    @property
    def mean_ns(self) -> float:
        """Mean value over the seeds."""
        return float(np.mean(self.values_ns))

    @property
    def gap(self) -> float:
        """Mean over the seeds of value / lower bound - 1."""
        return float(np.mean([result.gap for result in self.results]))

    @property
    def num_calls(self) -> float:
        """Plans scored, mean over the seeds."""
        return float(np.mean([result.num_calls for result in self.results]))

    @property
    def seconds(self) -> float:
        """Wall-clock time, mean over the seeds."""
        return float(np.mean([result.seconds for result in self.results]))

    @property
    def best(self) -> PlannerResult:
        """The best result of all seeds."""
        return min(self.results, key=lambda result: result.value_ns)


def compare_seeds(
    problem: Problem,
    costs: Costs,
    planners: Sequence[str],
    budget: int,
    seeds: Sequence[int],
    *,
    noise: Noise | None = None,
    bound_effort: float = 0.0,
    on_result: Callable[[PlannerResult], None] | None = None,
) -> list[PlannerSpread]:
    """Returns what each planner makes of a problem from each seed, the best mean first.

    Args:
        problem: What is placed.
        costs: Times.
        planners: Names.
        budget: Plans that each may simulate from each seed.
        seeds: Every planner starts from each of them.
        noise: Noise of op times, for the objective p95.
        bound_effort: Deterministic seconds that CP-SAT may spend on the lower bound; 0 = the quick
            bounds only.
        on_result: Called after each run.

    Raises:
        ConfigError: If there is no seed.
    """
    if not seeds:
        raise ConfigError("planners are compared from at least one seed, and there is none")
    bounds = bounds_within(problem, costs, bound_effort, seed=seeds[0])
    spreads: list[PlannerSpread] = []
    for name in planners:
        results: list[PlannerResult] = []
        for seed in seeds:
            made = plan_problem(problem, costs, name, budget, seed, noise=noise, bounds=bounds)
            results.append(made)
            if on_result is not None:
                on_result(made)
        spreads.append(PlannerSpread(planner=name, results=tuple(results)))
    return sorted(spreads, key=lambda spread: spread.mean_ns)


def compare(config: CompareConfig, command: Sequence[str]) -> None:
    """Runs several planners at equal budget (the command `doppler compare`)."""
    check_planners(config.planners)
    output, table = check_output(config.output), check_output(config.table)
    problem, costs, choice = read_problem(config)
    view = View()
    seeds = range(config.seed, config.seed + config.seeds)
    with view.progress("planners", len(config.planners) * config.seeds) as advance:
        spreads = compare_seeds(
            problem,
            costs,
            config.planners,
            config.budget,
            seeds,
            noise=choice.noise(config.noise, problem.objective),
            bound_effort=config.bound_effort,
            on_result=lambda r: advance(1, f"{r.planner} {r.value_ns / 1e6:.3f} ms"),
        )
    view.show(spread_table(problem, spreads))
    best = min((spread.best for spread in spreads), key=lambda result: result.value_ns)
    if best.bound:
        words = f"lower {bound_words(problem)}"
        view.line(f"{words}: {best.bound_ns / 1e6:.3f} ms ({best.bound})")
    if table is not None:
        document = spread_document(problem, spreads, config.budget, seeds)
        document["command"] = command_text(command)
        write_atomic(table, json.dumps(document, indent=1) + "\n")
        view.line(f"table: {config.table}")
    if output is not None:
        save(best.plan, output, problem)
        view.line(f"best plan: {config.output}")


def spread_table(problem: Problem, spreads: Sequence[PlannerSpread]) -> Table:
    """Returns the comparison as a table; least and most are those of the seeds."""
    seeds = len(spreads[0].results)
    table = Table(
        title=f"{problem.graph.name} on {problem.cluster.name}, "
        f"{seeds} {'seed' if seeds == 1 else 'seeds'}"
    )
    table.add_column("planner")
    for heading in (
        f"mean {problem.objective.value} (ms)",
        "least",
        "most",
        f"gap to {bound_words(problem)}",
        "simulations",
        "seconds",
    ):
        table.add_column(heading, justify="right")
    for spread in spreads:
        table.add_row(
            spread.planner,
            f"{spread.mean_ns / 1e6:.3f}",
            f"{min(spread.values_ns) / 1e6:.3f}",
            f"{max(spread.values_ns) / 1e6:.3f}",
            f"{spread.gap:.1%}",
            f"{spread.num_calls:.0f}",
            f"{spread.seconds:.2f}",
        )
    return table


def spread_document(
    problem: Problem, spreads: Sequence[PlannerSpread], budget: int, seeds: Sequence[int]
) -> dict[str, Any]:
    """Returns the comparison as JSON."""
    first = spreads[0].results[0]
    return {
        "graph": problem.graph.name,
        "cluster": problem.cluster.name,
        "objective": problem.objective.value,
        "budget": budget,
        "seeds": list(seeds),
        "bound_ns": first.bound_ns,
        "bound": first.bound,
        "planners": [
            {
                "planner": spread.planner,
                "mean_ns": spread.mean_ns,
                "least_ns": min(spread.values_ns),
                "most_ns": max(spread.values_ns),
                "values_ns": spread.values_ns,
                "gap": spread.gap,
                "simulations": spread.num_calls,
                "seconds": spread.seconds,
            }
            for spread in spreads
        ],
    }
