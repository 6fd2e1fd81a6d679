"""Measuring plans on the running job: periods of windows, intervals, interleaved comparison."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from doppler.core.errors import DopplerError
from doppler.core.graph import DataflowGraph
from doppler.core.job_mode import JobMode
from doppler.core.plan import Plan
from doppler.core.trace import Trace

CONFIDENCE = 0.95
MIN_RATIOS = 6
"""With fewer, no ratios exclude anything at 95 %: 2 x 0.5^5 > 0.05."""
MIN_BLOCKS = MIN_RATIOS // 2
BOOTSTRAP_DRAWS = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Margins:
    """Iterations of a window that are run and not measured.

    Where iterations overlap, a window begins with nothing done ahead and ends with nothing left to
    do ahead, so it looks faster than the job is.

    Attributes:
        head: At the beginning, 1 or more: the first fills the pipeline.
        tail: At the end.
    """

    head: int = 1
    tail: int = 0

    def __post_init__(self) -> None:
        if self.head < 1 or self.tail < 0:
            raise DopplerError(
                "margins leave out at least one iteration at the head and none or more at the "
                f"tail, and they are {self.head} and {self.tail}"
            )

    @property
    def num_iterations(self) -> int:
        """Iterations to run beside those that are measured, the first one not counted."""
        return self.head - 1 + self.tail


NO_MARGINS = Margins()


def margins_of(graph: DataflowGraph, mode: JobMode) -> Margins:
    """Returns what to leave out of a measured window: as much as iterations may run ahead.

    In simulation, without noise, five iterations of asynchronous jobs on two GMIs gave 0.79 to 0.97
    of the period as they are, and all of it with these margins. A synchronous job begins nothing
    ahead.
    """
    return NO_MARGINS if mode is JobMode.synchronous else Margins(head=2, tail=graph.window)


def measured_period_ns(trace: Trace, margins: Margins = NO_MARGINS) -> float:
    """Returns (E_n - E_w) / (n - w) of one window, in ns; the first iteration fills the pipeline.

    Raises:
        DopplerError: If the trace has fewer than three iterations beside its margins.
    """
    num_ends = trace.iterations - margins.num_iterations
    if num_ends < 3:
        beside = f" beside its margins of {margins.num_iterations}" * bool(margins.num_iterations)
        raise DopplerError(
            f"a measured window needs at least 3 iterations{beside}, and the trace has "
            f"{trace.iterations}"
        )
    ends = trace.iteration_ends_ns()[margins.head - 1 :][:num_ends]
    return (ends[-1] - ends[0]) / (num_ends - 1)


def median_interval(values: Sequence[float], rng: np.random.Generator) -> Interval:
    """Returns the median of `values` with its percentile-bootstrap 95 % interval."""
    array = np.asarray(values, dtype=float)
    draws = rng.choice(array, size=(BOOTSTRAP_DRAWS, array.size), replace=True)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(np.median(draws, axis=1), [tail, 100 - tail])
    return Interval(float(np.median(array)), float(low), float(high))


def in_turns(count: int, windows: int) -> Iterator[tuple[int, bool]]:
    """Yields who is measured next, and whether that window counts: forwards, backwards, forwards.

    So a machine that becomes slower or faster meanwhile favours nobody. The first turn warms up.

    Args:
        count: How many are measured; each has one window per turn.
        windows: Windows of each that count.
    """
    for turn in range(windows + 1):
        for index in range(count) if turn % 2 == 0 else reversed(range(count)):
            yield index, turn > 0


def ratio_interval(ratios: Sequence[float]) -> Interval:
    """Returns the median of paired ratios with its exact 95 % interval.

    The interval runs between two order statistics, by the sign test: it assumes no distribution,
    and windows that another program has disturbed do not move it while they are few.

    Source: Conover, "Practical Nonparametric Statistics", section 3.2.

    Raises:
        DopplerError: If there are fewer than `MIN_RATIOS` ratios.
    """
    count = len(ratios)
    if count < MIN_RATIOS:
        raise DopplerError(f"an interval needs at least {MIN_RATIOS} ratios, and there are {count}")
    ordered = sorted(ratios)
    outside = _outside(count)
    return Interval(statistics.median(ordered), ordered[outside], ordered[-1 - outside])


def _outside(count: int) -> int:
    """How many of `count` ordered values lie beyond each end of the interval of their median."""
    enough = math.ceil(Fraction((1 - CONFIDENCE) / 2) * 2**count)
    rank, cases, seen = (
        0,
        1,
        1,
    )  # of 2^count equally likely signs, `cases` have `rank` positive ones
    while seen < enough:
        rank += 1
        cases = cases * (count - rank + 1) // rank
        seen += cases
    return rank - 1


def keep_or_leave(periods: Sequence[Sequence[float]], incumbent: int) -> int:
    """Returns the index of what to run on: the incumbent, or something that is surely faster.

    Something is surely faster where the exact interval of its paired ratios to the incumbent lies
    below 1; of several, the one with the smallest median period wins. So noise alone changes
    nothing, and equals stay where they are.

    Args:
        periods: periods[candidate][round]; the windows of one round are neighbours in time.
        incumbent: Index of the candidate that runs now.

    Raises:
        DopplerError: If there are fewer than `MIN_RATIOS` rounds.
    """

    def is_faster(candidate: int) -> bool:
        pairs = zip(periods[candidate], periods[incumbent], strict=True)
        return ratio_interval([own / other for own, other in pairs]).high < 1.0

    others = [index for index in range(len(periods)) if index != incumbent]
    faster = [index for index in others if is_faster(index)]
    return min(faster, key=lambda index: statistics.median(periods[index]), default=incumbent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Windows of two things, measured in ABBA blocks.

    Attributes:
        ratio: First over second.
        first: Value of every window of the first.
        second: Value of every window of the second.
        ratios: First over second of neighbouring windows, two per block.
    """

    ratio: Interval
    first: tuple[float, ...]
    second: tuple[float, ...]
    ratios: tuple[float, ...]

    @property
    def num_blocks(self) -> int:
        """ABBA blocks measured."""
        return len(self.ratios) // 2


