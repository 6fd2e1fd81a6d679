"""Tables of planners over graphs and seeds, with resume: every finished run is a line of a file.

A run is one column on one graph from one seed, under a budget of processor seconds or of calls
(plans that it may have scored).
A line is taken up again only if graph, cluster and times are the same to the bit, and the sources
that decide its value too (`doppler.experiment_sources`): lines of other sources stay in the file,
are counted and are run again. The best known plans lie beside the table
(`doppler.experiment_best`).
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from doppler.columns import Measured, calls_for, column, measure, warm_up
from doppler.core.costs import Costs
from doppler.core.errors import ConfigError, FormatError, nearest
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.serialize import write_atomic
from doppler.experiment_sources import Sources, present_sources
from doppler.graphs.published import PUBLISHED
from doppler.machines import read_machine
from doppler.planners.bounds import QUICK_BOUNDS, lower_bounds


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
        given: Plans that it might have scored; 0 in lines of before this was kept.
        revision, sources: `Sources` that made it; no digest in lines of before this was kept.
    """

    task: str
    graph: str
    column: str
    seed: int
    budget: str
    calls: int
    cpu_seconds: float
    value_ns: int
    given: int = 0
    revision: str = "unknown"
    sources: str = ""


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
        path: The file; runs that it holds for the same task and sources are not made again.
        on_row: Called after every run, with the row and whether it was there before.
        on_plan: Called with what a run made before its line is written, so that no plan is lost
            whose run is not made again.
        is_late: Asked before every run that the file lacks; it is left out where the answer is yes.
        sources: What runs; None = the sources as they are.

    Attributes:
        rows: Those asked for so far.
        num_older: Lines of the file that other sources made.
    """

    def __init__(
        self,
        path: Path,
        on_row: Callable[[Row, bool], None],
        on_plan: Callable[[Task, Row, Plan], None] | None = None,
        is_late: Callable[[], bool] | None = None,
        sources: Sources | None = None,
    ) -> None:
        self._path = path
        self._on_row, self._on_plan, self._is_late = on_row, on_plan, is_late
        self._sources = sources or present_sources()
        stored = _read_rows(path)
        now = [row for row in stored if row.sources == self._sources.digest]
        self._rows = {_run_key(row): row for row in now}
        self._calls = {(row.task, row.column, row.budget): row.given for row in now}
        self._warm: set[str] = set()
        self.rows: list[Row] = []
        self.num_older = len(stored) - len(now)

    def by_seconds(self, task: Task, name: str, seeds: Iterable[int], seconds: float) -> None:
        """Runs a column from every seed with a budget of processor seconds.

        Runs of the file have measured how many calls that is, else it is measured now.
        """
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
        self._warm_up(name)
        key = (task.key, name, seconds_budget(seconds))
        if key not in self._calls:
            self._calls[key] = calls_for(column(name), task.problem, task.costs, seconds)
        return self._calls[key]

    def _run(self, task: Task, name: str, seed: int, budget: str, calls: Callable[[], int]) -> None:
        key = (task.key, name, seed, budget)
        row = self._rows.get(key)
        known = row is not None
        if row is None and self._is_late is not None and self._is_late():
            return
        if row is None:
            row, plan = self._made(task, name, seed, budget, calls())
            if self._on_plan is not None:
                self._on_plan(task, row, plan)
            self._rows[key] = row
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")
        self.rows.append(row)
        self._on_row(row, known)

    def _made(self, task: Task, name: str, seed: int, budget: str, calls: int) -> tuple[Row, Plan]:
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
            given=calls,
            revision=self._sources.revision,
            sources=self._sources.digest,
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
