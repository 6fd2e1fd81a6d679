"""The report page: one HTML file that needs no other file, no network and no server."""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from doppler.report.bars import planner_chart, time_chart
from doppler.report.charts import curve_chart, error_scatter, reward_curves
from doppler.report.gantt import gantt_charts
from doppler.report.markup import Markup, join, tag
from doppler.report.model import Fact, PlannerRow, RunReport, load_report, save_report
from doppler.report.palette import Palette, palette_of, pattern_definitions
from doppler.report.simulator_error import KindError, median_absolute_error, relative_error
from doppler.report.summary import compare, format_interval, ranked, row_time_ns, summary_sentence
from doppler.report.units import format_ns, format_number, format_percent, format_ratio

PAGE_FILE = "report.html"


def write_report(directory: Path, report: RunReport) -> Path:
    """Writes `report.json` and `report.html` into a result folder; returns the page's path."""
    save_report(directory, report)
    return _write_page(directory, report)


def rebuild_page(directory: Path) -> Path:
    """Writes `report.html` anew from the folder's `report.json`; returns the page's path.

    Raises:
        FormatError: If `report.json` is missing or damaged.
    """
    return _write_page(directory, load_report(directory))


def _write_page(directory: Path, report: RunReport) -> Path:
    path = directory / PAGE_FILE
    path.write_text(render_page(report), "utf-8")
    return path


def render_page(report: RunReport) -> str:
    """Returns the page; its content policy allows only its own style and script, by hash."""
    style = _resource("page.css")
    script = _resource("page.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        {},
        tag("meta", {"charset": "utf-8"}),
        tag("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
        tag("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        tag("meta", {"name": "color-scheme", "content": "light dark"}),
        tag("link", {"rel": "icon", "href": "data:,"}),
        tag("title", {}, report.title),
        tag("style", {}, Markup(style)),
    )
    body = tag(
        "body",
        {},
        pattern_definitions(),
        tag("main", {}, *_sections(report)),
        tag("div", {"id": "tip", "role": "tooltip", "hidden": "hidden"}),
        tag("div", {"id": "said", "class": "unseen", "aria-live": "polite"}),
        tag("script", {}, Markup(script)),
    )
    return f"<!doctype html>\n{tag('html', {'lang': 'en'}, head, body)}\n"


def _resource(name: str) -> str:
    return resources.files("doppler.report").joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256-" + base64.b64encode(digest).decode()


def _sections(report: RunReport) -> list[Markup]:
    palette = palette_of(report)
    charts = tuple(chart for chart in (report.simulated, report.measured) if chart is not None)
    sections = [_header(report)]
    if report.planners:
        tables = (_planner_table(report), _ratio_table(report))
        sections.append(_section("Planners", planner_chart(report), *tables))
    if report.curves:
        curves = [curve_chart(curve) for curve in report.curves]
        sections.append(_section("Learning", tag("div", {"class": "charts"}, *curves)))
    if charts:
        sections.append(_section("What ran when", gantt_charts(charts, palette)))
    if report.time_tables:
        divided = [time_chart(table, palette) for table in report.time_tables]
        sections.append(_section("Where the time goes", *divided))
    if report.kind_errors:
        sections.append(_section("Simulator error", _errors(report, palette)))
    if report.reward:
        curves = [curve_chart(curve) for curve in reward_curves(report.reward)]
        sections.append(_section("Reward of the RL job", tag("div", {"class": "charts"}, *curves)))
    if report.exploration is not None:
        sections.append(_section("Cost of exploring on the running job", _exploration(report)))
    sections.append(_section("Where this comes from", *_provenance(report)))
    return sections


def _section(title: str, *content: Markup) -> Markup:
    return tag("section", {}, tag("h2", {}, title), *content)


def _header(report: RunReport) -> Markup:
    figures = _figures(report) if report.planners else []
    cards = [tag("div", {}, tag("dt", {}, label), tag("dd", {}, value)) for label, value in figures]
    notes = [tag("li", {}, note) for note in report.notes]
    return tag(
        "header",
        {},
        tag("h1", {}, report.title),
        tag("p", {"class": "lead"}, summary_sentence(report)),
        tag("dl", {"class": "figures"}, *cards),
        tag(
            "div",
            {"class": "charts facts"},
            _facts(f"Job {report.job}", report.job_facts),
            _facts(f"Cluster {report.cluster}", report.cluster_facts),
        ),
        *([tag("ul", {"class": "notes"}, *notes)] if notes else []),
    )


def _figures(report: RunReport) -> list[tuple[str, str]]:
    """Returns what stands out of the comparison: (label, value)."""
    found = compare(report)
    winner = found.winner
    own = row_time_ns(winner)
    how = "measured" if found.is_measured else "simulated"
    figures = [(f"{how} {report.objective}, {winner.name}", format_ns(own))]
    others = [found.rival, None if found.single is found.rival else found.single]
    figures += [
        (f"as fast as {row.name}", format_ratio(row_time_ns(row) / own))
        for row in others
        if row is not None
    ]
    if winner.gap is not None:
        figures.append(("above the lower bound (simulated)", format_percent(winner.gap)))
    return figures


def _facts(title: str, facts: tuple[Fact, ...]) -> Markup:
    rows = [
        tag("tr", {}, tag("th", {"scope": "row"}, f.name), tag("td", {}, f.value)) for f in facts
    ]
    return tag("table", {}, tag("caption", {}, title), tag("tbody", {}, *rows))


def _table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], num_texts: int, name: str = "few"
) -> Markup:
    """Returns a table whose first `num_texts` columns are texts and the others numbers."""

    def align(column: int) -> dict[str, str]:
        return {"class": "number"} if column >= num_texts else {}

    head = [tag("th", {"scope": "col", **align(i)}, text) for i, text in enumerate(heads)]
    body = [
        tag(
            "tr",
            {},
            tag("th", {"scope": "row"}, row[0]),
            *(tag("td", align(i), text) for i, text in enumerate(row[1:], start=1)),
        )
        for row in rows
    ]
    table = tag(
        "table", {"class": name}, tag("thead", {}, tag("tr", {}, *head)), tag("tbody", {}, *body)
    )
    return tag("div", {"class": "scroll-x"}, table)


