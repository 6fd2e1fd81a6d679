"""Line and scatter charts as SVG in which only the lines stretch and the text never does."""

from doppler.report.markup import Markup, percent, tag
from doppler.report.model import LearningCurve, RewardPoint, Series
from doppler.report.palette import Palette, legend, line_swatch, swatch
from doppler.report.scales import Scale, Tick, linear_scale, log_scale
from doppler.report.simulator_error import OpError
from doppler.report.units import format_number, unit_for

MAX_POINTS = 400
_EDGE = (0.02, 0.95)  # between these parts of the axis a tick label is centred
_NUM_LINES = 6


def curve_chart(curve: LearningCurve) -> Markup:
    """Returns a line chart of one stage with its legend; a curve without points says so."""
    shown = [series for series in curve.series if series.xs]
    if not shown:
        return tag("p", {"class": "none"}, f"{curve.title}: nothing was recorded.")
    xs = linear_scale(
        min(min(series.xs) for series in shown), max(max(series.xs) for series in shown)
    )
    ys = linear_scale(
        min(min(series.ys) for series in shown), max(max(series.ys) for series in shown)
    )
    lines = [_line(thin(series), xs, ys, index) for index, series in enumerate(shown)]
    stretched = {
        "viewBox": "0 0 1000 1000",
        "preserveAspectRatio": "none",
        "width": "100%",
        "height": "100%",
    }
    named = "; ".join(
        f"{series.name} from {format_number(series.ys[0])} to {format_number(series.ys[-1])}"
        for series in shown
    )
    entries = [
        line_swatch(_line_class(index), f"{series.name}: last {format_number(series.ys[-1])}")
        for index, series in enumerate(shown)
    ]
    return tag(
        "figure",
        {"class": "chart"},
        tag("figcaption", {}, curve.title),
        _frame(
            xs,
            ys,
            curve.x_label,
            curve.y_label,
            f"{curve.title}. {curve.y_label} over {curve.x_label}: {named}.",
            tag("svg", stretched, *lines),
        ),
        legend(*entries),
    )


