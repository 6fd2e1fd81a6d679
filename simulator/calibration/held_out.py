"""How far a cost table is from executions that it was not fitted to."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.calibrate import Observation
from simulator.costs.measured import CostTable, fit_entries
from simulator.costs.source import UnknownTimeError

ALL_KINDS = "all"


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


def held_out_errors(folds: Sequence[Sequence[Observation]]) -> tuple[HeldOutError, ...]:
    """Returns one row per op kind, and "all" at the end: each fold judged by the others' table.

    Executions whose size the other folds have not seen are left out, so no row may be left.

    Args:
        folds: Executions of different windows; two at least, of which none shares a window.
    """
    pairs: dict[str, list[tuple[float, int]]] = {}
    for index, fold in enumerate(folds):
        others = [seen for at, rows in enumerate(folds) if at != index for seen in rows]
        table = CostTable(entries=fit_entries(others), dispatch_ns={}, provenance={})
        for seen in fold:
            if seen.duration_ns <= 0:
                continue
            try:
                expected = table.expected_ns(seen)
            except UnknownTimeError:
                continue
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
