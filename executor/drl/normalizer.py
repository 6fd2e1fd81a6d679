"""Running moments of observations as plain arrays, merged in a fixed order.

A normaliser is float64[1 + 2 O]: count, mean[O], M2[O] (sum of squared deviations).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Moments = NDArray[np.float64]
CLIP_DEVIATIONS = 10.0  # normalised observations are cut to this many standard deviations
VARIANCE_FLOOR = 1e-5


def moments_size(columns: int) -> int:
    """Returns the float64 values that moments of `columns` columns take."""
    return 1 + 2 * columns


def initial_moments(columns: int) -> Moments:
    """Returns one pseudo-row of mean 0 and variance 1, so that early estimates stay tame."""
    moments = np.zeros(moments_size(columns))
    moments[0] = 1.0
    moments[1 + columns :] = 1.0
    return moments


def measure_moments(rows: NDArray[np.float32]) -> Moments:
    """Returns the moments of rows[N, O]."""
    columns = rows.shape[1]
    moments = np.empty(moments_size(columns))
    mean = rows.mean(axis=0, dtype=np.float64)
    moments[0] = len(rows)
    moments[1 : 1 + columns] = mean
    deviations = rows - mean
    moments[1 + columns :] = np.einsum("no,no->o", deviations, deviations)
    return moments


def merge_moments(parts: Sequence[Moments]) -> Moments:
    """Returns the moments of all rows together; parts are merged from first to last.

    Raises:
        ValueError: There are no parts.

    Source: Chan, Golub & LeVeque 1983, "Algorithms for computing the sample variance", eq. 2.1.
    """
    if not parts:
        raise ValueError("merging moments needs at least one part, got none")
    total = parts[0].copy()
    columns = (len(total) - 1) // 2
    mean, m2 = total[1 : 1 + columns], total[1 + columns :]
    for part in parts[1:]:
        count = total[0] + part[0]
        delta = part[1 : 1 + columns] - mean
        # mean = (n_a mean_a + n_b mean_b) / n;  M2 = M2_a + M2_b + delta^2 n_a n_b / n
        m2 += part[1 + columns :] + delta * delta * (total[0] * part[0] / count)
        mean += delta * (part[0] / count)
        total[0] = count
    return total


def standard_deviation(moments: Moments) -> NDArray[np.float64]:
    """Returns the population standard deviation [O]."""
    columns = (len(moments) - 1) // 2
    deviation: NDArray[np.float64] = np.sqrt(moments[1 + columns :] / moments[0])
    return deviation


def normalize(
    obs: NDArray[np.float32], moments: Moments, out: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Writes and returns clip((obs - mean) / sqrt(variance + 1e-5), -10, 10) for obs[..., O]."""
    columns = obs.shape[-1]
    mean = moments[1 : 1 + columns].astype(np.float32)
    scale = (1.0 / np.sqrt(moments[1 + columns :] / moments[0] + VARIANCE_FLOOR)).astype(np.float32)
    np.subtract(obs, mean, out=out)
    np.multiply(out, scale, out=out)
    return np.clip(out, -CLIP_DEVIATIONS, CLIP_DEVIATIONS, out=out)
