"""Metrics while a command runs: a line of JSON per record, and TensorBoard where it is asked for.

A line is on disk before the next update begins, so a command that is killed leaves its curve.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from doppler.core.errors import ConfigError
from doppler.core.serialize import write_atomic
from doppler.results import METRICS_FILE, append_metrics

TENSORBOARD_FOLDER = "tensorboard"


class ScalarWriter(Protocol):
    """What TensorBoard's writer is asked for."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Notes one number."""
        ...

    def close(self) -> None:
        """Ends the file."""
        ...


class MetricsLog:
    """Writes the records of one command, one after the other, after `begin`.

    Args:
        folder: Gets `metrics.jsonl`, and `tensorboard/` where it is asked for.
        tensorboard: Write TensorBoard's files, too.

    Raises:
        ConfigError: If TensorBoard is asked for and not installed.
    """

    def __init__(self, folder: Path, *, tensorboard: bool = False) -> None:
        self._folder, self._count = folder, 0
        self._open = tensorboard_writer() if tensorboard else None
        self._writer: ScalarWriter | None = None

    def begin(self, keep: int = 0) -> None:
        """Opens the files; of an earlier start there, the first `keep` records hold."""
        self._folder.mkdir(parents=True, exist_ok=True)
        _keep_lines(self._folder / METRICS_FILE, keep)
        self._count = keep
        if self._open is not None:
            self._writer = self._open(self._folder / TENSORBOARD_FOLDER, keep)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def write(self, record: Any, **labels: str | int) -> None:
        """Writes a typed record, and labels that say what it belongs to."""
        append_metrics(self._folder, record, labels)
        if self._writer is not None:
            write_scalars(self._writer, record, labels, self._count)
        self._count += 1

    def close(self) -> None:
        """Ends TensorBoard's file."""
        if self._writer is not None:
            self._writer.close()


def write_scalars(
    writer: ScalarWriter, record: Any, labels: Mapping[str, str | int], step: int
) -> None:
    """Writes every number of a record under its labels, stage and name.

    Args:
        writer: Where to.
        record: A dataclass.
        labels: What it belongs to.
        step: Number of the record in its command, from 0.
    """
    values = asdict(record)
    groups = [f"{name}_{value}" for name, value in labels.items()]
    groups += [value.name for value in values.values() if isinstance(value, Enum)]
    prefix = "/".join(groups) or type(record).__name__
    for name, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            writer.add_scalar(f"{prefix}/{name}", value, step)


def tensorboard_writer() -> Callable[[Path, int], ScalarWriter]:
    """Returns what opens TensorBoard's file in a folder, where steps from a number on are new.

    Raises:
        ConfigError: If TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an optional package
    except ImportError as error:
        raise ConfigError(
            "TensorBoard's files need the package tensorboard: "
            f"pip install 'doppler-placement[tensorboard]' ({error})"
        ) from error

    def open_writer(folder: Path, keep: int) -> ScalarWriter:
        writer: ScalarWriter = SummaryWriter(  # type: ignore[no-untyped-call]
            str(folder), purge_step=keep or None
        )
        return writer

    return open_writer


def _keep_lines(path: Path, count: int) -> None:
    """Removes the lines after the first `count`."""
    if not path.exists():
        return
    lines = path.read_text("utf-8").splitlines(keepends=True)
    if len(lines) > count:
        write_atomic(path, "".join(lines[:count]))
