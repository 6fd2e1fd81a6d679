"""Records of training beside the state of a run, for a second start that goes on with it.

Every start has a result folder of its own. So that none of them holds a part of a curve only, the
records are kept where the state is, too, and the next start takes those that hold over.
"""

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from doppler.core.errors import FormatError
from doppler.metrics_log import MetricsLog
from doppler.results import METRICS_FILE
from doppler.training.config import Stage
from doppler.training.metrics import OnRecord, TrainingRecord


class KeptMetrics:
    """Passes records on and keeps them in the folder of a state.

    Args:
        folder: The state's.
        on_record: Gets every record, those of earlier starts first.
    """

    def __init__(self, folder: Path, on_record: OnRecord) -> None:
        self._folder, self._on_record = folder, on_record
        self._log = MetricsLog(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._log.close()

    def begin(self, keep: int) -> None:
        """Passes on the first `keep` records of earlier starts; what they wrote after is removed.

        Raises:
            FormatError: If they are not all there.
        """
        kept = read_records(self._folder, keep)
        self._log.begin(keep)
        for record in kept:
            self._on_record(record)

    def write(self, record: TrainingRecord) -> None:
        """Keeps a new record and passes it on."""
        self._log.write(record)
        self._on_record(record)


def read_records(folder: Path, count: int) -> list[TrainingRecord]:
    """Returns the first records of training in a folder's metrics.

    Raises:
        FormatError: If there are fewer than `count`, or one is damaged.
    """
    path = folder / METRICS_FILE
    lines = path.read_text("utf-8").splitlines()[:count] if path.exists() else []
    if len(lines) < count:
        raise FormatError(
            f"the state in {folder} has made {count} records of training, and {path} holds "
            f"{len(lines)}: name another folder"
        )
    return [_record(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]


def _record(line: str, where: str) -> TrainingRecord:
    try:
        values: dict[str, Any] = json.loads(line)
        del values["record"]
        return TrainingRecord(**{**values, "stage": Stage[values["stage"]]})
    except (ValueError, TypeError, KeyError) as error:
        raise FormatError(f"{where} is no record of training: {error!r}") from error
