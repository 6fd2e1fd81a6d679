"""The report's JSON form: what is saved is what is loaded, and nothing else is accepted."""

import dataclasses
import json

import pytest

from doppler.core.errors import DopplerError, FormatError
from doppler.report.model import (
    REPORT_FILE,
    Interval,
    PlannerRow,
    Role,
    Series,
    load_report,
    save_report,
)
from doppler.report.timeline import timeline


def test_save_and_load_give_the_same_report(report, tmp_path):
    path = save_report(tmp_path, report)
    assert load_report(tmp_path) == report
    first = path.read_bytes()
    save_report(tmp_path, load_report(tmp_path))
    assert path.read_bytes() == first


def test_a_report_without_optional_parts_survives_too(report, tmp_path):
    bare = dataclasses.replace(
        report,
        ratios=(),
        curves=(),
        simulated=None,
        measured=None,
        time_tables=(),
        kind_errors=(),
        op_errors=(),
        reward=(),
        exploration=None,
        notes=(),
    )
    save_report(tmp_path, bare)
    assert load_report(tmp_path) == bare


def _at(document, *path):
    for key in path:
        document = document[key]
    return document


@pytest.mark.parametrize(
    ("path", "key", "value", "message"),
    [
        (("report",), "planer", [], r"report\.json\.report has the unknown key 'planer'; did you"),
        (("report", "planners", 0), "simulated_ns", 1.5, r"planners\[0\]\.simulated_ns is an int"),
        (("report", "planners", 0), "simulated_ns", True, "is an integer, and the document has T"),
        (
            ("report", "planners", 0),
            "role",
            "learner",
            "is one of learned, baseline, single_device",
        ),
        (("report", "planners", 0), "simulated_ns", 0, "simulated time is positive, and planner"),
        (("report",), "title", 3, r"report\.title is a string, and the document has 3"),
        (("report",), "notes", "n", r"report\.notes is a list, and the document has 'n'"),
        (("report",), "provenance", [], r"report\.provenance is an object, and"),
        (("report", "planners", 0), "seconds", "1", "seconds is a number, and"),
        ((), "schema_version", 99, "schema_version 99, and this version reads 1"),
    ],
)
def test_a_changed_document_is_refused(report, tmp_path, path, key, value, message):
    file = save_report(tmp_path, report)
    document = json.loads(file.read_text("utf-8"))
    _at(document, *path)[key] = value
    file.write_text(json.dumps(document), "utf-8")
    with pytest.raises(FormatError, match=message):
        load_report(tmp_path)


def test_a_missing_key_is_refused(report, tmp_path):
    file = save_report(tmp_path, report)
    document = json.loads(file.read_text("utf-8"))
    del document["report"]["provenance"]["seed"]
    file.write_text(json.dumps(document), "utf-8")
    with pytest.raises(FormatError, match=r"provenance lacks the key 'seed'"):
        load_report(tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FormatError, match=f"a result folder holds {REPORT_FILE}"):
        load_report(tmp_path)


def test_an_unreadable_file_is_named(tmp_path):
    (tmp_path / REPORT_FILE).write_bytes(b"\xff\xfe")
    with pytest.raises(FormatError, match="no valid JSON"):
        load_report(tmp_path)


@pytest.mark.parametrize("text", ["{", "[NaN]", '{"a": 1, "a": 2}', "[" * 100_000])
def test_damaged_text_is_refused(text, tmp_path):
    (tmp_path / REPORT_FILE).write_text(text, "utf-8")
    with pytest.raises(FormatError, match=REPORT_FILE):
        load_report(tmp_path)


def test_a_number_that_is_not_finite_is_not_written(report, tmp_path):
    row = dataclasses.replace(report.planners[0], seconds=float("inf"))
    broken = dataclasses.replace(report, planners=(row,))
    with pytest.raises(FormatError, match="numbers of a report are finite"):
        save_report(tmp_path, broken)
    assert not (tmp_path / REPORT_FILE).exists()


def test_an_interval_holds_its_value():
    with pytest.raises(FormatError, match=r"\[5, 9\] ns does not hold 4 ns"):
        Interval(value_ns=4, low_ns=5, high_ns=9, num_windows=10)


def test_a_series_has_one_y_per_x():
    with pytest.raises(FormatError, match="'s' has 2 x and 1 y"):
        Series(name="s", xs=(1.0, 2.0), ys=(1.0,))


def test_planner_names_are_unique_and_there_is_one(report):
    with pytest.raises(FormatError, match="'learned' stands twice"):
        dataclasses.replace(report, planners=report.planners[:1] * 2)
    with pytest.raises(FormatError, match="compares at least one planner or shows a measured run"):
        dataclasses.replace(report, planners=(), measured=None)


def test_gap_and_bound():
    row = PlannerRow(
        name="a",
        role=Role.baseline,
        layout="l",
        simulated_ns=120,
        measured=None,
        num_simulations=1,
        seconds=0.0,
        lower_bound_ns=100,
    )
    assert row.gap == pytest.approx(0.2)
    assert dataclasses.replace(row, lower_bound_ns=None).gap is None


def test_the_reports_bound_is_the_smallest_and_needs_all(report):
    rows = tuple(
        dataclasses.replace(row, lower_bound_ns=1000 + index)
        for index, row in enumerate(report.planners)
    )
    assert dataclasses.replace(report, planners=rows).lower_bound_ns == 1000
    rows = (dataclasses.replace(rows[0], lower_bound_ns=None), *rows[1:])
    assert dataclasses.replace(report, planners=rows).lower_bound_ns is None


def test_a_timeline_begins_at_the_end_of_the_iteration_before(job):
    problem, _, trace, _ = job
    ends = trace.iteration_ends_ns()
    shown = timeline("t", problem.graph, problem.cluster, trace, 10)
    assert shown.length_ns == ends[11] - ends[9]
    assert [end.time_ns for end in shown.iteration_ends] == [ends[10] - ends[9], shown.length_ns]
    inside = [s for s in trace.op_spans if s.end_ns > ends[9] and s.start_ns < ends[11]]
    assert sorted((b.start_ns, b.end_ns) for b in shown.bars) == sorted(
        (s.start_ns - ends[9], s.end_ns - ends[9]) for s in inside
    )
    assert timeline("t", problem.graph, problem.cluster, trace, 0, 1).bars[0].start_ns == 0


def test_a_timeline_beyond_its_trace_is_refused(job):
    problem, _, trace, _ = job
    with pytest.raises(DopplerError, match=r"\(0 to 19\), and 19 to 20 were asked for"):
        timeline("t", problem.graph, problem.cluster, trace, 19)
