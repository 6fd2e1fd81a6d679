"""Unit quaternions (w, x, y, z), in batches: n rotations are [n, 4]."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def to_frame(rotation: Array, vector: Array) -> Array:
    """Returns world vectors [n, 3] as seen from bodies turned by `rotation`."""
    w, axis = rotation[:, :1], rotation[:, 1:]
    turned = np.cross(vector, axis)
    return vector + 2.0 * (w * turned + np.cross(turned, axis))


def relative(first: Array, second: Array) -> Array:
    """Returns the rotation first x conjugate(second), [n, 4]: what leads from second to first."""
    w1, x1, y1, z1 = first.T
    w2, x2, y2, z2 = second.T
    return np.stack(
        [
            w1 * w2 + x1 * x2 + y1 * y2 + z1 * z2,
            -w1 * x2 + x1 * w2 - y1 * z2 + z1 * y2,
            -w1 * y2 + x1 * z2 + y1 * w2 - z1 * x2,
            -w1 * z2 - x1 * y2 + y1 * x2 + z1 * w2,
        ],
        axis=1,
    )


def angle(rotation: Array) -> Array:
    """Returns the angle of each rotation in [0, pi] rad."""
    sine: Array = np.linalg.norm(rotation[:, 1:], axis=1)
    return 2.0 * np.arctan2(sine, np.abs(rotation[:, 0]))


def random_rotation(random: np.random.Generator) -> Array:
    """Returns a rotation [4], uniform over all (a normal vector has no preferred direction)."""
    vector = random.standard_normal(4)
    return np.asarray(vector / np.linalg.norm(vector))
