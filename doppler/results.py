"""Result folders: one per run, named by job, cluster and time; the latest is also linked."""

import datetime
import json
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from doppler.core.errors import FormatError
from doppler.core.serialize import write_atomic

LATEST = "latest"
PLAN_FILE = "plan.json"
GRAPH_FILE = "graph.json"
CLUSTER_FILE = "cluster.json"
CONFIG_FILE = "config.yaml"
COMMAND_FILE = "command.txt"
COSTS_FILE = "cost_table.json"
SIMULATED_TRACE_FILE = "trace_simulated.json"
MEASURED_TRACE_FILE = "trace_measured.json"
METRICS_FILE = "metrics.jsonl"
CHECKPOINT_FILE = "checkpoint.safetensors"
POLICY_FOLDER = "policy"


def make_result_folder(parent: Path, job: str, cluster: str) -> Path:
    """Returns a new folder `job-cluster-time` below `parent`."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = "-".join(part.replace("/", "_") for part in (job, cluster, stamp))
    parent.mkdir(parents=True, exist_ok=True)
    count, folder = 1, parent / name
    while True:
        try:
            folder.mkdir()
        except FileExistsError:  # of the same second, perhaps by another process
            count += 1
            folder = parent / f"{name}-{count}"
        else:
            return folder


def link_latest(folder: Path) -> None:
    """Lets `latest` beside a finished result folder point to it."""
    temporary = folder.parent / f".{LATEST}-{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(folder.name, target_is_directory=True)
    temporary.replace(folder.parent / LATEST)


def write_settings(folder: Path, config: Any, command: Iterable[str]) -> None:
    """Writes the resolved configuration and the exact command."""
    (folder / CONFIG_FILE).write_text(OmegaConf.to_yaml(OmegaConf.structured(config)), "utf-8")
    (folder / COMMAND_FILE).write_text(command_text(command) + "\n", "utf-8")


def command_text(command: Iterable[str]) -> str:
    """Returns a command as one line that a shell reads back to the same words."""
    return shlex.join(command)


def append_metrics(folder: Path, record: Any, labels: Mapping[str, Any] | None = None) -> None:
    """Appends one typed record as a line of JSON; its type name goes along as `record`.

    Args:
        folder: Holds the file.
        record: A dataclass.
        labels: What the record belongs to; they go along, too.
    """
    line = {"record": type(record).__name__, **(labels or {}), **_plain(record)}
    with (folder / METRICS_FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def forget_metrics(folder: Path, iterations: int) -> None:
    """Removes the metrics that a run which goes back to `iterations` will write once more.

    A last line that a killed run cut short goes too.

    Raises:
        FormatError: If another line is no record.
    """
    path = folder / METRICS_FILE
    if not path.exists():
        return
    text = path.read_text("utf-8")
    whole = text[: text.rfind("\n") + 1].splitlines(keepends=True)
    kept = [
        line
        for number, line in enumerate(whole, start=1)
        if _iteration(line, f"{path}, line {number}") < iterations
    ]
    write_atomic(path, "".join(kept))


def _iteration(line: str, where: str) -> int:
    try:
        record = json.loads(line)
        return int(record.get("iteration", record.get("first_iteration", 0)))
    except (ValueError, TypeError, AttributeError) as error:
        raise FormatError(f"{where} is no record of a run: {error}") from error


def _plain(record: Any) -> Mapping[str, Any]:
    values = asdict(record) if is_dataclass(record) and not isinstance(record, type) else record
    return {key: value.name if isinstance(value, Enum) else value for key, value in values.items()}
