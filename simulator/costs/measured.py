"""Measured cost tables: medians per op kind, size and kind of device, with interference."""

import functools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from doppler.core.cluster import Device
from doppler.core.costs import Costs, make_costs
from doppler.core.graph import Op
from doppler.core.problem import Problem
from simulator.calibrate import Observation, op_size
from simulator.costs.source import OpTime, UnknownTimeError

EXTRAPOLATION = 2.0
"""Factor outside the measured sizes up to which a time is given. Shares are never extrapolated."""
MIN_SAMPLES = 3
ALONE = 0.1
TOGETHER = 0.9
SMOOTHING = 0.6
PERMILLE = 1000

_Grid = dict[float, list["CostEntry"]]  # resource -> entries by size


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEntry:
    """What was measured of one op kind at one size on one kind of device.

    Attributes:
        kind: Op kind.
        flop: Size of the op (`simulator.calibrate.op_size`): flop, or bytes moved if it has none.
        device_kind: Kind of the device.
        cores: Cores of the device.
        median_ns: Median duration with idle siblings.
        spread_ns: Interquartile range of the same.
        slowdown_permille: Extra time per busy sibling device, in 1/1000.
        count: Executions behind the median.
        share: Part of its parent that the device owns; what counts where it has no cores.
    """

    kind: str
    flop: int
    device_kind: str
    cores: int
    median_ns: int
    spread_ns: int
    slowdown_permille: int
    count: int
    share: float = 1.0

    @property
    def resource(self) -> float:
        """What the device had: cores of a core group, else its share of the parent."""
        return _resource(self.cores, self.share)


