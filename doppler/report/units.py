"""Times and numbers as people read them; the only place of the report that leaves integers."""

from dataclasses import dataclass

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """A unit of time for one axis or one column: its symbol and its length in ns."""

    symbol: str
    ns: int

    def value(self, time_ns: float) -> float:
        """Returns the time in this unit."""
        return time_ns / self.ns

    def text(self, time_ns: float) -> str:
        """Returns the time in this unit with three significant digits, without the symbol."""
        value = self.value(time_ns)
        if self.ns == 1 or abs(value) >= 100:
            return f"{value:,.0f}"
        return f"{value:#.3g}"


UNITS = (
    TimeUnit("s", NS_PER_S),
    TimeUnit("ms", NS_PER_MS),
    TimeUnit("µs", NS_PER_US),
    TimeUnit("ns", 1),
)


def unit_for(time_ns: float) -> TimeUnit:
    """Returns the largest unit in which `time_ns` is at least 1; ns for 0."""
    for unit in UNITS:
        if abs(time_ns) >= unit.ns:
            return unit
    return UNITS[-1]


def format_number(value: float) -> str:
    """Returns `value` with about three significant digits and no exponent below a million."""
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 1e15 or size < 1e-4:
        return f"{value:.2e}"
    for factor, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if size >= factor:
            return f"{value / factor:.3g}{suffix}"
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def format_ns(time_ns: float) -> str:
    """Returns a time with three significant digits and its unit, such as `12.3 ms`."""
    unit = unit_for(time_ns)
    return f"{unit.text(time_ns)} {unit.symbol}"


def format_percent(part: float) -> str:
    """Returns a part of 1 in percent with one decimal, such as `12.5 %`."""
    return f"{100 * part:.1f} %"


def format_ratio(value: float) -> str:
    """Returns a ratio with two decimals, such as `1.85x`."""
    return f"{value:.2f}x"