def thin(series: Series) -> Series:
    """Returns at most about `MAX_POINTS` points: of each bucket its smallest and largest y."""
    count = len(series.xs)
    if count <= MAX_POINTS:
        return series
    num_buckets = MAX_POINTS // 2
    kept: set[int] = {0, count - 1}
    for bucket in range(num_buckets):
        indices = range(bucket * count // num_buckets, (bucket + 1) * count // num_buckets)
        kept.add(min(indices, key=lambda index: series.ys[index]))
        kept.add(max(indices, key=lambda index: series.ys[index]))
    order = sorted(kept)
    return Series(
        name=series.name,
        xs=tuple(series.xs[index] for index in order),
        ys=tuple(series.ys[index] for index in order),
    )


def reward_curves(points: tuple[RewardPoint, ...]) -> tuple[LearningCurve, ...]:
    """Returns the RL job's curves over environment steps: mean return, reward per step."""
    ended = [point for point in points if point.mean_return is not None]
    returns = Series(
        name="mean return",
        xs=tuple(float(point.env_steps) for point in ended),
        ys=tuple(point.mean_return for point in ended if point.mean_return is not None),
    )
    rewards = Series(
        name="reward per step",
        xs=tuple(float(point.env_steps) for point in points),
        ys=tuple(point.reward_per_step for point in points),
    )
    return tuple(
        LearningCurve(title=title, x_label="environment steps", y_label=y_label, series=(series,))
        for title, y_label, series in (
            ("Mean return of ended episodes", "return (reward units)", returns),
            ("Reward per environment step", "reward per step (reward units)", rewards),
        )
    )


def error_scatter(points: tuple[OpError, ...], palette: Palette) -> Markup:
    """Returns simulated over measured time per op, both logarithmic, with the line of equality."""
    shown = [point for point in points if point.simulated_ns > 0 and point.measured_ns > 0]
    if not shown:
        return tag("p", {"class": "none"}, "No op was both simulated and measured.")
    times = [time for point in shown for time in (point.simulated_ns, point.measured_ns)]
    unit = unit_for(sorted(times)[len(times) // 2])
    scale = log_scale(unit.value(min(times)), unit.value(max(times)))
    diagonal = {"x1": "0", "y1": "100%", "x2": "100%", "y2": "0", "class": "equal"}
    dots = [
        _dot(point, palette, scale, unit.value(point.measured_ns), unit.value(point.simulated_ns))
        for point in shown
    ]
    left = len(points) - len(shown)
    kinds = [kind for kind in palette.kinds if any(point.kind == kind for point in shown)]
    caption = "Predicted against measured duration per op; on the line they are equal"
    return tag(
        "figure",
        {"class": "chart square"},
        tag("figcaption", {}, caption + (f" ({left} without a duration left out)" if left else "")),
        _frame(
            scale,
            scale,
            f"measured duration ({unit.symbol}, logarithmic)",
            f"simulated duration ({unit.symbol}, logarithmic)",
            f"Scatter of {len(shown)} ops, simulated over measured duration.",
            tag("line", diagonal),
            *dots,
        ),
        legend(*(swatch(palette.paint(kind).fill, kind) for kind in kinds)),
    )


def _dot(point: OpError, palette: Palette, scale: Scale, x: float, y: float) -> Markup:
    text = (
        f"{point.name} · {point.kind} · {point.device} · simulated {_time(point.simulated_ns)} · "
        f"measured {_time(point.measured_ns)}"
    )
    attributes: dict[str, str | float] = {
        "class": "bar edge dot",
        "cx": percent(scale.position(x)),
        "cy": percent(1 - scale.position(y)),
        "r": 5,
        "fill": palette.paint(point.kind).fill,
        "data-tip": text,
    }
    return tag("circle", attributes)


def _time(time_ns: int) -> str:
    unit = unit_for(time_ns)
    return f"{format_number(unit.value(time_ns))} {unit.symbol}"


def _line(series: Series, xs: Scale, ys: Scale, index: int) -> Markup:
    points = " ".join(
        f"{1000 * xs.position(x):.1f},{1000 - 1000 * ys.position(y):.1f}"
        for x, y in zip(series.xs, series.ys, strict=True)
    )
    if len(series.xs) == 1:  # one point is no line: a short dash marks it
        x, y = 1000 * xs.position(series.xs[0]), 1000 - 1000 * ys.position(series.ys[0])
        points = f"{x - 8:.1f},{y:.1f} {x + 8:.1f},{y:.1f}"
    return tag("polyline", {"class": _line_class(index), "points": points})


def _line_class(index: int) -> str:
    return f"line line-{index % _NUM_LINES}"


def _frame(
    xs: Scale, ys: Scale, x_label: str, y_label: str, description: str, *content: Markup
) -> Markup:
    grid: list[Markup] = []
    for tick in ys.ticks:
        y = percent(1 - tick.position)
        grid.append(tag("line", {"class": "grid", "x1": "0", "x2": "100%", "y1": y, "y2": y}))
        grid.append(tag("text", {"class": "tick", "x": -8, "y": y, "dy": "0.35em"}, tick.label))
    for tick in xs.ticks:
        x = percent(tick.position)
        grid.append(tag("line", {"class": "grid", "x1": x, "x2": x, "y1": "0", "y2": "100%"}))
        grid.append(x_tick(tick))
    canvas = {"class": "canvas", "role": "img", "aria-label": description}
    return tag(
        "div",
        {"class": "framed"},
        tag("p", {"class": "axis y"}, y_label),
        tag("div", {"class": "plot"}, tag("svg", canvas, *grid, *content)),
        tag("p", {"class": "axis x"}, x_label),
    )


def x_tick(tick: Tick) -> Markup:
    """Returns the label under a tick of a horizontal axis; at the ends it stays inside."""
    name = "mid" if _EDGE[0] <= tick.position <= _EDGE[1] else "start"
    name = "end" if tick.position > _EDGE[1] else name
    place: dict[str, str | float] = {
        "class": f"tick {name}",
        "x": percent(tick.position),
        "y": "100%",
        "dy": 18,
    }
    return tag("text", place, tick.label)
