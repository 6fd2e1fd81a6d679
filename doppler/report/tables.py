"""The same comparison as tables for a terminal."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from doppler.report.attribution import Category
from doppler.report.html import KIND_HEADS, kind_cells
from doppler.report.model import RunReport, TimeTable
from doppler.report.palette import CATEGORY_NAMES
from doppler.report.simulator_error import KindError
from doppler.report.summary import compare, format_interval, ranked, summary_sentence
from doppler.report.units import format_ns, format_percent


def planner_table(report: RunReport) -> Table:
    """Returns the planner comparison, measured rows first, the fastest in bold."""
    numbers = ("simulated", "measured [95 %]", "gap", "scored")
    table = _table(f"Planners: {report.objective}", "planner", numbers, ("layout",))
    winner = compare(report).winner
    for row in ranked(report):
        cells = (
            row.name,
            format_ns(row.simulated_ns),
            "not measured" if row.measured is None else format_interval(row.measured),
            "" if row.gap is None else format_percent(row.gap),
            f"{row.num_simulations:,}",
            row.layout,
        )
        table.add_row(*map(Text, cells), style="bold" if row is winner else None)
    bound = report.lower_bound_ns
    if bound is not None:
        table.caption = Text(f"lower bound {format_ns(bound)}; gap: above it in the simulator")
    return table


def kind_error_table(errors: Sequence[KindError]) -> Table:
    """Returns simulated against measured medians per op kind."""
    table = _table(
        "Simulator error per op kind, medians",
        KIND_HEADS[0],
        ("simulated", "measured", *KIND_HEADS[3:]),
    )
    for row in errors:
        table.add_row(*map(Text, kind_cells(row)))
    return table


def time_table(times: TimeTable) -> Table:
    """Returns where the time of each device went, by state, in percent of the window."""
    names = tuple(device.device for device in times.devices)
    table = _table(f"Where the time goes: {times.title}", "state", names)
    for category in Category:
        parts = [device.time_ns(category) / device.window_ns for device in times.devices]
        if any(parts):
            cells = [CATEGORY_NAMES[category], *(format_percent(part) for part in parts)]
            table.add_row(*map(Text, cells))
    hidden = [format_percent(device.hidden_ns / device.window_ns) for device in times.devices]
    table.add_section()
    table.add_row(*map(Text, ("of compute: hidden communication", *hidden)))
    return table


def ratio_table(report: RunReport) -> Table:
    """Returns the measured ratios with their intervals."""
    table = _table("Ratios of measured times", "ratio", ("value", "95 % interval"))
    for row in report.ratios:
        cells = (row.label, f"{row.value:.3f}", f"{row.low:.3f} to {row.high:.3f}")
        table.add_row(*map(Text, cells))
    return table


def summary(report: RunReport) -> RenderableType:
    """Returns what ends the terminal output of a run: planners, ratios, time, one sentence."""
    parts: list[RenderableType] = [planner_table(report)]
    if report.ratios:
        parts.append(ratio_table(report))
    parts += [time_table(times) for times in report.time_tables[-1:]]
    if report.kind_errors:
        parts.append(kind_error_table(report.kind_errors))
    parts.append(Text(summary_sentence(report), style="bold"))
    return Group(*parts)


def _table(title: str, names: str, numbers: Sequence[str], texts: Sequence[str] = ()) -> Table:
    """Returns a table of one column of names, then numbers, then texts that may fold."""
    table = Table(
        title=Text(title),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column(Text(names), overflow="fold", min_width=12)
    for head in numbers:
        table.add_column(Text(head), justify="right", no_wrap=True)
    for head in texts:
        table.add_column(Text(head), overflow="fold")
    return table
