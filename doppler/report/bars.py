"""Bar charts: planners with intervals and lower bound, and the divided time of each device."""

from collections.abc import Iterable

from doppler.report.attribution import Category, DeviceAttribution, Share
from doppler.report.charts import x_tick
from doppler.report.markup import Markup, percent, tag
from doppler.report.model import PlannerRow, RunReport, TimeTable
from doppler.report.palette import (
    CATEGORY_NAMES,
    Palette,
    category_fill,
    legend,
    line_swatch,
    swatch,
)
from doppler.report.scales import Tick, fitted_scale
from doppler.report.summary import compare, ranked
from doppler.report.units import TimeUnit, format_ns, format_percent, unit_for

_LABEL_PART = 0.09  # narrower parts of a bar have no room for their percentage


def planner_chart(report: RunReport) -> Markup:
    """Returns simulated and measured time per planner, fastest first, and the lower bound."""
    rows = ranked(report)
    high = max(
        [row.simulated_ns for row in rows] + [row.measured.high_ns for row in rows if row.measured]
    )
    unit = unit_for(high)
    scale = fitted_scale(1.02 * unit.value(high))
    bound = report.lower_bound_ns
    winner = compare(report).winner
    bodies: list[Markup] = []
    for row in rows:
        name = [row.name, tag("span", {"class": "tag"}, "fastest")] if row is winner else [row.name]
        bodies.append(tag("div", {"class": "bar-name"}, *name))
        bodies.append(_planner_row(row, bound, unit, scale.high))
    axis = [x_tick(tick) for tick in scale.ticks]
    bodies.append(tag("div", {"class": "bar-name"}, ""))
    bodies.append(tag("svg", {"class": "bar-axis", "aria-hidden": "true"}, *axis))
    entries = [
        swatch("var(--simulated)", "simulated"),
        swatch("var(--measured)", "measured, whisker: 95 % interval"),
    ]
    if bound is not None:
        entries.append(line_swatch("bound", f"lower bound {format_ns(bound)}"))
    return tag(
        "figure",
        {"class": "chart wide"},
        legend(*entries),
        tag("div", {"class": "bars"}, *bodies),
        tag("p", {"class": "axis x"}, f"{report.objective} ({unit.symbol}), less is better"),
    )


def _planner_row(row: PlannerRow, bound: int | None, unit: TimeUnit, high: float) -> Markup:
    def part(time_ns: int) -> str:
        return percent(unit.value(time_ns) / high)

    said = f"{row.name}: simulated {format_ns(row.simulated_ns)}"
    shapes = [_rect(part(row.simulated_ns), 3, 13, "var(--simulated)")]
    if row.measured is not None:
        measured = row.measured
        said += (
            f", measured {format_ns(measured.value_ns)}, 95 % interval "
            f"{format_ns(measured.low_ns)} to {format_ns(measured.high_ns)}"
        )
        shapes.append(_rect(part(measured.value_ns), 18, 13, "var(--measured)"))
        low, top = part(measured.low_ns), part(measured.high_ns)
        for x1, x2, y1, y2 in ((low, top, 24, 24), (low, low, 19, 30), (top, top, 19, 30)):
            shapes.append(tag("line", {"class": "whisker", "x1": x1, "x2": x2, "y1": y1, "y2": y2}))
    if bound is not None:
        x = part(bound)
        shapes.append(tag("line", {"class": "bound", "x1": x, "x2": x, "y1": 0, "y2": "100%"}))
    return tag("svg", {"class": "bar-row", "role": "img", "aria-label": said}, *shapes)


def _rect(width: str, y: int, height: int, fill: str) -> Markup:
    shape: dict[str, str | float] = {
        "x": 0,
        "y": y,
        "width": width,
        "height": height,
        "fill": fill,
        "class": "edge",
    }
    return tag("rect", shape)


def time_chart(table: TimeTable, palette: Palette) -> Markup:
    """Returns one stacked bar per device, with the hidden communication under its compute."""
    bodies: list[Markup] = []
    for device in table.devices:
        bodies.append(tag("div", {"class": "bar-name", "title": device.device}, device.device))
        bodies.append(_stack(device, palette))
    ticks = [x_tick(Tick(part / 4, f"{25 * part} %")) for part in range(5)]
    bodies.append(tag("div", {"class": "bar-name"}, ""))
    bodies.append(tag("svg", {"class": "bar-axis", "aria-hidden": "true"}, *ticks))
    window_ns = table.devices[0].window_ns if table.devices else 0
    caption = f"{table.title}: {table.iterations} iterations, {format_ns(window_ns)}"
    return tag(
        "figure",
        {"class": "chart wide"},
        tag("figcaption", {}, caption),
        legend(*_time_entries(table, palette)),
        tag("div", {"class": "bars"}, *bodies),
        tag("p", {"class": "axis x"}, "part of the window's time (%)"),
        tag(
            "details",
            {},
            tag("summary", {}, "The same as a table"),
            tag("div", {"class": "scroll-x"}, _time_rows(table)),
        ),
    )


