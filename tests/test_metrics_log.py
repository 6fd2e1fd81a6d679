"""Metrics are on disk while a command runs, and go on where a second start goes on."""

import json
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from doppler.core.errors import ConfigError
from doppler.metrics_log import TENSORBOARD_FOLDER, MetricsLog
from doppler.results import METRICS_FILE
from doppler.training.config import Stage
from doppler.training.metrics import TrainingRecord


def record(update, loss=1.0):
    return TrainingRecord(
        stage=Stage.simulation,
        update=update,
        num_updates=9,
        episodes=8 * update,
        best_ns=None,
        mean_ns=5.5,
        select_entropy=0.1,
        place_entropy=0.2,
        loss=loss,
        learning_rate=0.3,
        temperature=0.4,
        gradient_norm=0.5,
        simulations=8 * update,
    )


def lines(folder):
    return [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]


def scalars(folder, tag):
    events = EventAccumulator(str(folder / TENSORBOARD_FOLDER))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_a_record_is_on_disk_before_the_next_one(tmp_path):
    log = MetricsLog(tmp_path / "new")
    log.begin()
    for update in range(3):
        log.write(record(update), arm="few_shot", seed=7)
        written = lines(tmp_path / "new")
        assert [line["update"] for line in written] == list(range(update + 1))
    assert written[0]["record"] == "TrainingRecord"
    assert written[0]["stage"] == "simulation"
    assert written[0]["best_ns"] is None
    assert (written[0]["arm"], written[0]["seed"]) == ("few_shot", 7)
    assert not (tmp_path / "new" / TENSORBOARD_FOLDER).exists()


def test_a_second_start_keeps_what_holds_and_writes_the_rest_anew(tmp_path):
    for keep, losses in ((0, [1.0, 2.0, 3.0]), (2, [4.0])):
        with MetricsLog(tmp_path, tensorboard=True) as log:
            log.begin(keep)
            for loss in losses:
                log.write(record(0, loss))
    assert [line["loss"] for line in lines(tmp_path)] == [1.0, 2.0, 4.0]
    assert scalars(tmp_path, "simulation/loss") == [(0, 1.0), (1, 2.0), (2, 4.0)]


def test_every_number_of_a_record_is_a_curve_of_its_own(tmp_path):
    with MetricsLog(tmp_path, tensorboard=True) as log:
        log.begin()
        log.write(record(3), arm="scratch")
    assert scalars(tmp_path, "arm_scratch/simulation/update") == [(0, 3.0)]
    assert scalars(tmp_path, "arm_scratch/simulation/mean_ns") == [(0, 5.5)]
    with pytest.raises(KeyError):
        scalars(tmp_path, "arm_scratch/simulation/best_ns")  # there was none


def test_without_the_package_the_sentence_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"pip install 'doppler-placement\[tensorboard\]'"):
        MetricsLog(tmp_path, tensorboard=True)
