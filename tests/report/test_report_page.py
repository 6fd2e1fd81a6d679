"""The page: complete, escaped, self-contained, with numbers that are those of the report."""

import base64
import dataclasses
import hashlib
import io
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from doppler.core.errors import FormatError
from doppler.report import gantt
from doppler.report.charts import MAX_POINTS, thin
from doppler.report.html import rebuild_page, render_page, write_report
from doppler.report.markup import Markup, escape, tag
from doppler.report.model import Fact, Interval, Role, Series
from doppler.report.palette import Palette, palette_of
from doppler.report.scales import fitted_scale, linear_scale, log_scale
from doppler.report.summary import compare, ranked, summary_sentence
from doppler.report.tables import summary
from doppler.report.units import format_ns, format_number, unit_for

VOID = {"meta", "link", "br"}


class _Checker(HTMLParser):
    """Checks nesting and collects elements, ids and text."""

    def __init__(self):
        super().__init__()
        self.stack, self.elements, self.texts = [], [], []

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))
        if name not in VOID:
            self.stack.append(name)

    def handle_endtag(self, name):
        assert self.stack.pop() == name

    def handle_data(self, data):
        self.texts.append(data)


def _parsed(text):
    checker = _Checker()
    checker.feed(text)
    assert not checker.stack
    return checker


def test_every_section_and_every_bar_is_there(report):
    page = _parsed(render_page(report))
    text = " ".join(page.texts)
    for heading in (
        "Planners",
        "Learning",
        "What ran when",
        "Where the time goes",
        "Simulator error",
        "Reward of the RL job",
        "Cost of exploring",
        "Where this comes from",
    ):
        assert heading in text
    for row in report.planners:
        assert row.name in text
    named = [attributes for _, attributes in page.elements if "data-name" in attributes]
    assert len(named) == len(report.simulated.bars) + len(report.measured.bars)
    assert report.provenance.command in text
    assert summary_sentence(report) in text


def test_parts_that_a_run_lacks_are_left_out(report):
    bare = dataclasses.replace(
        report,
        curves=(),
        simulated=None,
        measured=None,
        time_tables=(),
        kind_errors=(),
        op_errors=(),
        reward=(),
        exploration=None,
        ratios=(),
    )
    text = " ".join(_parsed(render_page(bare)).texts)
    assert "What ran when" not in text
    assert "Simulator error" not in text
    assert "Planners" in text


def test_user_text_cannot_become_markup(report):
    evil = "<img src=x onerror=alert(1)>\"'&</script>"
    bar = dataclasses.replace(report.measured.bars[0], name=evil, kind=evil)
    hostile = dataclasses.replace(
        report,
        title=evil,
        job=evil,
        job_facts=(Fact(evil, evil),),
        notes=(evil,),
        planners=(dataclasses.replace(report.planners[0], name=evil, layout=evil),),
        curves=(dataclasses.replace(report.curves[0], title=evil, x_label=evil),),
        measured=dataclasses.replace(report.measured, title=evil, bars=(bar,)),
        provenance=dataclasses.replace(report.provenance, command=evil),
    )
    page = render_page(hostile)
    assert "<img" not in page
    assert page.count("</script>") == 1
    checked = _parsed(page)
    assert {name for name, _ in checked.elements}.isdisjoint({"img", "iframe", "object"})
    assert not any(key.startswith("on") for _, attrs in checked.elements for key in attrs)
    assert evil in checked.texts


def test_the_page_needs_nothing_from_outside(report):
    page = render_page(report)
    checked = _parsed(page)
    for name, attributes in checked.elements:
        for key in ("src", "href", "data", "action", "xlink:href", "style"):
            assert attributes.get(key, "data:,") == "data:,", (name, key)
    assert "@import" not in page
    outside = set(re.findall(r"https?://[^\"'\s<]+", page))
    assert outside == {"http://www.w3.org/2000/svg"}  # a name, never fetched


