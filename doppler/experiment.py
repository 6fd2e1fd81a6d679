"""Tables of planners over graphs and seeds, with resume: every finished run is a line of a file.

A run is one column on one graph from one seed, under a budget of processor seconds or of calls
(plans that it may have scored).
A line is taken up again only if graph, cluster and times are the same to the bit. Beside the table
stand the best known plans: one JSON file per graph with plan, value, lower bounds and the command
that made it.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from doppler.api import make_scorer
from doppler.columns import Measured, calls_for, column, measure, warm_up
from doppler.core.costs import Costs
from doppler.core.errors import ConfigError, FormatError, nearest
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.serialize import from_json, read_json, to_json, write_atomic
from doppler.graphs.published import PUBLISHED
from doppler.machines import read_machine
from doppler.planners.bounds import QUICK_BOUNDS, Bound, lower_bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A graph on its cluster with its times.

    Attributes:
        name: Name of the graph.
        machine: Name of the cluster.
        problem, costs: What planners get.
        bound_ns: Largest quick lower bound.
    """

    name: str
    machine: str
    problem: Problem
    costs: Costs
    bound_ns: int

    @property
    def key(self) -> str:
        """Digest of graph, cluster and times."""
        parts = (self.problem.graph.digest, self.problem.cluster.digest, repr(self.costs))
        return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One finished run.

    Attributes:
        task: `Task.key`.
        graph, column, seed: Which run.
        budget: "5 s" (processor seconds), "calls of 5 s" (as many as `policy_polish` had then), or
            "2000 simulations".
        calls: Plans scored.
        cpu_seconds: Processor seconds used.
        value_ns: Value of the plan.
    """

    task: str
    graph: str
    column: str
    seed: int
    budget: str
    calls: int
    cpu_seconds: float
    value_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BestKnown:
    """The best plan that is known.

    Attributes:
        plan: It.
        value_ns: Its value.
        command: What made it.
    """

    plan: Plan
    value_ns: int
    command: str


REFERENCE_COLUMN = "policy_polish"


def seconds_budget(seconds: float) -> str:
    """Returns `Row.budget` of runs that had this many processor seconds."""
    return f"{seconds:g} s"


def calls_budget(seconds: float) -> str:
    """Returns `Row.budget` of runs that had as many calls as `policy_polish` in these seconds."""
    return f"calls of {seconds:g} s"


def simulations_budget(calls: int) -> str:
    """Returns `Row.budget` of runs that were given this many calls."""
    return f"{calls} simulations"


def make_task(graph: str, machine: str) -> Task:
    """Returns a published graph on a named machine, with roofline times.

    Raises:
        ConfigError: If a name is unknown.
    """
    if graph not in PUBLISHED:
        raise ConfigError(f"graph {graph!r} is unknown; {nearest(graph, PUBLISHED)}")
    found = read_machine(machine)
    problem = Problem(graph=PUBLISHED[graph].build().graph, cluster=found.cluster)
    costs = found.roofline.costs(problem)
    bound = lower_bounds(problem, costs, QUICK_BOUNDS).best_ns
    return Task(name=graph, machine=machine, problem=problem, costs=costs, bound_ns=bound)


class Table:
    """Runs what is missing, and remembers every finished run in a file of JSON lines.

    Args:
        path: The file; runs that it holds for the same task are not made again.
        on_row: Called after every run, with the row and whether it was there before.
    """

    def __init__(self, path: Path, on_row: Callable[[Row, bool], None]) -> None:
        self._path = path
        self._on_row = on_row
        self._rows = {_run_key(row): row for row in _read_rows(path)}
        self._calls: dict[tuple[str, str, str], int] = {}
        self._warm: set[str] = set()
        self.rows: list[Row] = []
        self.plans: list[tuple[Row, Plan]] = []

    def by_seconds(self, task: Task, name: str, seeds: Iterable[int], seconds: float) -> None:
        """Runs a column from every seed with a budget of processor seconds."""
        for seed in seeds:
            budget = partial(self._budget, task, name, seconds)
            self._run(task, name, seed, seconds_budget(seconds), budget)

    def by_calls_of(self, task: Task, name: str, seeds: Iterable[int], seconds: float) -> None:
        """Runs a column with as many calls as `policy_polish` had in `seconds`, seed by seed."""
        reference = (task.key, REFERENCE_COLUMN, seconds_budget(seconds))
        calls_of = {
            row.seed: row.calls
            for row in self.rows
            if (row.task, row.column, row.budget) == reference
        }
        for seed in seeds:
            if seed in calls_of:
                self._run(
                    task, name, seed, calls_budget(seconds), partial(calls_of.__getitem__, seed)
                )

    def by_simulations(self, task: Task, name: str, seeds: Iterable[int], calls: int) -> None:
        """Runs a column from every seed with a budget of calls."""

        def budget() -> int:
            self._warm_up(name)
            return calls

        for seed in seeds:
            self._run(task, name, seed, simulations_budget(calls), budget)

    def _warm_up(self, name: str) -> None:
        if name not in self._warm:
            warm_up(column(name))
            self._warm.add(name)

    def _budget(self, task: Task, name: str, seconds: float) -> int:
        key = (task.key, name, seconds_budget(seconds))
        if key not in self._calls:
            self._warm_up(name)
            self._calls[key] = calls_for(column(name), task.problem, task.costs, seconds)
        return self._calls[key]

    def _run(self, task: Task, name: str, seed: int, budget: str, calls: Callable[[], int]) -> None:
        key = (task.key, name, seed, budget)
        row = self._rows.get(key)
        known = row is not None
        if row is None:
            row, plan = _row(task, name, seed, budget, calls())
            self._rows[key] = row
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")
            self.plans.append((row, plan))
        self.rows.append(row)
        self._on_row(row, known)


def _row(task: Task, name: str, seed: int, budget: str, calls: int) -> tuple[Row, Plan]:
    found: Measured = measure(column(name), task.problem, task.costs, calls, seed)
    row = Row(
        task=task.key,
        graph=task.name,
        column=name,
        seed=seed,
        budget=budget,
        calls=found.calls,
        cpu_seconds=round(found.cpu_seconds, 3),
        value_ns=found.value_ns,
    )
    return row, found.plan


def _run_key(row: Row) -> tuple[str, str, int, str]:
    return (row.task, row.column, row.seed, row.budget)


def _read_rows(path: Path) -> list[Row]:
    """Rows of a file; a last line that a killed run cut short is taken out of it."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        write_atomic(path, whole)
    rows: list[Row] = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            rows.append(Row(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise FormatError(f"{path}, line {number} is no row of a table: {error}") from error
    return rows


def load_best(folder: Path, task: Task) -> BestKnown | None:
    """Returns the best known plan of a task, re-scored; None where none is stored.

    Raises:
        FormatError: If a key is missing, or the stored value is not what the plan scores.
        PlanError: If the plan was made for another graph or cluster.
    """
    path = folder / f"{task.name}.json"
    if not path.exists():
        return None
    document = read_json(path)
    missing = [key for key in ("plan", "value_ns", "command") if key not in document]
    if missing:
        raise FormatError(
            f"{path} lacks {', '.join(missing)}; a best known plan is an object with the keys "
            f"plan, value_ns and command"
        )
    plan = from_json(document["plan"], "plan", task.problem, where=str(path))
    if not isinstance(plan, Plan):
        raise FormatError(f"{path} holds no plan")
    value = int(make_scorer(task.problem, task.costs).score_plans([plan])[0])
    if value != document["value_ns"]:
        raise FormatError(
            f"{path} says {document['value_ns']} ns, and its plan scores {value}: the times or "
            f"the engine have changed since {document['command']!r}"
        )
    return BestKnown(plan=plan, value_ns=value, command=str(document["command"]))


def store_best(
    folder: Path, task: Task, best: BestKnown, bounds: Sequence[Bound] = QUICK_BOUNDS
) -> Path:
    """Writes the best known plan of a task with its bounds and its making command."""
    found = lower_bounds(task.problem, task.costs, bounds)
    document: dict[str, Any] = {
        "graph": task.name,
        "machine": task.machine,
        "value_ns": best.value_ns,
        "bounds_ns": {bound.value: getattr(found, f"{bound.value}_ns") for bound in bounds},
        "gap": round(best.value_ns / found.best_ns - 1.0, 6),
        "command": best.command,
        "plan": to_json(best.plan, task.problem),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{task.name}.json"
    write_atomic(path, json.dumps(document, indent=1) + "\n")
    return path
