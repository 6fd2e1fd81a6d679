"""What user-written GMIs did when: spans, timeline, division of time, the page of the report."""

import numpy as np
import pytest
from test_gmi import cluster_of, summers

from doppler.cli import main
from doppler.core.errors import ConfigError, DopplerError, KernelError
from doppler.gmi_report import write_gmi_report
from doppler.gmi_trace import MAX_BARS, GMITrace
from doppler.report.attribution import Category
from doppler.report.model import load_report
from executor.gmi import spans
from executor.gmi.communication import Communication, GMISpec, Weights
from executor.gmi.spans import COLLECTIVE, FIRST_LINK, RUN, TRAIN, SpanLog

pytestmark = pytest.mark.timeout(120)


def trace_of(*rows_per_gmi, dropped=None):
    """Returns a trace of GMIs with one link, from rows of (kind, call, start, end)."""
    cluster = cluster_of(len(rows_per_gmi))
    gmis = tuple(
        GMISpec(gmi_id=i, role="trainer", device=d, source="m", class_name="C")
        for i, d in enumerate(cluster.devices)
    )
    link = Weights(name="policy", publisher=0, readers=(1,), num_bytes=8)
    return GMITrace(
        cluster=cluster,
        gmis=gmis,
        communication=Communication(num_gmis=len(gmis), links=(link,)),
        spans=tuple(np.array(rows, np.int64).reshape(-1, 4) for rows in rows_per_gmi),
        num_dropped=dropped or (0,) * len(gmis),
    )


BY_HAND = trace_of(
    # run [100, 200) holds train [110, 150) and [150, 190); the first holds collective [120, 140),
    # which holds the link [125, 135).
    [
        (FIRST_LINK, 0, 125, 135),
        (COLLECTIVE, 0, 120, 140),
        (TRAIN, 0, 110, 150),
        (TRAIN, 1, 150, 190),
        (RUN, 0, 100, 200),
    ],
    [(TRAIN, 0, 130, 160), (RUN, 0, 120, 220)],
)


def test_every_nanosecond_of_a_gmi_has_one_name():
    first, second = BY_HAND.time_table().devices
    assert first.window_ns == second.window_ns == 120  # 100 to 220
    assert [(s.category, s.label, s.time_ns) for s in first.shares] == [
        (Category.compute, "train", 60),  # 80 without collective
        (Category.compute, "run", 20),
        (Category.compute, "collective", 10),
        (Category.exposed, "policy", 10),
        (Category.no_work, "", 20),
    ]
    assert [(s.category, s.label, s.time_ns) for s in second.shares] == [
        (Category.compute, "run", 70),
        (Category.compute, "train", 30),
        (Category.no_work, "", 20),
    ]
    assert BY_HAND.num_iterations == 2


def test_what_is_nested_lies_below_what_holds_it():
    chart = BY_HAND.timeline()
    bars = {(bar.device, bar.kind, bar.iteration): bar for bar in chart.bars}
    assert {k: (b.stream, b.start_ns, b.end_ns) for k, b in bars.items()} == {
        (0, "run", 0): (0, 0, 100),
        (0, "train", 0): (1, 10, 50),
        (0, "train", 1): (1, 50, 90),
        (0, "collective", 0): (2, 20, 40),
        (0, "policy", 0): (3, 25, 35),
        (1, "run", 0): (0, 20, 120),
        (1, "train", 0): (1, 30, 60),
    }
    assert chart.num_streams == (4, 2)
    assert chart.length_ns == 120
    # Step 0 ends when both have ended it; only GMI 0 takes step 1.
    assert [(e.iteration, e.time_ns) for e in chart.iteration_ends] == [(0, 60), (1, 90)]


def test_of_a_long_run_the_end_is_shown():
    rows = [(TRAIN, i, 10 * i, 10 * i + 5) for i in range(MAX_BARS + 50)]
    chart = trace_of(rows).timeline()
    assert len(chart.bars) == MAX_BARS
    assert min(bar.start_ns for bar in chart.bars) == 0
    assert chart.bars[-1].iteration == MAX_BARS + 49
    assert chart.iteration_ends[0].iteration == 50
    # `run` holds them all: the chart still begins with the first span that it shows.
    nested = trace_of([*rows, (RUN, 0, 0, rows[-1][3])]).timeline()
    assert nested.length_ns == chart.length_ns - 10
    assert max(bar.end_ns - bar.start_ns for bar in nested.bars) == nested.length_ns


def test_a_gmi_without_spans_is_refused():
    with pytest.raises(DopplerError, match=r"GMI 1 .* has none"):
        trace_of([(RUN, 0, 0, 1)], [])


def test_a_log_keeps_the_newest_spans_and_those_that_raise(monkeypatch):
    monkeypatch.setattr(spans, "MAX_SPANS", 3)
    log = SpanLog()
    for _ in range(4):
        with log.span(TRAIN):
            pass

    def fails():
        raise ArithmeticError("the loss is NaN")

    with pytest.raises(ArithmeticError):
        log.wrapped(COLLECTIVE, fails)()
    rows = log.array()
    assert rows[:, :2].tolist() == [[TRAIN, 2], [TRAIN, 3], [COLLECTIVE, 0]]
    assert log.num_dropped == 2
    assert (rows[:, 3] >= rows[:, 2]).all()
    assert SpanLog().array().shape == (0, 4)


def test_a_run_of_classes_is_traced_and_reported(tmp_path, capsys):
    manager = summers(2)
    with pytest.raises(ConfigError, match="ended well, and none has"):
        write_gmi_report(manager, tmp_path)
    manager.run(num_episodes=5, num_steps=1)
    trace = manager.trace
    assert [rows[:, 0].tolist().count(COLLECTIVE) for rows in trace.spans] == [5, 5]
    assert [rows[:, 0].tolist().count(FIRST_LINK) for rows in trace.spans] == [5, 5]
    assert [rows[:, 0].tolist().count(RUN) for rows in trace.spans] == [1, 1]
    for rows in trace.spans:
        (run,) = rows[rows[:, 0] == RUN]
        assert (rows[:, 2] >= run[2]).all()
        assert (rows[:, 3] <= run[3]).all()
    # The all-reduce ends for nobody before the last has begun it: one clock, true spans.
    calls = [rows[rows[:, 0] == FIRST_LINK] for rows in trace.spans]
    for first, second in zip(*calls, strict=True):
        assert min(first[3], second[3]) >= max(first[2], second[2])
    page = write_gmi_report(manager, tmp_path / "run", "two trainers")
    text = page.read_text("utf-8")
    for word in ("two trainers", "trainer 0: collective", "gradient", "no plans were compared"):
        assert word in text
    report = load_report(tmp_path / "run")
    assert report.planners == ()
    assert len(report.time_tables[0].devices) == 2
    page.unlink()
    assert main(["report", str(tmp_path / "run")]) == 0
    assert page.read_text("utf-8") == text
    capsys.readouterr()


def test_a_run_that_fails_has_no_trace():
    manager = summers(2, fails=1, at=1, how="raised")
    with pytest.raises(KernelError):
        manager.run(num_episodes=3, num_steps=1)
    assert manager.trace is None


def test_dropped_spans_are_told():
    from doppler.gmi_report import gmi_report
    from executor.probe import probe

    trace = trace_of([(RUN, 0, 0, 9)], [(RUN, 0, 0, 9)], dropped=(0, 12345))
    notes = gmi_report(trace, "t", 0, probe()).notes
    assert notes[0].endswith("its 12,345 oldest spans were too many to keep.")
    assert len(notes) == 2
