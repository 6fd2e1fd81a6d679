"""Measured cost tables: medians per op kind, size and kind of device, with interference."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from doppler.core.costs import Costs, make_costs
from doppler.core.errors import DopplerError
from doppler.core.problem import Problem
from simulator.calibrate import Observation

EXTRAPOLATION = 2.0
MIN_SAMPLES = 3
ALONE = 0.1
TOGETHER = 0.9
SMOOTHING = 0.6
PERMILLE = 1000

_Place = tuple[str, str, int]  # op kind, device kind, cores


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEntry:
    """What was measured of one op kind at one size on one kind of device.

    Attributes:
        kind: Op kind.
        flop: Size of the op.
        device_kind: Kind of the device.
        cores: Cores of the device.
        median_ns: Median duration with idle siblings.
        spread_ns: Interquartile range of the same.
        slowdown_permille: Extra time per busy sibling device, in 1/1000.
        count: Executions behind the median.
    """

    kind: str
    flop: int
    device_kind: str
    cores: int
    median_ns: int
    spread_ns: int
    slowdown_permille: int
    count: int


@dataclass(frozen=True, kw_only=True)
class CostTable:
    """A table of entries with where they came from; a `CostModel`.

    Attributes:
        entries: Sorted by kind, device kind, cores, size.
        dispatch_ns: (device kind, cores) -> the runtime's own cost per op.
        provenance: Machine, versions, job, date: text only.
        factors_permille: (op kind, device name) -> correction learned from the running job.
    """

    entries: tuple[CostEntry, ...]
    dispatch_ns: Mapping[tuple[str, int], int]
    provenance: Mapping[str, str]
    factors_permille: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def costs(self, problem: Problem) -> Costs:
        """Returns the times of every op on every device.

        Raises:
            DopplerError: If a kind was not measured on a kind of device, or a size lies more than
                a factor of 2 outside what was measured.
        """
        by_place = self._by_place()
        devices = problem.cluster.devices
        op_ns: list[tuple[int, ...]] = []
        slowdown: list[int] = []
        for op in problem.graph.ops:
            row: list[int] = []
            slow: list[int] = []
            for device in devices:
                if op.is_input:
                    row.append(0)
                    continue
                place = (op.kind, device.kind, len(device.cores))
                time_ns, permille = _interpolate(by_place.get(place, []), place, op.flop)
                factor = self.factors_permille.get((op.kind, device.name), PERMILLE)
                row.append(time_ns * factor // PERMILLE)
                slow.append(permille)
            op_ns.append(tuple(row))
            slowdown.append(max(slow, default=0))
        dispatch = tuple(self.dispatch_ns.get((d.kind, len(d.cores)), 0) for d in devices)
        return make_costs(problem, tuple(op_ns), tuple(slowdown), dispatch)

    def corrected(self, observations: Sequence[Observation]) -> "CostTable":
        """Returns a table whose factors follow the running job: measured over expected time.

        Per (op kind, device) the median ratio of the observations counts; the old factor keeps
        `1 - SMOOTHING` of its weight. Kinds without an observation take over the median change of
        their device, so that a core that became slow is slow for all of them.
        """
        ratios: dict[tuple[str, str], list[float]] = {}
        by_place = self._by_place()
        for seen in observations:
            place = (seen.kind, seen.device_kind, seen.cores)
            time_ns, permille = _interpolate(by_place.get(place, []), place, seen.flop)
            expected = time_ns * (PERMILLE + permille * seen.overlap) / PERMILLE
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

    def _by_place(self) -> dict[_Place, list[CostEntry]]:
        by_place: dict[_Place, list[CostEntry]] = {}
        for entry in self.entries:
            by_place.setdefault((entry.kind, entry.device_kind, entry.cores), []).append(entry)
        return by_place


def fit_entries(observations: Sequence[Observation]) -> tuple[CostEntry, ...]:
    """Returns one entry per kind, size and kind of device.

    The median is taken over executions with idle siblings, the slowdown from those with all
    siblings busy throughout; where one of the two is missing, what is there stands for both.
    """
    groups: dict[tuple[str, str, int, int], list[Observation]] = {}
    for seen in observations:
        key = (seen.kind, seen.device_kind, seen.cores, seen.flop)
        groups.setdefault(key, []).append(seen)
    entries: list[CostEntry] = []
    for (kind, device_kind, cores, flop), rows in sorted(groups.items()):
        alone = [row.duration_ns for row in rows if row.overlap <= ALONE]
        together = [row for row in rows if 0 < TOGETHER * row.siblings <= row.overlap]
        base = alone if len(alone) >= MIN_SAMPLES else [row.duration_ns for row in rows]
        median = statistics.median(base)
        slowdown = 0
        if len(alone) >= MIN_SAMPLES and len(together) >= MIN_SAMPLES and median > 0:
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
            )
        )
    return tuple(entries)


def _interquartile_range(values: Sequence[int]) -> int:
    if len(values) < 2:
        return 0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return round(high - low)


def _interpolate(entries: Sequence[CostEntry], place: _Place, flop: int) -> tuple[int, int]:
    """Time and slowdown at a size: linear between neighbours, at the ends along the last slope."""
    kind, device_kind, cores = place
    if not entries:
        raise DopplerError(
            f"the cost table has no op kind {kind!r} on a {device_kind} device of {cores} cores"
        )
    low, high = entries[0].flop, entries[-1].flop
    if flop * EXTRAPOLATION < low or flop > high * EXTRAPOLATION:
        raise DopplerError(
            f"op kind {kind!r} was measured from {low} to {high} flop on {device_kind}/{cores}, "
            f"and {flop} flop is more than a factor of {EXTRAPOLATION:g} outside"
        )
    if len(entries) == 1:
        return entries[0].median_ns, entries[0].slowdown_permille
    index = 1
    while index < len(entries) - 1 and entries[index].flop < flop:
        index += 1
    a, b = entries[index - 1], entries[index]
    part = (flop - a.flop) / (b.flop - a.flop)
    time_ns = a.median_ns + part * (b.median_ns - a.median_ns)
    inside = min(max(part, 0.0), 1.0)
    permille = a.slowdown_permille + inside * (b.slowdown_permille - a.slowdown_permille)
    return max(0, round(time_ns)), round(permille)