def _time_entries(table: TimeTable, palette: Palette) -> list[Markup]:
    shares = [share for device in table.devices for share in device.shares]
    computed = {share.label for share in shares if share.category is Category.compute}
    entries = [swatch(palette.paint(k).fill, k) for k in palette.kinds if k in computed]
    entries += [
        swatch(category_fill(category), CATEGORY_NAMES[category])
        for category in Category
        if category is not Category.compute and any(s.category is category for s in shares)
    ]
    if any(device.hidden_ns for device in table.devices):
        entries.append(swatch("var(--hidden)", "hidden communication (thin bar, during compute)"))
    return entries


def _stack(device: DeviceAttribution, palette: Palette) -> Markup:
    shapes: list[Markup] = []
    position = 0
    for share in device.shares:
        part = share.time_ns / device.window_ns
        begin = position / device.window_ns
        is_compute = share.category is Category.compute
        paint = palette.paint(share.label) if is_compute else None
        text = f"{device.device} · {share_name(share)} · {format_ns(share.time_ns)} · "
        shape: dict[str, str | float] = {
            "class": "bar edge",
            "x": percent(begin),
            "y": 2,
            "width": percent(part),
            "height": 24,
            "fill": paint.fill if paint is not None else category_fill(share.category),
            "data-tip": text + format_percent(part),
        }
        shapes.append(tag("rect", shape))
        if part >= _LABEL_PART:
            name = f"in-bar {paint.text_class if paint is not None else 'on-state'}"
            place: dict[str, str | float] = {"class": name, "x": percent(begin + part / 2), "y": 18}
            shapes.append(tag("text", place, f"{100 * part:.0f} %"))
        position += share.time_ns
    if device.hidden_ns:
        shapes.append(_rect(percent(device.hidden_ns / device.window_ns), 28, 5, "var(--hidden)"))
    said = ", ".join(
        f"{share_name(share)} {format_percent(share.time_ns / device.window_ns)}"
        for share in device.shares
    )
    attributes = {"class": "bar-row", "role": "img", "aria-label": f"{device.device}: {said}"}
    return tag("svg", attributes, *shapes)


def share_name(share: Share) -> str:
    """Returns how a share is named in tables: the state and what it is about."""
    name = CATEGORY_NAMES[share.category]
    return f"{name}: {share.label}" if share.label else name


def _time_rows(table: TimeTable) -> Markup:
    names: list[tuple[Category, str]] = sorted(
        {(share.category, share.label) for device in table.devices for share in device.shares},
        key=lambda key: (list(Category).index(key[0]), key[1]),
    )
    rows = [
        _time_row(
            share_name(Share(category=category, label=label, time_ns=0)),
            [
                sum(s.time_ns for s in device.shares if (s.category, s.label) == (category, label))
                for device in table.devices
            ],
            table.devices,
        )
        for category, label in names
    ]
    hidden = [device.hidden_ns for device in table.devices]
    rows.append(_time_row("of compute: hidden communication (in no sum)", hidden, table.devices))
    rows.append(_time_row("sum", [device.window_ns for device in table.devices], table.devices))
    head = [tag("th", {"scope": "col"}, "state")]
    head += [tag("th", {"scope": "col", "class": "number"}, d.device) for d in table.devices]
    return tag(
        "table",
        {"class": "states"},
        tag("thead", {}, tag("tr", {}, *head)),
        tag("tbody", {}, *rows),
    )


def _time_row(name: str, times: Iterable[int], devices: tuple[DeviceAttribution, ...]) -> Markup:
    cells = [
        tag(
            "td",
            {"class": "number"},
            f"{format_ns(time_ns)} ({format_percent(time_ns / device.window_ns)})"
            if time_ns
            else "0",
        )
        for time_ns, device in zip(times, devices, strict=True)
    ]
    return tag("tr", {}, tag("th", {"scope": "row"}, name), *cells)