def interleave(
    first: Callable[[], float],
    second: Callable[[], float],
    *,
    min_blocks: int,
    max_blocks: int,
    half_width: float,
) -> Blocks:
    """Measures two things in ABBA blocks until the interval of their ratio is narrow.

    Args:
        first: Measures one window of A.
        second: Measures one window of B.
        min_blocks: Blocks at least, `MIN_BLOCKS` or more.
        max_blocks: Blocks at most.
        half_width: Relative half-width of the interval at which to stop.
    """
    windows: tuple[list[float], list[float]] = ([], [])
    ratios: list[float] = []
    for block in range(max_blocks):
        for order in ((0, 1), (1, 0)):
            for which in order:
                windows[which].append((first, second)[which]())
            ratios.append(windows[0][-1] / windows[1][-1])
        if block + 1 >= min_blocks:
            ratio = ratio_interval(ratios)
            if (ratio.high - ratio.low) / 2 <= half_width * ratio.value:
                break
    return Blocks(
        ratio=ratio_interval(ratios),
        first=tuple(windows[0]),
        second=tuple(windows[1]),
        ratios=tuple(ratios),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two plans measured in interleaved blocks.

    Attributes:
        ratio: Period of the first over period of the second.
        first_ns: Median period of the first in ns, with its interval over windows.
        second_ns: The same of the second.
        blocks: ABBA blocks measured.
        traces: The last trace of each.
    """

    ratio: Interval
    first_ns: Interval
    second_ns: Interval
    blocks: int
    traces: tuple[Trace, Trace]


def compare_interleaved(
    run: Callable[[Plan, int], Trace],
    first: Plan,
    second: Plan,
    *,
    iterations: int,
    min_blocks: int,
    max_blocks: int,
    half_width: float,
    rng: np.random.Generator,
    margins: Margins = NO_MARGINS,
) -> Comparison:
    """Measures two plans in ABBA blocks until the interval of their ratio is narrow.

    Args:
        run: Runs the job on for a number of iterations under a plan.
        first: Plan A.
        second: Plan B.
        iterations: Iterations per window beside its margins; every block has two windows of each
            plan.
        min_blocks: Blocks at least, `MIN_BLOCKS` or more.
        max_blocks: Blocks at most.
        half_width: Relative half-width of the interval at which to stop.
        rng: For the bootstrap.
        margins: Iterations that a window runs besides, and leaves out.
    """
    traces: dict[int, Trace] = {}

    def window(which: int) -> float:
        traces[which] = run((first, second)[which], iterations + margins.num_iterations)
        return measured_period_ns(traces[which], margins)

    blocks = interleave(
        lambda: window(0),
        lambda: window(1),
        min_blocks=min_blocks,
        max_blocks=max_blocks,
        half_width=half_width,
    )
    return Comparison(
        ratio=blocks.ratio,
        first_ns=median_interval(blocks.first, rng),
        second_ns=median_interval(blocks.second, rng),
        blocks=blocks.num_blocks,
        traces=(traces[0], traces[1]),
    )
