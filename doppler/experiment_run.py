"""Runs an experiment: the table of one file in `experiments/experiment/`."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from doppler.experiment import (
    REFERENCE_COLUMN,
    BestKnown,
    Row,
    Table,
    Task,
    load_best,
    make_task,
    store_best,
)
from doppler.experiment_summary import Cell, cell_lines, summarise
from doppler.graph_config import ExperimentConfig
from doppler.graphs.published import PUBLISHED

GROUPS = ("job", "hardware", "planner", "training")
OVERRIDES = ("graphs", "columns", "seeds", "seconds", "simulations", "update_best")


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

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.seconds <= 0:
            raise ConfigError(
                f"an experiment has at least 1 seed and more than 0 seconds, and it has "
                f"{self.seeds} and {self.seconds:g}"
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
        tasks, rows, cells: What was run, the runs, and their summary.
        best_ns: Graph -> best known value, where one is stored.
        missing: "graph column" of which seeds are missing.
        stored: Files of best plans that were written.
    """

    tasks: tuple[Task, ...]
    rows: tuple[Row, ...]
    cells: tuple[Cell, ...]
    best_ns: dict[str, int]
    missing: tuple[str, ...]
    stored: tuple[Path, ...]


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
        limit_s: No seed of a graph is started after so many seconds.

    Raises:
        ConfigError: If a graph, machine or column is unknown.
        FormatError: If a stored row or plan is not what it says.
    """
    start = time.perf_counter()
    tasks = tuple(_task(name, settings.machines) for name in settings.graphs)
    table = Table(rows_file, on_row)
    for task in tasks:
        for seed in range(settings.seeds):
            if time.perf_counter() - start > limit_s:
                break
            for name in settings.columns:
                if settings.simulations is None:
                    table.by_seconds(task, name, (seed,), settings.seconds)
                else:
                    table.by_simulations(task, name, (seed,), settings.simulations)
            if settings.equal_simulations and REFERENCE_COLUMN in settings.columns:
                table.by_calls_of(task, "portfolio", (seed,), settings.seconds)
    stored = _update_best(table, tasks, best_folder, command) if settings.update_best else ()
    best = {task.name: load_best(best_folder, task) for task in tasks}
    best_ns = {name: found.value_ns for name, found in best.items() if found is not None}
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
        stored=stored,
    )


def _task(name: str, machines: dict[int, str]) -> Task:
    if name not in PUBLISHED:
        raise ConfigError(f"graph {name!r} is unknown; {nearest(name, PUBLISHED)}")
    count = PUBLISHED[name].num_devices
    if count not in machines:
        raise ConfigError(
            f"graph {name!r} is cut for {count} devices, and machines has {sorted(machines)}"
        )
    return make_task(name, machines[count])


def _update_best(
    table: Table, tasks: Sequence[Task], folder: Path, command: str
) -> tuple[Path, ...]:
    stored: list[Path] = []
    for task in tasks:
        found = [pair for pair in table.plans if pair[0].task == task.key]
        if not found:
            continue
        row, plan = min(found, key=lambda pair: pair[0].value_ns)
        best = load_best(folder, task)
        if best is None or row.value_ns < best.value_ns:
            how = f"{command} (column {row.column}, seed {row.seed}, {row.calls} simulations)"
            new = BestKnown(plan=plan, value_ns=row.value_ns, command=how)
            stored.append(store_best(folder, task, new))
    return tuple(stored)


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
    for line in cell_lines(result.cells):
        view.line(line)
    for path in result.stored:
        view.line(f"new best plan: {path}")


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
