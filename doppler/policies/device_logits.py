"""PLC's logits of one decision, compiled: the numbers of `place_logits` for the selected op.

Legend: D devices, F device columns, K head width.
"""

from typing import NamedTuple

import numpy as np

from doppler.policies.device_columns import FINISH_GAP
from doppler.policies.matrix_tiles import ROWS, multiply
from doppler.policies.tables import SLOPE, Heads, Singles, Workspace
from simulator.machine_code import cached, inlined


class Tile(NamedTuple):
    """Room for the logits of `ROWS` devices.

    Attributes:
        columns: Device columns; ROWS x F.
        hidden: The hidden layer before its nonlinearity; ROWS x K.
    """

    columns: Singles
    hidden: Singles


@cached()
def make_tile(h: Heads) -> Tile:
    """Returns the room for one head."""
    return Tile(
        np.zeros((ROWS, h.dynamic.shape[0]), np.float32),
        np.zeros((ROWS, len(h.output)), np.float32),
    )


@inlined(fastmath=True, error_model="numpy")
def set_logits(h: Heads, s: Workspace, op: int, tile: Tile) -> None:
    """Fills the logits of `op` on every device; its columns are set."""
    width, num_columns = len(h.output), h.dynamic.shape[0]
    for first in range(0, len(s.logits), ROWS):
        rows = min(ROWS, len(s.logits) - first)
        for row in range(rows):
            device = first + row
            share = np.float32(1.0 / max(1, s.num_placed[device]))
            for k in range(width):
                own = h.own[op, k] + h.device[device, k]
                tile.hidden[row, k] = own + s.sums[device, k] * share
            for column in range(num_columns):
                tile.columns[row, column] = np.float32(s.columns[device, column])
        multiply(tile.columns, h.dynamic, tile.hidden)
        for row in range(rows):
            logit = np.float32(0.0)
            for k in range(width):
                value = tile.hidden[row, k]
                logit += max(value, SLOPE * value) * h.output[k]
            s.logits[first + row] = logit
            for prior in range(len(h.priors)):
                s.logits[first + row] -= (
                    h.priors[prior] * s.columns[first + row, FINISH_GAP + prior]
                )
