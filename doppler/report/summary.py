"""The comparison in words: which plan won, and by how much."""

from dataclasses import dataclass

from doppler.report.model import Interval, PlannerRow, Role, RunReport
from doppler.report.units import format_ns, format_percent, format_ratio, unit_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The winner and what it is compared with.

    Attributes:
        winner: The fastest row: by measured time among measured rows, by simulated time if no row
            was measured.
        is_measured: Which of the two.
        rival: The fastest row of another role than the winner's (single devices count as
            baselines); None if there is none.
        single: The fastest single-device row; None if there is none or it is the winner.
    """

    winner: PlannerRow
    is_measured: bool
    rival: PlannerRow | None
    single: PlannerRow | None


def compare(report: RunReport) -> Comparison:
    """Returns the comparison of a report's planners; measured and simulated are never mixed."""
    measured = [row for row in report.planners if row.measured is not None]
    rows = measured or list(report.planners)
    winner = min(rows, key=row_time_ns)
    is_learned = winner.role is Role.learned
    rivals = [row for row in rows if (row.role is Role.learned) is not is_learned]
    singles = [row for row in rows if row.role is Role.single_device and row is not winner]
    return Comparison(
        winner=winner,
        is_measured=bool(measured),
        rival=min(rivals, key=row_time_ns, default=None),
        single=min(singles, key=row_time_ns, default=None),
    )


def row_time_ns(row: PlannerRow) -> int:
    """Returns the measured time, or the simulated one of a row without."""
    return row.simulated_ns if row.measured is None else row.measured.value_ns


def ranked(report: RunReport) -> list[PlannerRow]:
    """Returns the rows that were measured, fastest first, then the others by simulated time."""
    return sorted(report.planners, key=lambda row: (row.measured is None, row_time_ns(row)))


def format_interval(interval: Interval) -> str:
    """Returns a measured time with its interval in one unit, such as `12.3 [12.1, 12.6] ms`."""
    unit = unit_for(interval.value_ns)
    value, low, high = (
        unit.text(time_ns) for time_ns in (interval.value_ns, interval.low_ns, interval.high_ns)
    )
    return f"{value} [{low}, {high}] {unit.symbol}"


def summary_sentence(report: RunReport) -> str:
    """Returns one sentence: the winning plan, its time, and its ratios to the others."""
    if not report.planners:
        return f"What ran on {report.cluster}, as it was measured; no plans were compared."
    found = compare(report)
    winner = found.winner
    time = format_ns(winner.simulated_ns)
    if winner.measured is not None:
        low, high = format_ns(winner.measured.low_ns), format_ns(winner.measured.high_ns)
        time = f"{format_ns(winner.measured.value_ns)} (95 % interval {low} to {high})"
    return (
        f"Planner {winner.name} made the fastest plan: a "
        f"{'measured' if found.is_measured else 'simulated'} {report.objective} of {time} "
        f"on layout {winner.layout}{_ratios(found)}{_gap(winner)}."
    )


def _ratios(found: Comparison) -> str:
    others: list[tuple[PlannerRow, str]] = []
    if found.rival is not None:
        is_learned = found.winner.role is Role.learned
        label = "the best baseline" if is_learned else "the best learned plan"
        others.append((found.rival, f"{label} ({found.rival.name})"))
    if found.single is not None and found.single is not found.rival:
        others.append((found.single, f"a single device ({found.single.name})"))
    if not others:
        return ""
    own = row_time_ns(found.winner)
    texts = [
        f"{format_ratio(row_time_ns(row) / own)} as fast as {label}{_overlap(found.winner, row)}"
        for row, label in others
    ]
    return ", " + " and ".join(texts)


def _overlap(winner: PlannerRow, other: PlannerRow) -> str:
    """Says where a difference is within the intervals of two measured rows."""
    if winner.measured is None or other.measured is None:
        return ""
    return " (the intervals overlap)" if other.measured.low_ns <= winner.measured.high_ns else ""


def _gap(winner: PlannerRow) -> str:
    if winner.gap is None:
        return ""
    return f"; in the simulator it is {format_percent(winner.gap)} above the lower bound"
