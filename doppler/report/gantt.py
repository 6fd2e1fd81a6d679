"""The simulated and the measured Gantt chart, under one another on one time scale.

Positions are percent of the chart's width, so that zooming only widens the SVG; `page.js` keeps
the charts' zoom and scroll position equal, and works out ticks and the names that fit into bars.
"""

from doppler.report.markup import Markup, percent, tag
from doppler.report.palette import Palette, legend, swatch
from doppler.report.scales import fitted_scale
from doppler.report.timeline import Bar, Move, Timeline
from doppler.report.units import format_ns, format_number, unit_for

STREAM_HEIGHT = 30
MOVE_HEIGHT = 12
HEAD_HEIGHT = 20
MAX_BARS = 6000


def gantt_charts(charts: tuple[Timeline, ...], palette: Palette) -> Markup:
    """Returns all charts with controls and legend; the longest sets the scale."""
    shown = [chart for chart in charts if chart.length_ns > 0]
    if not shown:
        return tag("p", {"class": "none"}, "No trace was recorded.")
    span_ns = max(chart.length_ns for chart in shown)
    kinds = {bar.kind for chart in shown for bar in chart.bars}
    entries = [swatch(palette.paint(kind).fill, kind) for kind in palette.kinds if kind in kinds]
    if any(chart.moves for chart in shown):
        entries.append(swatch("var(--exposed)", "tensor arriving (thin bar under its device)"))
    unit = unit_for(span_ns)
    group: dict[str, str | float] = {
        "class": "gantts",
        "data-span": unit.value(span_ns),
        "data-unit": unit.symbol,
    }
    return tag(
        "div",
        group,
        _controls(),
        legend(*entries),
        *(_chart(chart, span_ns, palette) for chart in shown),
    )


def _controls() -> Markup:
    buttons = [
        tag("button", {"type": "button", "data-zoom": action, "aria-label": label}, text)
        for action, label, text in (
            ("in", "Zoom in", "+"),
            ("out", "Zoom out", "−"),
            ("all", "Show all", "all"),
        )
    ]
    hint = "Ctrl + wheel zooms, drag or scroll moves; arrow keys walk from op to op."
    return tag("div", {"class": "controls"}, *buttons, tag("span", {"class": "hint"}, hint))


def _chart(chart: Timeline, span_ns: int, palette: Palette) -> Markup:
    tops = _tops(chart)
    height = tops[-1]
    bars = sorted(chart.bars, key=lambda bar: (bar.device, bar.stream, bar.start_ns))
    caption = f"{chart.title}: {format_ns(chart.length_ns)} for {_iterations(chart)}"
    if len(bars) > MAX_BARS:
        limit = sorted((bar.end_ns - bar.start_ns for bar in bars), reverse=True)[MAX_BARS - 1]
        total = len(bars)
        bars = [bar for bar in bars if bar.end_ns - bar.start_ns >= limit][:MAX_BARS]
        caption += f" (the {len(bars)} longest of {total} ops are drawn)"
    content = [_background(chart, tops)]
    content += [_grid_line(tick.position, height) for tick in fitted_scale(1.0).ticks]
    content += [_move(move, chart, tops, span_ns) for move in chart.moves]
    content += [
        _bar(bar, chart, tops, span_ns, palette, is_first=index == 0)
        for index, bar in enumerate(bars)
    ]
    content += [_mark(end.iteration, end.time_ns / span_ns, height) for end in chart.iteration_ends]
    canvas: dict[str, str | float] = {
        "class": "gantt",
        "height": height + 22,
        "role": "group",
        "aria-label": f"Gantt chart, {caption}",
        "data-height": height,
    }
    unit = unit_for(span_ns)
    return tag(
        "figure",
        {"class": "gantt-figure"},
        tag("figcaption", {}, caption),
        tag(
            "div",
            {"class": "gantt-grid"},
            tag("div", {"class": "rows", "aria-hidden": "true"}, *_row_names(chart)),
            tag(
                "div", {"class": "scroll-x"}, tag("svg", canvas, *content, _ticks(span_ns, height))
            ),
        ),
        tag("p", {"class": "axis x"}, f"time from the end of the iteration before ({unit.symbol})"),
    )


def _iterations(chart: Timeline) -> str:
    numbers = [str(end.iteration) for end in chart.iteration_ends]
    word = "iteration" if len(numbers) == 1 else "iterations"
    return f"{word} {' and '.join(numbers)}" if len(numbers) < 3 else f"{len(numbers)} {word}"


