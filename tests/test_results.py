"""Result folders: names of their own, and metrics that a resumed run can go on with."""

import json
from dataclasses import dataclass

import pytest

from doppler.core.errors import FormatError
from doppler.results import METRICS_FILE, append_metrics, forget_metrics, make_result_folder


@dataclass(frozen=True)
class Window:
    iteration: int
    reward: float = 0.0


def iterations_in(folder):
    return [
        json.loads(line)["iteration"] for line in (folder / METRICS_FILE).read_text().splitlines()
    ]


def test_folders_of_one_second_have_names_of_their_own(tmp_path, monkeypatch):
    """Also where another process makes the folder after one has looked."""
    folders = {make_result_folder(tmp_path / "results", "a/b", "cpu") for _ in range(5)}
    assert len(folders) == 5
    monkeypatch.setattr("pathlib.Path.exists", lambda *_, **__: False)
    assert make_result_folder(tmp_path / "results", "a/b", "cpu") not in folders


def test_metrics_from_where_a_run_goes_on_are_forgotten(tmp_path):
    forget_metrics(tmp_path, 3)  # there is no file yet
    for iteration in range(6):
        append_metrics(tmp_path, Window(iteration))
    forget_metrics(tmp_path, 3)
    assert iterations_in(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize("cut", ['{"record": "Wind', '{"iteration": 1}', "{"])
def test_a_line_that_a_killed_run_cut_short_does_not_stop_the_next(tmp_path, cut):
    """Without its end a line is not whole, even where it could be read."""
    append_metrics(tmp_path, Window(0))
    with (tmp_path / METRICS_FILE).open("a") as file:
        file.write(cut)
    forget_metrics(tmp_path, 3)
    append_metrics(tmp_path, Window(3))
    assert iterations_in(tmp_path) == [0, 3]


@pytest.mark.parametrize("line", ["{", "5", '{"iteration": "x"}', '{"iteration": null}'])
def test_a_damaged_line_is_named(tmp_path, line):
    append_metrics(tmp_path, Window(0))
    with (tmp_path / METRICS_FILE).open("a") as file:
        file.write(line + "\n")
    append_metrics(tmp_path, Window(1))
    with pytest.raises(FormatError, match=r"metrics\.jsonl, line 2 is no record of a run"):
        forget_metrics(tmp_path, 3)
