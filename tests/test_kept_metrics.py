"""Records beside a state: the next start takes over those that hold, and passes them on."""

import json

import pytest

from doppler.core.errors import FormatError
from doppler.kept_metrics import KeptMetrics, read_records
from doppler.results import METRICS_FILE
from doppler.training.config import Stage
from doppler.training.metrics import TrainingRecord


def record(update, stage=Stage.simulation):
    return TrainingRecord(
        stage=stage,
        update=update,
        num_updates=9,
        episodes=8 * update,
        best_ns=None if update == 0 else 7,
        mean_ns=5.5,
        select_entropy=0.1,
        place_entropy=0.2,
        loss=1.0,
        learning_rate=0.3,
        temperature=0.4,
        gradient_norm=0.5,
        simulations=8 * update,
    )


def start(folder, keep, updates):
    """Records that a start has passed on."""
    passed = []
    with KeptMetrics(folder, passed.append) as kept:
        kept.begin(keep)
        for update in updates:
            kept.write(record(update))
    return passed


def test_a_second_start_passes_on_what_holds_and_then_its_own(tmp_path):
    assert start(tmp_path / "new", 0, [0, 1, 2]) == [record(0), record(1), record(2)]
    assert start(tmp_path / "new", 2, [5]) == [record(0), record(1), record(5)]
    assert read_records(tmp_path / "new", 3) == [record(0), record(1), record(5)]
    assert start(tmp_path / "new", 0, [4]) == [record(4)]  # the state of before is gone


def test_records_that_are_missing_or_damaged_are_refused(tmp_path):
    with pytest.raises(FormatError, match="has made 2 records of training"):
        start(tmp_path, 2, [])
    start(tmp_path, 0, [0, 1])
    path = tmp_path / METRICS_FILE
    lines = path.read_text().splitlines()
    other = json.dumps(json.loads(lines[1]) | {"stage": "none"})
    for damaged in ("{", "[]", "{}", other):
        path.write_text(f"{lines[0]}\n{damaged}\n")
        with pytest.raises(FormatError, match="line 2 is no record of training"):
            start(tmp_path, 2, [])
        assert path.read_text().splitlines() == [lines[0], damaged]