def _tops(chart: Timeline) -> list[int]:
    """Returns the top of each device's rows, and the bottom of the last."""
    tops = [HEAD_HEIGHT]
    for num_streams in chart.num_streams:
        tops.append(tops[-1] + num_streams * STREAM_HEIGHT + MOVE_HEIGHT)
    return tops


def _row_names(chart: Timeline) -> list[Markup]:
    rows = [tag("div", {"class": "row-head"}, "")]
    for name, num_streams in zip(chart.devices, chart.num_streams, strict=True):
        for stream in range(num_streams):
            label = name if num_streams == 1 else f"{name} · {stream}"
            rows.append(tag("div", {"class": "row-stream", "title": label}, label))
        rows.append(tag("div", {"class": "row-move"}, ""))
    return rows


def _background(chart: Timeline, tops: list[int]) -> Markup:
    bands = [
        tag(
            "rect",
            {"x": 0, "y": tops[device], "width": "100%", "height": tops[device + 1] - tops[device]},
        )
        for device in range(0, len(chart.devices), 2)
    ]
    return tag("g", {"class": "bands"}, *bands)


def _grid_line(position: float, height: int) -> Markup:
    x = percent(position)
    return tag("line", {"class": "grid", "x1": x, "x2": x, "y1": HEAD_HEIGHT, "y2": height})


def _ticks(span_ns: int, height: int) -> Markup:
    """Returns the time axis at no zoom; the script replaces it as the width changes."""
    scale = fitted_scale(unit_for(span_ns).value(span_ns), 4)
    texts = [
        tag(
            "text",
            {"class": "tick mid", "x": percent(tick.position), "y": height + 16},
            tick.label,
        )
        for tick in scale.ticks
    ]
    return tag("g", {"class": "ticks"}, *texts)


def _mark(iteration: int, position: float, height: int) -> Markup:
    x = percent(position)
    line: dict[str, str | float] = {"class": "mark", "x1": x, "x2": x, "y1": 4, "y2": height}
    text: dict[str, str | float] = {"class": "mark-text", "x": x, "dx": -4, "y": 14}
    return tag("g", {}, tag("line", line), tag("text", text, f"end of {iteration}"))


def _extent(start_ns: int, end_ns: int, length_ns: int, span_ns: int) -> tuple[float, float]:
    """Returns (begin, width) as parts of the chart, cut to the timeline."""
    begin, end = max(0, start_ns), min(length_ns, end_ns)
    return begin / span_ns, max(0, end - begin) / span_ns


def _bar(
    bar: Bar, chart: Timeline, tops: list[int], span_ns: int, palette: Palette, *, is_first: bool
) -> Markup:
    begin, width = _extent(bar.start_ns, bar.end_ns, chart.length_ns, span_ns)
    paint = palette.paint(bar.kind)
    y = tops[bar.device] + bar.stream * STREAM_HEIGHT + 3
    text = (
        f"{bar.name} · {bar.kind} · iteration {bar.iteration} · {chart.devices[bar.device]} · "
        f"start {format_ns(bar.start_ns)} · duration {format_ns(bar.end_ns - bar.start_ns)} · "
        f"waited {format_ns(bar.start_ns - bar.ready_ns)}"
    )
    attributes: dict[str, str | float] = {
        "class": "bar edge",
        "x": percent(begin),
        "y": y,
        "width": percent(width),
        "height": STREAM_HEIGHT - 6,
        "fill": paint.fill,
        "role": "img",
        "aria-label": text,
        "tabindex": 0 if is_first else -1,
        "data-name": bar.name,
        "data-text": paint.text_class,
    }
    return tag("rect", attributes)


def _move(move: Move, chart: Timeline, tops: list[int], span_ns: int) -> Markup:
    begin, width = _extent(move.start_ns, move.arrival_ns, chart.length_ns, span_ns)
    text = (
        f"tensor {move.name} · iteration {move.iteration} · "
        f"{chart.devices[move.src]} to {chart.devices[move.dst]} · "
        f"{format_number(move.num_bytes)} bytes · start {format_ns(move.start_ns)} · "
        f"duration {format_ns(move.arrival_ns - move.start_ns)} · "
        f"queued {format_ns(move.start_ns - move.request_ns)}"
    )
    attributes: dict[str, str | float] = {
        "class": "bar move",
        "x": percent(begin),
        "y": tops[move.dst + 1] - MOVE_HEIGHT + 1,
        "width": percent(width),
        "height": MOVE_HEIGHT - 6,
        "data-tip": text,
    }
    return tag("rect", attributes)
