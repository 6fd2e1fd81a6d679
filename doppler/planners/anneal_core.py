# ruff: noqa: N815 - shape suffixes (device_U) are upper case
"""What the annealing planner's compiled moves need: tables of a mask, legality, and a generator.

Arrays: `C` chains, `U` units, `V` ops, `D` devices, `M` meta-ops.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.planners.mask import Bools, Ints, Mask
from simulator.engine.jit import jit

States = NDArray[np.uint64]


class MoveTables(NamedTuple):
    """What moves need to know.

    Attributes:
        movable: Units with a choice of device.
        keyed: Ops with a device, whose priority matters.
        unit_V, allowed_UD, state_U, limit_D, linked_DD: As in `Mask`.
        near_ptr, near_unit, near_sends: Units joined by an edge; True where the row's unit sends.
        meta_ptr, meta_unit: Movable units of each meta-op with more than one of them.
        has_state, fully_linked: What needs no check where it cannot break.
    """

    movable: Ints
    keyed: Ints
    unit_V: Ints
    allowed_UD: Bools
    state_U: Ints
    limit_D: Ints
    linked_DD: Bools
    near_ptr: Ints
    near_unit: Ints
    near_sends: Bools
    meta_ptr: Ints
    meta_unit: Ints
    has_state: bool
    fully_linked: bool


def make_move_tables(mask: Mask) -> MoveTables:
    """Returns the arrays of a mask."""
    sends = mask.edge_units_E2
    both = np.concatenate([sends, sends[:, ::-1]])
    order = np.argsort(both[:, 0], kind="stable")
    near_ptr = np.searchsorted(both[order, 0], np.arange(mask.num_units + 1)).astype(np.int64)
    movable = set(mask.movable.tolist())
    metas: dict[str, dict[int, None]] = {}
    for op_id, op in enumerate(mask.problem.graph.ops):
        unit = int(mask.unit_V[op_id])
        if op.meta_op is not None and unit in movable:
            metas.setdefault(op.meta_op, {})[unit] = None
    shared = [list(units) for units in metas.values() if len(units) > 1]
    return MoveTables(
        movable=mask.movable.astype(np.int64),
        keyed=np.flatnonzero(mask.unit_V >= 0).astype(np.int64),
        unit_V=mask.unit_V,
        allowed_UD=mask.allowed_UD,
        state_U=mask.state_U,
        limit_D=mask.limit_D,
        linked_DD=mask.linked_DD,
        near_ptr=near_ptr,
        near_unit=np.ascontiguousarray(both[order, 1]),
        near_sends=np.ascontiguousarray(order < len(sends)),
        meta_ptr=np.cumsum([0, *(len(units) for units in shared)]).astype(np.int64),
        meta_unit=np.asarray([unit for units in shared for unit in units], dtype=np.int64),
        has_state=mask.has_state,
        fully_linked=mask.is_fully_linked,
    )


@jit
def uniform(state: np.uint64) -> tuple[np.uint64, float]:
    """Next state and a number in [0, 1). Source: Steele et al. 2014 (SplitMix64)."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return state, np.float64(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@jit
def below(state: np.uint64, count: int) -> tuple[np.uint64, int]:
    """Next state and an integer in [0, count)."""
    state, u = uniform(state)
    return state, int(u * count)


@jit
def is_legal(t: MoveTables, devices_U: Ints) -> bool:
    """True if the devices obey memory for state, and links."""
    if t.has_state:
        used_D = np.zeros(t.limit_D.size, np.int64)
        for unit in range(devices_U.size):
            used_D[devices_U[unit]] += t.state_U[unit]
        for device in range(t.limit_D.size):
            if used_D[device] > t.limit_D[device]:
                return False
    if not t.fully_linked:
        for unit in range(devices_U.size):
            for n in range(t.near_ptr[unit], t.near_ptr[unit + 1]):
                other = devices_U[t.near_unit[n]]
                if t.near_sends[n] and not t.linked_DD[devices_U[unit], other]:
                    return False
    return True
