"""What the rows of a planner table say: means with spread and gaps, and ratios of two columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student_t

from doppler.experiment import Row, Task

TIED = 1.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One column on one graph.

    Attributes:
        graph, column, budget: Which.
        seeds: Runs.
        mean_ns, least_ns, most_ns: Value over the seeds.
        gap_to_bound: Mean over the largest lower bound, - 1.
        gap_to_best: Mean over the best known value, - 1; None where none is stored.
        calls, cpu_seconds: Means.
        tied_at_bound: The graph's portfolio is within 0.5 % of the bound, so nobody can win.
    """

    graph: str
    column: str
    budget: str
    seeds: int
    mean_ns: float
    least_ns: int
    most_ns: int
    gap_to_bound: float
    gap_to_best: float | None
    calls: float
    cpu_seconds: float
    tied_at_bound: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Mean over seeds of value / value, with a 95 % interval's upper end (Student's t)."""

    mean: float
    upper: float


def summarise(rows: Sequence[Row], tasks: Sequence[Task], best_ns: Mapping[str, int]) -> list[Cell]:
    """Returns one cell per graph, column and budget, in the order of first appearance."""
    by_name = {task.name: task for task in tasks}
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.graph, row.column, row.budget), []).append(row)
    portfolio = {
        graph: min(row.value_ns for row in group)
        for (graph, name, _), group in groups.items()
        if name == "portfolio"
    }
    cells: list[Cell] = []
    for (graph, name, budget), group in groups.items():
        values = [row.value_ns for row in group]
        bound, mean = by_name[graph].bound_ns, float(np.mean(values))
        cells.append(
            Cell(
                graph=graph,
                column=name,
                budget=budget,
                seeds=len(group),
                mean_ns=mean,
                least_ns=min(values),
                most_ns=max(values),
                gap_to_bound=mean / bound - 1.0,
                gap_to_best=mean / best_ns[graph] - 1.0 if graph in best_ns else None,
                calls=float(np.mean([row.calls for row in group])),
                cpu_seconds=float(np.mean([row.cpu_seconds for row in group])),
                tied_at_bound=graph in portfolio and portfolio[graph] <= TIED * bound,
            )
        )
    return cells


def ratio(
    rows: Sequence[Row], graph: str, upper: tuple[str, str], lower: tuple[str, str]
) -> Ratio | None:
    """Returns the ratio of two (column, budget) pairs on a graph, None without a common seed."""
    values: dict[tuple[str, str], dict[int, int]] = {upper: {}, lower: {}}
    for row in rows:
        key = (row.column, row.budget)
        if row.graph == graph and key in values:
            values[key][row.seed] = row.value_ns
    common = sorted(set(values[upper]) & set(values[lower]))
    if not common:
        return None
    found = np.array([values[upper][seed] / values[lower][seed] for seed in common])
    margin = 0.0
    if len(found) > 1:
        margin = float(
            student_t.ppf(0.975, len(found) - 1) * found.std(ddof=1) / np.sqrt(len(found))
        )
    mean = float(found.mean())
    return Ratio(mean=mean, upper=mean + margin)


HEADINGS = (
    "graph",
    "column",
    "budget",
    "seeds",
    "mean ms",
    "least",
    "most",
    "to bound",
    "to best",
    "calls",
    "cpu s",
    "",
)


def cell_words(cell: Cell) -> tuple[str, ...]:
    """Returns a cell in words, one per heading."""
    return (
        cell.graph,
        cell.column,
        cell.budget,
        str(cell.seeds),
        f"{cell.mean_ns / 1e6:.3f}",
        f"{cell.least_ns / 1e6:.3f}",
        f"{cell.most_ns / 1e6:.3f}",
        f"{cell.gap_to_bound:.2%}",
        "-" if cell.gap_to_best is None else f"{cell.gap_to_best:.2%}",
        f"{cell.calls:.0f}",
        f"{cell.cpu_seconds:.2f}",
        "tied at bound" if cell.tied_at_bound else "",
    )


def cell_lines(cells: Sequence[Cell]) -> list[str]:
    """Returns the table as plain text, headings first."""
    rows = [HEADINGS, *map(cell_words, cells)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(HEADINGS))]
    return [
        "  ".join(
            word.ljust(width) if index < 3 else word.rjust(width)
            for index, (word, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
