"""The fixed cost and the rate of an op kind: what its time is made of, over several sizes."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from doppler.core.cluster import NS_PER_S
from simulator.calibrate import Observation
from simulator.calibration.affine import fit_affine
from simulator.costs.measured import alone


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFit:
    """time = launch_ns + flop / flop_per_s, for one op kind on one kind of device.

    Attributes:
        kind: Op kind.
        device_kind: Kind of the device.
        cores: Cores of the device.
        share: Part of its parent that the device owns; what counts where it has no cores.
        launch_ns: What an op without work would take.
        flop_per_s: Rate of the work beyond it.
        median_error: Median of |time of the line / measured time - 1|, noise included.
        count: Executions behind it.
    """

    kind: str
    device_kind: str
    cores: int
    share: float
    launch_ns: int
    flop_per_s: int
    median_error: float
    count: int

    def time_ns(self, flop: int) -> int:
        """Returns the time of an op of this kind, with idle siblings."""
        return self.launch_ns + -(-flop * NS_PER_S // self.flop_per_s)


def fit_launches(observations: Sequence[Observation]) -> tuple[LaunchFit, ...]:
    """Returns a fit per op kind and kind of device, by kind; executions beside idle siblings count.

    Left out are kinds that were measured at one size, or whose larger ops were not slower. The line
    is that of `fit_affine`: least relative absolute errors.
    """
    groups: dict[tuple[str, str, int, float], list[Observation]] = {}
    for seen in observations:
        if seen.duration_ns > 0:
            share = 1.0 if seen.cores else seen.share
            groups.setdefault((seen.kind, seen.device_kind, seen.cores, share), []).append(seen)
    fits: list[LaunchFit] = []
    for (kind, device_kind, cores, share), group in sorted(groups.items()):
        rows = alone(group)
        if len({row.flop for row in rows}) < 2:
            continue
        line = fit_affine([row.flop for row in rows], [row.duration_ns for row in rows])
        if line.slope_ns <= 0.0:
            continue
        errors = [
            abs((line.intercept_ns + line.slope_ns * row.flop) / row.duration_ns - 1.0)
            for row in rows
        ]
        fits.append(
            LaunchFit(
                kind=kind,
                device_kind=device_kind,
                cores=cores,
                share=share,
                launch_ns=round(line.intercept_ns),
                flop_per_s=max(1, round(NS_PER_S / line.slope_ns)),
                median_error=statistics.median(errors),
                count=len(rows),
            )
        )
    return tuple(fits)