@dataclass(frozen=True, kw_only=True)
class CostTable:
    """A table of entries with where they came from; a `CostModel`.

    Between two measured sizes a time is linear in the size. Below the smallest it follows the first
    slope, but falls no faster than in proportion to the size; above the largest it follows the last
    slope, but never falls. So it stays above 0 and monotone. Between two measured amounts of cores
    (or shares) r it is linear in 1 / r, as by Amdahl, "Validity of the single processor approach",
    AFIPS 1967: a part that more cores do not make faster, and a part that they do.

    Attributes:
        entries: Sorted by kind, device kind, cores and share, size.
        dispatch_ns: (device kind, cores) -> the runtime's own cost per op.
        provenance: Machine, versions, job, date: text only.
        factors_permille: (op kind, device name) -> correction learned from the running job.
    """

    entries: tuple[CostEntry, ...]
    dispatch_ns: Mapping[tuple[str, int], int]
    provenance: Mapping[str, str]
    factors_permille: Mapping[tuple[str, str], int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What it is called where its answers are listed."""
        return "measured"

    def costs(self, problem: Problem) -> Costs:
        """Returns the times of every op on every device.

        Raises:
            UnknownTimeError: If a kind was not measured on a kind of device, a size lies more than
                a factor of 2 outside what was measured, or a share outside what was measured.
        """
        devices = problem.cluster.devices
        op_ns: list[tuple[int, ...]] = []
        slowdown: list[int] = []
        for op in problem.graph.ops:
            found = [] if op.is_input else [self.op_time(op, device) for device in devices]
            op_ns.append(tuple(time.time_ns for time in found) or (0,) * len(devices))
            slowdown.append(max((time.slowdown_permille for time in found), default=0))
        dispatch = tuple(self.dispatch_of(device) or 0 for device in devices)
        return make_costs(problem, tuple(op_ns), tuple(slowdown), dispatch)

    def op_time(self, op: Op, device: Device) -> OpTime:
        """Returns the time of an op on a device, corrected by what the running job said.

        Raises:
            UnknownTimeError: If it was not measured, or too far away.
        """
        size = op.flop if (op.kind, device.kind) in self._unsized else op_size(op)
        found = self._time(op.kind, device.kind, size, len(device.cores), device.share)
        factor = self.factors_permille.get((op.kind, device.name))
        if factor is None:
            return found
        return OpTime(
            time_ns=max(1, found.time_ns * factor // PERMILLE),
            slowdown_permille=found.slowdown_permille,
            detail=f"{found.detail}, corrected",
        )

    def expected_ns(self, seen: Observation) -> float:
        """Returns the time of a measured execution as the entries have it, beside what ran then.

        Corrections of the running job are left out.

        Raises:
            UnknownTimeError: If it was not measured, or too far away.
        """
        size = 0 if (seen.kind, seen.device_kind) in self._unsized else seen.flop
        time = self._time(seen.kind, seen.device_kind, size, seen.cores, seen.share)
        return time.time_ns * (PERMILLE + time.slowdown_permille * seen.overlap) / PERMILLE

    def corrected(self, observations: Sequence[Observation]) -> "CostTable":
        """Returns a table whose factors follow the running job: measured over expected time.

        Per (op kind, device) the median ratio of the observations counts; the old factor keeps
        `1 - SMOOTHING` of its weight. Kinds without an observation take over the median change of
        their device, so that a core that became slow is slow for all of them.
        """
        ratios: dict[tuple[str, str], list[float]] = {}
        for seen in observations:
            expected = self.expected_ns(seen)
            if expected > 0:
                ratios.setdefault((seen.kind, seen.device), []).append(seen.duration_ns / expected)
        factors = dict(self.factors_permille)
        changes: dict[str, list[float]] = {}
        for (kind, device), values in ratios.items():
            old = factors.get((kind, device), PERMILLE)
            new = (1 - SMOOTHING) * old + SMOOTHING * PERMILLE * statistics.median(values)
            factors[kind, device] = max(1, round(new))
            changes.setdefault(device, []).append(new / old)
        for device, values in changes.items():
            for kind in {entry.kind for entry in self.entries}:
                if (kind, device) not in ratios:
                    old = factors.get((kind, device), PERMILLE)
                    factors[kind, device] = max(1, round(old * statistics.median(values)))
        return replace(self, factors_permille=factors)

    def dispatch_of(self, device: Device) -> int | None:
        """Returns the runtime's own cost on a device: as measured on as many cores, or nearly."""
        known = {c: ns for (kind, c), ns in self.dispatch_ns.items() if kind == device.kind}
        if not known:
            return None
        return known[min(known, key=lambda cores: (abs(cores - len(device.cores)), cores))]

    @functools.cached_property
    def _grids(self) -> dict[tuple[str, str], _Grid]:
        """(op kind, device kind) -> grid."""
        grids: dict[tuple[str, str], _Grid] = {}
        for entry in self.entries:
            grid = grids.setdefault((entry.kind, entry.device_kind), {})
            grid.setdefault(entry.resource, []).append(entry)
        return grids

    @functools.cached_property
    def _unsized(self) -> frozenset[tuple[str, str]]:
        """(op kind, device kind) of tables from before ops that only move bytes had a size."""
        return frozenset((e.kind, e.device_kind) for e in self.entries if e.flop == 0)

    def _time(self, kind: str, device_kind: str, flop: int, cores: int, share: float) -> OpTime:
        grid = self._grids.get((kind, device_kind), {})
        wanted = _resource(cores, share)
        place = f"a {device_kind} device of " + (f"{cores} cores" if cores else f"share {share:g}")
        if wanted in grid:
            return _at_size(grid[wanted], place, flop)
        less = max((resource for resource in grid if resource < wanted), default=None)
        more = min((resource for resource in grid if resource > wanted), default=None)
        if less is None or more is None:
            seen = ", ".join(f"{resource:g}" for resource in sorted(grid))
            raise UnknownTimeError(
                f"the cost table has no op kind {kind!r} on {place}"
                + (f"; it was measured at {seen}, and shares are not extrapolated" if grid else "")
            )
        low, high = _at_size(grid[less], place, flop), _at_size(grid[more], place, flop)
        part = (1 / wanted - 1 / more) / (1 / less - 1 / more)
        return OpTime(
            time_ns=max(1, round(high.time_ns + part * (low.time_ns - high.time_ns))),
            slowdown_permille=round(
                high.slowdown_permille + part * (low.slowdown_permille - high.slowdown_permille)
            ),
            detail=f"between shares {less:g} and {more:g}",
        )


def fit_entries(observations: Sequence[Observation]) -> tuple[CostEntry, ...]:
    """Returns one entry per kind, size and kind of device.

    The median is taken over executions with idle siblings, the slowdown from those with all
    siblings busy throughout; where one of the two is missing, what is there stands for both.
    """
    groups: dict[tuple[str, str, int, float, int], list[Observation]] = {}
    for seen in observations:
        share = 1.0 if seen.cores else seen.share
        groups.setdefault((seen.kind, seen.device_kind, seen.cores, share, seen.flop), []).append(
            seen
        )
    entries: list[CostEntry] = []
    for (kind, device_kind, cores, share, flop), rows in sorted(groups.items()):
        quiet = alone(rows)
        together = [row for row in rows if 0 < TOGETHER * row.siblings <= row.overlap]
        base = [row.duration_ns for row in quiet]
        median = statistics.median(base)
        slowdown = 0
        is_alone = all(row.overlap <= ALONE for row in quiet)
        if is_alone and len(base) >= MIN_SAMPLES and len(together) >= MIN_SAMPLES and median > 0:
            busy = statistics.median(row.duration_ns for row in together)
            siblings = statistics.median(row.overlap for row in together)
            slowdown = max(0, round((busy / median - 1) * PERMILLE / siblings))
        entries.append(
            CostEntry(
                kind=kind,
                flop=flop,
                device_kind=device_kind,
                cores=cores,
                median_ns=round(median),
                spread_ns=_interquartile_range(base),
                slowdown_permille=slowdown,
                count=len(base),
                share=share,
            )
        )
    return tuple(entries)


def alone(rows: Sequence[Observation]) -> list[Observation]:
    """Returns the executions with idle siblings, or all where there are too few of them."""
    quiet = [row for row in rows if row.overlap <= ALONE]
    return quiet if len(quiet) >= MIN_SAMPLES else list(rows)


def _interquartile_range(values: Sequence[int]) -> int:
    if len(values) < 2:
        return 0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return round(high - low)


def _resource(cores: int, share: float) -> float:
    return float(cores) if cores else share


def _at_size(entries: Sequence[CostEntry], place: str, flop: int) -> OpTime:
    """Time and slowdown at a size, from entries of one kind on one kind of device, by size."""
    low, high = entries[0], entries[-1]
    if flop * EXTRAPOLATION < low.flop or flop > high.flop * EXTRAPOLATION:
        raise UnknownTimeError(
            f"op kind {low.kind!r} was measured from {low.flop} to {high.flop} flop on {place}, "
            f"and {flop} flop is more than a factor of {EXTRAPOLATION:g} outside"
        )
    index = 1
    while index < len(entries) - 1 and entries[index].flop < flop:
        index += 1
    a, b = entries[index - 1], entries[min(index, len(entries) - 1)]
    slope = (b.median_ns - a.median_ns) / (b.flop - a.flop) if b.flop > a.flop else 0.0
    if flop < low.flop:
        slope = min(max(slope, 0.0), low.median_ns / low.flop)
        time_ns = low.median_ns - slope * (low.flop - flop)
    elif flop > high.flop:
        time_ns = high.median_ns + max(slope, 0.0) * (flop - high.flop)
    else:
        time_ns = a.median_ns + slope * (flop - a.flop)
    part = (flop - a.flop) / (b.flop - a.flop) if b.flop > a.flop else 0.0
    inside = min(max(part, 0.0), 1.0)
    permille = a.slowdown_permille + inside * (b.slowdown_permille - a.slowdown_permille)
    detail = "between sizes" if low.flop < flop < high.flop else "beyond the sizes"
    if any(entry.flop == flop for entry in entries):
        detail = "as measured"
    return OpTime(time_ns=max(1, round(time_ns)), slowdown_permille=round(permille), detail=detail)
