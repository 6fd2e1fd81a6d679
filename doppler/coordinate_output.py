"""What `doppler coordinate` chose, as folders that `doppler run` reads."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from doppler.calibration import Calibration, save_calibration
from doppler.coordinate_config import CoordinateConfig
from doppler.coordinate_rows import Row
from doppler.coordination import Coordination
from doppler.core.errors import ConfigError
from doppler.core.serialize import save, write_atomic
from doppler.measure import Interval
from doppler.results import (
    CLUSTER_FILE,
    COSTS_FILE,
    GRAPH_FILE,
    PLAN_FILE,
    write_settings,
)

CHOICES_FILE = "choices.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a global batch should run with.

    Attributes:
        row: Layout, template or learned plan, shards.
        measured: Its steps per second with their interval; None if nothing was measured.
    """

    row: Row
    measured: Interval | None

    @property
    def steps_per_s(self) -> float:
        """As measured, else as simulated."""
        return self.row.steps_per_s if self.measured is None else self.measured.value


def fastest(choices: Sequence[Choice]) -> Choice:
    """Returns the choice with the most steps per second, whatever its global batch."""
    return max(choices, key=lambda choice: choice.steps_per_s)


def check_folder(path: str | None) -> Path | None:
    """Returns the folder for the choices, refused before anything takes time if it cannot be."""
    if path is None:
        return None
    folder = Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"output is a folder that is new or empty, and {path!r} is neither")
    return folder


def write_choices(
    folder: Path,
    choices: Sequence[Choice],
    coordination: Coordination,
    calibrations: Mapping[bool, Calibration],
    config: CoordinateConfig,
    command: Sequence[str],
) -> Path:
    """Writes a folder per global batch and the list of all; returns that of the fastest.

    Args:
        folder: New or empty.
        choices: One per global batch, at least one.
        coordination: The job.
        calibrations: Fused form of the graph or not -> its measured costs.
        config: What was asked for.
        command: The same as the user wrote it.
    """
    lines: list[dict[str, object]] = []
    for choice in choices:
        row = choice.row
        variant, batch = row.variant, row.batch
        place = folder_of(folder, choice)
        place.mkdir(parents=True)
        fused = variant.cut.fused
        job = coordination.real_settings(batch, fused)
        write_settings(place, dataclasses.replace(config, job=job), command)
        save(variant.problem.graph, place / GRAPH_FILE)
        save(variant.problem.cluster, place / CLUSTER_FILE)
        save(variant.plan, place / PLAN_FILE, variant.problem)
        save_calibration(place / COSTS_FILE, calibrations[fused])
        lines.append(
            {
                "folder": place.name,
                "choice": row.name,
                "num_envs": batch.num_envs,
                "num_shards": batch.num_shards,
                "gmis": variant.problem.cluster.num_devices,
                "simulated_steps_per_s": row.steps_per_s,
                "measured_steps_per_s": None
                if choice.measured is None
                else dataclasses.asdict(choice.measured),
            }
        )
    write_atomic(folder / CHOICES_FILE, json.dumps(lines, indent=1, allow_nan=False) + "\n")
    return folder_of(folder, fastest(choices))


def folder_of(folder: Path, choice: Choice) -> Path:
    """Where the choice of a global batch lies below the output folder."""
    return folder / f"envs_{choice.row.batch.num_envs}"
