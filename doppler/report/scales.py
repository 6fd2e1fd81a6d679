"""Axes: where ticks stand and what they say."""

import math
from dataclasses import dataclass

from doppler.report.units import format_number


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of an axis: position 0 to 1 and label."""

    position: float
    label: str


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to positions 0 to 1, over [low, high]; logarithmic scales hold exponents."""

    low: float
    high: float
    is_log: bool
    ticks: tuple[Tick, ...]

    def position(self, value: float) -> float:
        """Returns the position of a value."""
        inner = math.log10(value) if self.is_log else value
        return (inner - self.low) / (self.high - self.low)


def linear_scale(low: float, high: float, num_ticks: int = 5) -> Scale:
    """Returns a scale whose ends are ticks at 1, 2 or 5 times a power of ten around [low, high]."""
    size = max(abs(low), abs(high))
    if high - low <= 1e-9 * size or high - low < 1e-300:  # too near for ticks of their own
        pad = size * 0.1 if size > 1e-290 else 1.0
        low, high = low - pad, high + pad
    step = _nice_step((high - low) / num_ticks)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    begin, end = first * step, last * step
    digits = max(0, -math.floor(math.log10(step)))
    ticks = tuple(
        Tick((index - first) / (last - first), _label(index * step, digits))
        for index in range(first, last + 1)
    )
    return Scale(begin, end, False, ticks)


def fitted_scale(high: float, num_ticks: int = 6) -> Scale:
    """Returns a scale over exactly [0, high], with ticks where they fall."""
    step = _nice_step(high / num_ticks)
    digits = max(0, -math.floor(math.log10(step)))
    count = math.floor(high / step + 1e-9)
    ticks = tuple(
        Tick(index * step / high, _label(index * step, digits)) for index in range(count + 1)
    )
    return Scale(0.0, high, False, ticks)


def log_scale(low: float, high: float) -> Scale:
    """Returns a logarithmic scale over positive values, ticks at 1 (and 2, 5 on short axes)."""
    begin, end = math.log10(low) - 0.08, math.log10(high) + 0.08
    steps = (1, 2, 5) if end - begin < 2.2 else (1,)
    values = [
        step * 10.0**power
        for power in range(math.floor(begin) - 1, math.ceil(end) + 1)
        for step in steps
    ]
    ticks = tuple(
        Tick((math.log10(value) - begin) / (end - begin), format_number(value))
        for value in values
        if begin <= math.log10(value) <= end
    )
    return Scale(begin, end, True, ticks)


def _nice_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)


def _label(value: float, digits: int) -> str:
    for factor, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:g}{suffix}"
    return f"{value:.{digits}f}"
