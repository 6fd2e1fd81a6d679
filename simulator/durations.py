"""The shape of durations that are given from outside, for both engines."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from doppler.core.errors import PlanError


def check_durations(
    duration_ns: Sequence[Sequence[int]] | npt.NDArray[np.int64], iterations: int, num_ops: int
) -> None:
    """Checks that `duration_ns` is [iterations][ops] and nowhere negative.

    Raises:
        PlanError: Names the shape that it has, or the op of a negative time.
    """
    widths = {len(row) for row in duration_ns}
    if len(duration_ns) != iterations or widths != {num_ops}:
        raise PlanError(
            f"duration_ns is [{iterations}][{num_ops}], and it has {len(duration_ns)} rows of "
            f"{sorted(widths)} times"
        )
    for iteration, row in enumerate(duration_ns):
        if min(row) < 0:
            op = min(range(num_ops), key=lambda op: row[op])
            raise PlanError(
                f"times are at least 0 ns, and op {op} takes {row[op]} in iteration {iteration}"
            )
