"""How far a cost table is from executions that it was not fitted to, and how steady those are."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simulator.calibrate import Observation
from simulator.costs.measured import CostTable, fit_entries
from simulator.costs.source import UnknownTimeError

ALL_KINDS = "all"
STEADY = 1.25
"""On cores that do nothing else, folds stay within this factor of each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutError:
    """Predicted against measured durations of single executions.

    Attributes:
        kind: Op kind, or "all".
        median_error: Median of |predicted / measured - 1|. Noise is in it: a perfect median is off
            by about 0.67 sigma.
        bias: Sum of predicted over sum of measured durations, less 1.
        count: Executions.
    """

    kind: str
    median_error: float
    bias: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldShift:
    """Time of one fold over what the table of the other folds says of the same executions.

    Attributes:
        fold: Its number.
        is_shared: Whether these are the executions beside busy siblings, or those alone.
        ratio: Sum of measured over sum of predicted durations.
        count: Executions.
    """

    fold: int
    is_shared: bool
    ratio: float
    count: int

    @property
    def factor(self) -> float:
        """How far off, as a factor of at least 1, to either side."""
        return max(self.ratio, 1.0 / self.ratio)


def fold_shifts(folds: Sequence[Sequence[Observation]]) -> tuple[FoldShift, ...]:
    """Returns how far each fold is from the others: executions alone, and beside busy siblings.

    The slowdown beside siblings is a ratio of the two, so it is worth as much as they are steady.

    Args:
        folds: Executions of different windows; two at least, of which none shares a window.
    """
    sums: dict[tuple[int, bool], list[tuple[float, int]]] = {}
    for index, seen, expected in _judged(folds):
        if expected > 0.0:
            sums.setdefault((index, seen.overlap > 0.0), []).append((expected, seen.duration_ns))
    return tuple(
        FoldShift(
            fold=fold,
            is_shared=is_shared,
            ratio=sum(b for _, b in rows) / sum(a for a, _ in rows),
            count=len(rows),
        )
        for (fold, is_shared), rows in sorted(sums.items())
    )


def unsteady_text(shifts: Sequence[FoldShift]) -> str | None:
    """Returns one sentence where folds differ by more than `STEADY`, None where they do not."""
    worst = max(shifts, key=lambda shift: shift.factor, default=None)
    if worst is None or worst.factor <= STEADY:
        return None
    where = "beside busy siblings" if worst.is_shared else "alone on their cores"
    return (
        f"the measured windows disagree: ops {where} took {worst.ratio:.2f} times what the other "
        f"windows say, and on quiet cores they stay within {STEADY:g} times, so op times and "
        "slowdowns are uncertain; calibrate again (calibration.refresh=true) when nothing else runs"
    )


def held_out_errors(folds: Sequence[Sequence[Observation]]) -> tuple[HeldOutError, ...]:
    """Returns one row per op kind, and "all" at the end: each fold judged by the others' table.

    Executions whose size the other folds have not seen are left out, so no row may be left.

    Args:
        folds: Executions of different windows; two at least, of which none shares a window.
    """
    pairs: dict[str, list[tuple[float, int]]] = {}
    for _, seen, expected in _judged(folds):
        for kind in (seen.kind, ALL_KINDS):
            pairs.setdefault(kind, []).append((expected, seen.duration_ns))
    return tuple(
        HeldOutError(
            kind=kind,
            median_error=statistics.median(abs(a / b - 1.0) for a, b in rows),
            bias=sum(a for a, _ in rows) / sum(b for _, b in rows) - 1.0,
            count=len(rows),
        )
        for kind, rows in sorted(pairs.items(), key=lambda row: (row[0] == ALL_KINDS, row[0]))
    )


def _judged(
    folds: Sequence[Sequence[Observation]],
) -> Iterator[tuple[int, Observation, float]]:
    """Yields (fold, execution, its time in ns by the table of the other folds)."""
    for index, fold in enumerate(folds):
        others = [seen for at, rows in enumerate(folds) if at != index for seen in rows]
        table = CostTable(entries=fit_entries(others), dispatch_ns={}, provenance={})
        for seen in fold:
            if seen.duration_ns <= 0:
                continue
            try:
                yield index, seen, table.expected_ns(seen)
            except UnknownTimeError:
                continue