def test_the_policy_allows_exactly_this_style_and_this_script(report):
    page = render_page(report)
    policy = next(
        attributes["content"]
        for name, attributes in _parsed(page).elements
        if name == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for name in ("style", "script"):
        text = re.search(rf"<{name}>(.*?)</{name}>", page, re.DOTALL).group(1)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy


def test_every_pattern_that_is_used_is_defined(report):
    names = tuple(f"kind{index}" for index in range(20))
    bars = tuple(
        dataclasses.replace(report.measured.bars[0], kind=name, name=name) for name in names
    )
    page = render_page(
        dataclasses.replace(report, measured=dataclasses.replace(report.measured, bars=bars))
    )
    ids = {attributes.get("id") for _, attributes in _parsed(page).elements}
    used = set(re.findall(r"url\(#([^)]+)\)", page))
    assert len(used) >= 12
    assert used <= ids
    palette = Palette(names)
    assert len({palette.paint(name) for name in names[:18]}) == 18


def test_a_result_folder_rebuilds_its_page(report, tmp_path):
    path = write_report(tmp_path, report)
    first = path.read_text("utf-8")
    path.unlink()
    assert rebuild_page(tmp_path).read_text("utf-8") == first
    with pytest.raises(FormatError, match="a result folder holds"):
        rebuild_page(tmp_path / "none")


def test_a_huge_trace_is_thinned_and_says_so(report, monkeypatch):
    monkeypatch.setattr(gantt, "MAX_BARS", 10)
    page = gantt.gantt_charts((report.simulated,), palette_of(report))
    total = len(report.simulated.bars)
    assert f"the 10 longest of {total} ops are drawn" in page
    assert page.count("data-name=") == 10


def test_both_gantt_charts_share_one_scale(report):
    page = gantt.gantt_charts((report.simulated, report.measured), palette_of(report))
    longest = max(report.simulated.length_ns, report.measured.length_ns)
    bar = max(report.simulated.bars, key=lambda one: one.end_ns - one.start_ns)
    part = 100 * (bar.end_ns - bar.start_ns) / longest
    assert f'width="{part:.4f}'.rstrip("0") in page


def test_the_winner_is_measured_where_anything_is(report):
    found = compare(report)
    assert (found.winner.name, found.rival.name, found.single.name) == (
        "learned",
        "annealing",
        "single_device",
    )
    assert found.is_measured
    assert ranked(report)[-1].measured is None
    unmeasured = dataclasses.replace(
        report, planners=tuple(dataclasses.replace(r, measured=None) for r in report.planners)
    )
    assert not compare(unmeasured).is_measured
    assert "a simulated period of" in summary_sentence(unmeasured)


def test_a_baseline_that_wins_is_said_to_win(report):
    rows = tuple(
        dataclasses.replace(row, role=Role.baseline if row.role is Role.learned else Role.learned)
        for row in report.planners[:2]
    )
    text = summary_sentence(dataclasses.replace(report, planners=rows))
    assert "the best learned plan (annealing)" in text


def _timed(row, value_ns):
    interval = Interval(
        value_ns=value_ns, low_ns=value_ns - 1, high_ns=value_ns + 1, num_windows=10
    )
    return dataclasses.replace(row, measured=interval)


def test_ratios_of_the_sentence_by_hand(report):
    learned, annealing, *_, single = report.planners
    rows = (_timed(learned, 100), _timed(annealing, 125), _timed(single, 250))
    text = summary_sentence(dataclasses.replace(report, planners=rows))
    assert "1.25x as fast as the best baseline (annealing) and 2.50x as fast as a single" in text
    assert "overlap" not in text
    close = (_timed(learned, 100), _timed(annealing, 102))
    assert "overlap" in summary_sentence(dataclasses.replace(report, planners=close))
    alone = (_timed(learned, 100),)
    assert "as fast as" not in summary_sentence(dataclasses.replace(report, planners=alone))


def test_terminal_tables_fit_80_columns_and_name_every_planner(report):
    stream = io.StringIO()
    Console(file=stream, width=80).print(summary(report))
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    for row in report.planners:
        assert row.name in text
    assert "[95 %]" in text
    assert "optimizer_step" in text


def test_markup_of_users_stays_text_in_the_terminal(report):
    rows = (dataclasses.replace(report.planners[0], name="[red]x[/red]"),)
    stream = io.StringIO()
    Console(file=stream, width=120).print(summary(dataclasses.replace(report, planners=rows)))
    assert "[red]x[/red]" in stream.getvalue()


@given(text=st.text(max_size=40))
def test_escaped_text_comes_back_as_it_was(text):
    parser = HTMLParser(convert_charrefs=True)
    seen = []
    parser.handle_data = seen.append
    parser.feed(f"<p>{escape(text)}</p>")
    assert "".join(seen) == text
    assert escape(Markup("<b>")) == "<b>"
    assert tag("a", {"x": text}).count('"') == 2


@given(
    ys=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=3000),
)
def test_thinned_series_keep_ends_and_extremes(ys):
    series = Series(name="s", xs=tuple(map(float, range(len(ys)))), ys=tuple(ys))
    thinner = thin(series)
    assert len(thinner.xs) <= MAX_POINTS + 2
    assert (thinner.xs[0], thinner.xs[-1]) == (0.0, len(ys) - 1.0)
    assert (min(thinner.ys), max(thinner.ys)) == (min(ys), max(ys))
    assert set(zip(thinner.xs, thinner.ys, strict=True)) <= set(
        zip(series.xs, series.ys, strict=True)
    )


@given(low=st.floats(-1e9, 1e9), length=st.floats(0, 1e9))
def test_linear_scales_hold_their_values_and_few_ticks(low, length):
    scale = linear_scale(low, low + length)
    assert -1e-6 <= scale.position(low) <= scale.position(low + length) <= 1 + 1e-6
    assert 2 <= len(scale.ticks) <= 9
    assert all(0 <= tick.position <= 1 for tick in scale.ticks)


@given(high=st.floats(1e-3, 1e12))
def test_fitted_scales_begin_at_zero_and_end_where_asked(high):
    scale = fitted_scale(high)
    assert scale.position(high) == 1.0
    assert scale.ticks[0].position == 0
    assert all(tick.position <= 1 + 1e-9 for tick in scale.ticks)


@given(low=st.floats(1e-3, 1e9), factor=st.floats(1, 1e6))
def test_log_scales_hold_their_values(low, factor):
    scale = log_scale(low, low * factor)
    assert 0 < scale.position(low) <= scale.position(low * factor) < 1


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, "0 ns"),
        (7, "7 ns"),
        (1_234, "1.23 µs"),
        (12_300_000, "12.3 ms"),
        (6_100_000, "6.10 ms"),
        (456_000_000, "456 ms"),
        (75_000_000_000, "75.0 s"),
        (-5_000, "-5.00 µs"),
    ],
)
def test_times_have_three_digits_and_a_unit(time_ns, text):
    assert format_ns(time_ns) == text


def test_numbers_are_short():
    assert [format_number(value) for value in (0, 0.1234, 12.34, 1234.5, 5e6, 2e9, 1e-7)] == [
        "0",
        "0.123",
        "12.3",
        "1,234",
        "5M",
        "2G",
        "1.00e-07",
    ]
    assert unit_for(999).symbol == "ns"
