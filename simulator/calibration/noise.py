"""How much op times scatter, per op kind; a few disturbed executions move nothing."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.calibrate import Observation
from simulator.costs.measured import MIN_SAMPLES, PERMILLE, CostEntry
from simulator.noise import LognormalNoise

CUT = 2.5
"""Residuals beyond so many sigma are left out of it."""
NORMAL_MAD = 1.482602218505602
"""Sigma of a normal variable over its median absolute deviation."""
TAIL = 3.0
"""Executions slower than the median by so many sigma are counted as tail."""
ROUNDS = 50

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class KindNoise:
    """Scatter of the durations of one op kind around what the simulator expects.

    Attributes:
        kind: Op kind.
        sigma: Standard deviation of the logarithm, gross outliers left out.
        tail_share: Part of the executions that took more than exp(3 sigma) times the expected
            time; 0.0013 where durations are lognormal.
        count: Executions behind both.
    """

    kind: str
    sigma: float
    tail_share: float
    count: int


def fit_noise(
    observations: Sequence[Observation], entries: Sequence[CostEntry]
) -> tuple[KindNoise, ...]:
    """Returns the noise of every op kind that was seen often enough, by kind.

    The slowdown beside busy siblings is divided out, in proportion to the overlap; then each size
    on each device is centred at its own median, so that neither counts as noise. What the fit sees
    as noise includes drift of the machine between windows.

    Args:
        observations: Measured executions.
        entries: Entries fitted to them (`fit_entries`), for the slowdown.
    """
    slowdown = {
        (e.kind, e.device_kind, e.cores, e.share, e.flop): e.slowdown_permille for e in entries
    }
    groups: dict[tuple[str, str, int, float, int], list[float]] = {}
    for seen in observations:
        if seen.duration_ns <= 0:
            continue
        share = 1.0 if seen.cores else seen.share
        extra = slowdown.get((seen.kind, seen.device_kind, seen.cores, share, seen.flop), 0)
        slower = 1.0 + seen.overlap * extra / PERMILLE
        groups.setdefault((seen.kind, seen.device, seen.cores, share, seen.flop), []).append(
            math.log(seen.duration_ns / slower)
        )
    residuals: dict[str, list[Float64]] = {}
    for (kind, *_), logs in sorted(groups.items()):
        if len(logs) >= MIN_SAMPLES:
            values = np.asarray(logs) - statistics.median(logs)
            # A median fitted to n values takes about one of them away.
            values *= math.sqrt(len(logs) / (len(logs) - 1))
            residuals.setdefault(kind, []).append(values)
    return tuple(_kind_noise(kind, np.concatenate(rows)) for kind, rows in residuals.items())


def lognormal_noise(noise: Sequence[KindNoise]) -> LognormalNoise:
    """Returns fitted noise as what the simulator draws; kinds not seen have the median spread.

    It has no tail: see `KindNoise.tail_share` for what it leaves out.
    """
    return LognormalNoise(
        sigma=statistics.median(row.sigma for row in noise) if noise else 0.0,
        sigma_by_kind={row.kind: row.sigma for row in noise},
    )


def _kind_noise(kind: str, residual_S: Float64) -> KindNoise:
    sigma = robust_sigma(residual_S)
    tail = float(np.mean(residual_S > TAIL * sigma)) if sigma > 0.0 else 0.0
    return KindNoise(kind=kind, sigma=sigma, tail_share=tail, count=len(residual_S))


def robust_sigma(residual_S: Float64) -> float:
    """Returns the standard deviation of centred normal values with gross outliers among them.

    Starts at the median absolute deviation, which 10 % of outliers raise by 13 %; then takes the
    standard deviation of what lies within `CUT` sigma, corrected for the cut, until it stands
    still. Source of the correction: variance of the truncated normal distribution, Johnson, Kotz
    and Balakrishnan, "Continuous Univariate Distributions", volume 1, section 10.1.
    """
    density = math.exp(-CUT * CUT / 2) / math.sqrt(2 * math.pi)
    inside = math.erf(CUT / math.sqrt(2))
    remaining = math.sqrt(1 - 2 * CUT * density / inside)
    sigma = NORMAL_MAD * float(np.median(np.abs(residual_S)))
    for _ in range(ROUNDS):
        kept = residual_S[np.abs(residual_S) <= CUT * sigma]
        following = float(np.sqrt(np.mean(kept**2))) / remaining
        if math.isclose(following, sigma, rel_tol=1e-9):
            break
        sigma = following
    return sigma
