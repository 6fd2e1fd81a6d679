"""A robust line for times: time = fixed cost + size / rate, under noise in proportion to the time.

The sum of relative absolute errors is made small (least absolute deviations: Bloomfield and
Steiger, "Least Absolute Deviations", 1983), by iteratively re-weighted least squares. Small and
large sizes count alike, and a minority of gross outliers moves nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ROUNDS = 60
"""Rounds of re-weighting; the fit moves by less than 1e-9 long before."""
SMALLEST_RESIDUAL = 1e-6

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Affine:
    """A line.

    Attributes:
        intercept_ns: Time at size 0, at least 0.
        slope_ns: Nanoseconds per unit of size; at most 0 where larger sizes are not slower.
    """

    intercept_ns: float
    slope_ns: float


def fit_affine(sizes: Sequence[int], times_ns: Sequence[int]) -> Affine:
    """Returns the line with the least sum of relative absolute errors.

    An intercept below 0 is set to 0, and the slope fitted anew.

    Args:
        sizes: Two different ones at least.
        times_ns: Measured times, above 0.
    """
    scale = max(sizes)
    size_S = np.asarray(sizes, float) / scale
    time_S = np.asarray(times_ns, float)
    intercept, slope = _least_relative_errors(size_S, time_S)
    if intercept < 0:
        intercept, slope = 0.0, _median_slope(size_S, time_S)
    return Affine(intercept, slope / scale)


def _least_relative_errors(size_S: Float64, time_S: Float64) -> tuple[float, float]:
    """Intercept and slope of time over size."""
    weight_S = time_S**-2.0
    intercept = slope = 0.0
    for _ in range(ROUNDS):
        total = weight_S.sum()
        mean_size = (weight_S * size_S).sum() / total
        mean_time = (weight_S * time_S).sum() / total
        spread = (weight_S * (size_S - mean_size) ** 2).sum()
        if spread == 0.0:
            break
        slope = float((weight_S * (size_S - mean_size) * (time_S - mean_time)).sum() / spread)
        intercept = float(mean_time - slope * mean_size)
        error_S = np.abs((time_S - intercept - slope * size_S) / time_S)
        weight_S = 1.0 / (time_S**2 * np.maximum(error_S, SMALLEST_RESIDUAL))
    return intercept, slope


def _median_slope(size_S: Float64, time_S: Float64) -> float:
    """Slope through the origin with the least sum of relative errors: a weighted median."""
    has_size = size_S > 0
    slopes = time_S[has_size] / size_S[has_size]
    order = np.argsort(slopes, kind="stable")
    weights = np.cumsum(1.0 / slopes[order])
    return float(slopes[order][np.searchsorted(weights, weights[-1] / 2)])
