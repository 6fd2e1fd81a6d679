"""Colours by op kind and by state, told apart by lightness and pattern too.

Source: six of the eight colours of Okabe & Ito, "Color Universal Design", 2008; vermillion is kept
for exposed communication, grey for idle time.
"""

from dataclasses import dataclass

from doppler.report.attribution import Category
from doppler.report.markup import Markup, join, tag
from doppler.report.model import RunReport

_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#f0e442")
_DARK = frozenset({0})
_NUM_PATTERNS = 3

CATEGORY_NAMES = {
    Category.compute: "compute",
    Category.copy: "copy on the device's own stream",
    Category.dispatch: "dispatch (the runtime's own time)",
    Category.exposed: "exposed communication",
    Category.producer: "idle: waiting for a producer",
    Category.iteration_end: "idle: end of iteration",
    Category.back_pressure: "idle: back-pressure",
    Category.no_work: "idle: no work",
}


@dataclass(frozen=True, slots=True)
class Paint:
    """How a kind is painted: a fill and the class of a text on it."""

    fill: str
    text_class: str


@dataclass(frozen=True, slots=True)
class Palette:
    """Paint per op kind; kinds beyond the last pattern begin again at the first."""

    kinds: tuple[str, ...]

    def paint(self, kind: str) -> Paint:
        """Returns the paint of a kind."""
        number = self.kinds.index(kind)
        colour = number % len(_COLOURS)
        pattern = number // len(_COLOURS) % _NUM_PATTERNS
        text_class = "on-dark" if colour in _DARK else "on-light"
        if pattern == 0:
            return Paint(_COLOURS[colour], text_class)
        return Paint(f"url(#kind-{colour}-{pattern})", text_class)


def palette_of(report: RunReport) -> Palette:
    """Returns a palette over all kinds that the report shows, most time first."""
    times: dict[str, int] = {}
    for shown in (report.measured, report.simulated):
        for bar in shown.bars if shown is not None else ():
            times[bar.kind] = times.get(bar.kind, 0) + bar.end_ns - bar.start_ns
    for table in report.time_tables:
        for device in table.devices:
            for share in device.shares:
                if share.category is Category.compute:
                    times.setdefault(share.label, 0)
    for row in report.kind_errors:
        times.setdefault(row.kind, 0)
    for point in report.op_errors:
        times.setdefault(point.kind, 0)
    return Palette(tuple(sorted(times, key=lambda kind: (-times[kind], kind))))


def category_fill(category: Category) -> str:
    """Returns the fill of a state other than compute."""
    return {
        Category.copy: "url(#state-copy)",
        Category.dispatch: "var(--dispatch)",
        Category.exposed: "var(--exposed)",
        Category.producer: "url(#state-producer)",
        Category.iteration_end: "url(#state-iteration)",
        Category.back_pressure: "url(#state-credit)",
        Category.no_work: "var(--idle)",
    }[category]


def pattern_definitions() -> Markup:
    """Returns one invisible SVG with every pattern that fills refer to."""
    patterns = [
        _pattern(f"kind-{number}-{kind}", colour, "#111", kind)
        for kind in range(1, _NUM_PATTERNS)
        for number, colour in enumerate(_COLOURS)
    ]
    patterns += [
        _pattern("state-copy", "var(--exposed)", "#fff", 2),
        _pattern("state-producer", "var(--idle)", "var(--idle-line)", 1),
        _pattern("state-iteration", "var(--idle)", "var(--idle-line)", 2),
        _pattern("state-credit", "var(--idle)", "var(--idle-line)", 3),
    ]
    hidden: dict[str, str | float] = {
        "class": "patterns",
        "width": 0,
        "height": 0,
        "aria-hidden": "true",
    }
    return tag("svg", hidden, tag("defs", {}, *patterns))


def _pattern(name: str, colour: str, line: str, kind: int) -> Markup:
    """Kinds: 1 rising lines, 2 dots, 3 crossed lines."""
    size = 8
    rising = tag("path", {"d": "M0 8L8 0M-2 2L2 -2M6 10L10 6", "stroke": line, "stroke-width": 1.2})
    falling = tag("path", {"d": "M0 0L8 8M-2 6L2 10M6 -2L10 2", "stroke": line, "stroke-width": 1})
    dots = tag("circle", {"cx": 4, "cy": 4, "r": 1.4, "fill": line})
    marks = {1: rising, 2: dots, 3: join(rising, falling)}[kind]
    attributes: dict[str, str | float] = {
        "id": name,
        "width": size,
        "height": size,
        "patternUnits": "userSpaceOnUse",
    }
    ground = tag("rect", {"width": size, "height": size, "fill": colour})
    return tag("pattern", attributes, ground, marks)


def swatch(fill: str, label: str) -> Markup:
    """Returns one entry of a legend."""
    box = tag("rect", {"width": 16, "height": 12, "rx": 2, "fill": fill, "class": "edge"})
    icon = tag("svg", {"width": 16, "height": 12, "aria-hidden": "true"}, box)
    return tag("li", {}, icon, label)


def line_swatch(class_name: str, label: str) -> Markup:
    """Returns one entry of a legend for a line that is drawn with a style class."""
    stroke = tag("line", {"class": class_name, "x1": 0, "x2": 26, "y1": 6, "y2": 6})
    icon = tag("svg", {"width": 26, "height": 12, "aria-hidden": "true"}, stroke)
    return tag("li", {}, icon, label)


def legend(*entries: Markup) -> Markup:
    """Returns a legend as a list."""
    return tag("ul", {"class": "legend"}, *entries)