PLANNER_HEADS = (
    "planner",
    "layout",
    "simulated",
    "measured [95 % interval]",
    "simulator error",
    "gap to lower bound",
    "simulations",
    "search time (s)",
)


def planner_cells(row: PlannerRow) -> tuple[str, ...]:
    """Returns the texts of a planner's row, under `PLANNER_HEADS`."""
    measured_ns = None if row.measured is None else row.measured.value_ns
    return (
        row.name,
        row.layout,
        format_ns(row.simulated_ns),
        "not measured" if row.measured is None else format_interval(row.measured),
        _signed(relative_error(row.simulated_ns, measured_ns)),
        "not known" if row.gap is None else format_percent(row.gap),
        f"{row.num_simulations:,}",
        f"{row.seconds:.2f}",
    )


KIND_HEADS = (
    "op kind",
    "simulated (median)",
    "measured (median)",
    "error",
    "simulated spans",
    "measured spans",
)


def kind_cells(row: KindError) -> tuple[str, ...]:
    """Returns the texts of an op kind's row, under `KIND_HEADS`; the last two are counts."""
    return (
        row.kind,
        "none" if row.simulated_ns is None else format_ns(row.simulated_ns),
        "none" if row.measured_ns is None else format_ns(row.measured_ns),
        _signed(row.relative_error),
        f"{row.simulated_count:,}",
        f"{row.measured_count:,}",
    )


def _signed(error: float | None) -> str:
    return "none" if error is None else f"{100 * error:+.1f} %"


def _planner_table(report: RunReport) -> Markup:
    rows = [planner_cells(row) for row in ranked(report)]
    return _table(PLANNER_HEADS, rows, 2, "many")


def _ratio_table(report: RunReport) -> Markup:
    if not report.ratios:
        return Markup("")
    rows = [
        (row.label, f"{row.value:.3f}", f"{row.low:.3f} to {row.high:.3f}") for row in report.ratios
    ]
    return _table(("ratio of measured times", "value", "95 % interval"), rows, 1)


def _errors(report: RunReport, palette: Palette) -> Markup:
    table = _table(KIND_HEADS, [kind_cells(row) for row in report.kind_errors], 1)
    median = median_absolute_error(report.kind_errors)
    text = (
        "No kind has both times."
        if median is None
        else (
            f"Median absolute error over op kinds: {format_percent(median)}. "
            "Error is (simulated - measured) / measured, of median durations."
        )
    )
    scatter = error_scatter(report.op_errors, palette) if report.op_errors else Markup("")
    return join(tag("p", {}, text), tag("div", {"class": "charts"}, scatter, table))


def _exploration(report: RunReport) -> Markup:
    cost = report.exploration
    assert cost is not None
    facts = (
        Fact("iterations of stage III", f"{cost.iterations:,}"),
        Fact("of those on worse plans", f"{cost.worse_iterations:,}"),
        Fact("time lost on them", format_ns(cost.extra_ns)),
        Fact("time spent learning", f"{format_number(cost.learning_seconds)} s"),
        Fact("plan switches", f"{cost.plan_switches:,}"),
    )
    table = _facts("Against staying on the plan that stage III began with", facts)
    return tag("div", {"class": "narrow"}, table)


def _provenance(report: RunReport) -> list[Markup]:
    origin = report.provenance
    lines = [
        f"command      {origin.command}",
        f"seed         {origin.seed}",
        f"created      {origin.created}",
        f"revision     {origin.git_revision}",
        f"fingerprint  {origin.hardware_fingerprint}",
        "hardware",
        *(f"  {fact.name}: {fact.value}" for fact in origin.hardware),
        "versions",
        *(f"  {fact.name} {fact.value}" for fact in origin.versions),
    ]
    return [
        tag("button", {"type": "button", "data-copy": "origin"}, "Copy"),
        tag("pre", {"id": "origin", "tabindex": 0, "class": "scroll-x"}, "\n".join(lines)),
    ]
