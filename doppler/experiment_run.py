"""Runs an experiment: the table of one file in `experiments/experiment/`."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from doppler.columns import column
from doppler.console import View
from doppler.core.errors import ConfigError, nearest
from doppler.core.plan import Plan
from doppler.experiment import REFERENCE_COLUMN, Row, Table, Task, make_task
from doppler.experiment_best import BestKnown, load_best, store_best
from doppler.experiment_bounds import improve_bound
from doppler.experiment_summary import Cell, cell_lines, summarise
from doppler.graph_config import ExperimentConfig
from doppler.graphs.published import PUBLISHED

GROUPS = ("job", "hardware", "planner", "training")
OVERRIDES = (
    "graphs",
    "columns",
    "seeds",
    "seconds",
    "simulations",
    "update_best",
    "bound_seconds",
)


@dataclass(slots=True, kw_only=True)
class ExperimentSettings:
    """A table: what the files of `experiments/` may set.

    Attributes:
        graphs: Names of published graphs.
        machines: Devices that a graph is cut for -> machine of the hardware catalogue.
        columns: Columns, see `doppler.columns`.
        seeds: Seeds 0 to seeds - 1.
        seconds: Processor seconds per run.
        simulations: Plans that a run may have scored, in place of a time; None = `seconds` counts.
        equal_simulations: Also run the portfolio with as many calls as `policy_polish` had.
        update_best: Store plans that are better than the best known ones.
        bound_seconds: Wall-clock seconds that CP-SAT may work on the lower bound of each graph
            before the runs; a better bound is stored beside the best known plan. 0 = not at all.
    """

    defaults: list[Any] = field(default_factory=lambda: ["_self_"])
    graphs: list[str] = field(default_factory=list)
    machines: dict[int, str] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    seeds: int = 5
    seconds: float = 5.0
    simulations: int | None = None
    equal_simulations: bool = False
    update_best: bool = False
    bound_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.seconds <= 0:
            raise ConfigError(
                f"an experiment has at least 1 seed and more than 0 seconds, and it has "
                f"{self.seeds} and {self.seconds:g}"
            )
        if self.bound_seconds < 0:
            raise ConfigError(
                f"bound_seconds of an experiment is at least 0, and it is {self.bound_seconds:g}"
            )
        if self.simulations is not None and self.simulations < 1:
            raise ConfigError(
                f"an experiment has at least 1 simulation per run, and simulations is "
                f"{self.simulations}"
            )
        if self.simulations is not None and self.equal_simulations:
            raise ConfigError(
                "equal_simulations compares with runs of so many seconds, and simulations is "
                f"{self.simulations}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResult:
    """A table as far as it is made.

    Attributes:
        tasks: What was run, each with its best bound.
        rows, cells: The runs, and their summary.
        best_ns: Graph -> best known value, where one is stored.
        missing: "graph column" of which seeds are missing.
        stored: Files of best plans and bounds that were written.
        num_older: Lines of the file that other sources made; they are in no cell.
    """

    tasks: tuple[Task, ...]
    rows: tuple[Row, ...]
    cells: tuple[Cell, ...]
    best_ns: dict[str, int]
    missing: tuple[str, ...]
    stored: tuple[Path, ...]
    num_older: int


def load_settings(folder: Path, name: str, words: Sequence[str]) -> ExperimentSettings:
    """Returns the settings of an experiment.

    Args:
        folder: Folder of the config groups.
        name: File in its `experiment/`.
        words: Overrides: a setting, or another file of a group (`training=long`).

    Raises:
        ConfigError: If a file is missing, or a value has the wrong type or is out of range.
    """
    known = sorted(path.stem for path in (folder / "experiment").glob("*.yaml"))
    if name not in known:
        raise ConfigError(f"experiment {name!r} is not in {folder}; {nearest(name, known)}")
    store = ConfigStore.instance()
    store.store(name="experiment_settings", node=ExperimentSettings)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(version_base=None, config_dir=str(folder.resolve())):
            composed = compose("experiment_settings", [f"+experiment={name}", *words])
        settings = cast(ExperimentSettings, OmegaConf.to_object(composed))
    except ConfigError:
        raise
    except (HydraException, OmegaConfBaseException) as error:
        cause = error.__cause__ or error
        first = next(line.strip() for line in str(cause).splitlines() if line.strip())
        raise ConfigError(f"experiment {name!r}: {first}") from error
    for label in settings.columns:
        column(label)
    return settings


def run_experiment(
    settings: ExperimentSettings,
    rows_file: Path,
    best_folder: Path,
    command: str,
    on_row: Callable[[Row, bool], None],
    limit_s: float = float("inf"),
) -> TableResult:
    """Makes the runs that are missing and returns the table.

    Args:
        settings: The experiment.
        rows_file: Where finished runs are kept.
        best_folder: Where best known plans lie.
        command: What is stored beside a new best plan.
        on_row: Called per run, and whether it was there before.
        limit_s: No run is started after so many seconds.

    Raises:
        ConfigError: If a graph, machine or column is unknown, or a bound is asked for and there is
            no best known plan.
        FormatError: If a stored row, plan or bound is not what it says.
    """
    end = time.perf_counter() + limit_s
    tasks = tuple(_task(name, settings.machines) for name in settings.graphs)
    stored: dict[Path, None] = {}

    def keep(task: Task, row: Row, plan: Plan) -> None:
        path = _update_best(best_folder, task, row, plan, command)
        if path is not None:
            stored[path] = None

    table = Table(
        rows_file,
        on_row,
        on_plan=keep if settings.update_best else None,
        is_late=lambda: time.perf_counter() > end,
    )
    for task in tasks if settings.bound_seconds else ():
        path = improve_bound(best_folder, task, settings.bound_seconds, command)
        if path is not None:
            stored[path] = None
    # Seed by seed, so that a table that is cut short has all graphs.
    for seed in range(settings.seeds):
        for task in tasks:
            for run in _runs(table, settings, task, seed):
                run()
    best = {task.name: load_best(best_folder, task) for task in tasks}
    best_ns = {name: found.value_ns for name, found in best.items() if found is not None}
    tasks = tuple(_with_bound(task, best[task.name]) for task in tasks)
    counts = {(row.graph, row.column, row.seed) for row in table.rows}
    missing = tuple(
        f"{task.name} {name}"
        for task in tasks
        for name in settings.columns
        if any((task.name, name, seed) not in counts for seed in range(settings.seeds))
    )
    return TableResult(
        tasks=tasks,
        rows=tuple(table.rows),
        cells=tuple(summarise(table.rows, tasks, best_ns)),
        best_ns=best_ns,
        missing=missing,
        stored=tuple(stored),
        num_older=table.num_older,
    )


def _runs(
    table: Table, settings: ExperimentSettings, task: Task, seed: int
) -> list[Callable[[], None]]:
    """All runs of one graph from one seed, in the order of the columns."""
    seeds, seconds, calls = (seed,), settings.seconds, settings.simulations
    runs: list[Callable[[], None]] = [
        partial(table.by_seconds, task, name, seeds, seconds)
        if calls is None
        else partial(table.by_simulations, task, name, seeds, calls)
        for name in settings.columns
    ]
    if settings.equal_simulations and REFERENCE_COLUMN in settings.columns:
        equal = partial(table.by_calls_of, task, "portfolio", seeds, seconds)
        runs.insert(settings.columns.index(REFERENCE_COLUMN) + 1, equal)
    return runs


def _with_bound(task: Task, best: BestKnown | None) -> Task:
    return task if best is None else replace(task, bound_ns=best.bound_ns(task))


def _task(name: str, machines: dict[int, str]) -> Task:
    if name not in PUBLISHED:
        raise ConfigError(f"graph {name!r} is unknown; {nearest(name, PUBLISHED)}")
    count = PUBLISHED[name].num_devices
    if count not in machines:
        raise ConfigError(
            f"graph {name!r} is cut for {count} devices, and machines has {sorted(machines)}"
        )
    return make_task(name, machines[count])


def _update_best(folder: Path, task: Task, row: Row, plan: Plan, command: str) -> Path | None:
    """Stores a plan that is better than the best known one; returns its file."""
    best = load_best(folder, task)
    if best is not None and row.value_ns >= best.value_ns:
        return None
    new = BestKnown(
        plan=plan,
        value_ns=row.value_ns,
        command=f"{command} (column {row.column}, seed {row.seed}, {row.calls} simulations)",
        revision=row.revision,
        solver_bound=None if best is None else best.solver_bound,
    )
    return store_best(folder, task, new)


def experiment(config: ExperimentConfig, command: Sequence[str]) -> None:
    """Runs an experiment and prints its table (the command `doppler experiment`)."""
    view = View(Console(soft_wrap=True))  # a table wider than the terminal is not folded
    words = [
        f"{name}={_word(value)}"
        for name in (*GROUPS, *OVERRIDES)
        if (value := getattr(config, name)) is not None
    ]
    folder = Path(config.folder)
    settings = load_settings(folder, config.name, words)
    result = run_experiment(
        settings,
        Path(config.results) / f"{config.name}.jsonl",
        folder / "best_known",
        " ".join(command),
        lambda row, known: view.line(row_line(row, known)),
    )
    view.section(config.name)
    for line in cell_lines(result.cells) if result.cells else ():
        view.line(line)
    for line in result_lines(result):
        view.line(line)


def result_lines(result: TableResult) -> list[str]:
    """Returns bounds and best plans, and what a table stored, left out and lacks, in words."""
    lines = []
    for task in result.tasks:
        best = result.best_ns.get(task.name)
        words = "no best known plan"
        if best is not None:
            gap = best / task.bound_ns - 1.0
            words = f"best known plan {best / 1e6:.3f} ms ({gap:.2%} above)"
        lines.append(f"{task.name}: bound {task.bound_ns / 1e6:.3f} ms, {words}")
    lines += [f"new best plan or bound: {path}" for path in result.stored]
    if result.num_older:
        lines.append(f"{result.num_older} runs of the file were left out: other sources made them")
    if result.missing:
        lines.append(f"not all seeds of {', '.join(result.missing)}: run again to go on")
    return lines


def row_line(row: Row, known: bool) -> str:
    """Returns one run in words."""
    return (
        f"{row.graph} {row.column} seed {row.seed}: {row.value_ns / 1e6:.3f} ms ({row.calls} "
        f"simulations, {row.cpu_seconds:.2f} s, {row.budget}){', from the file' if known else ''}"
    )


def _word(value: object) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
