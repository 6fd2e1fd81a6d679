# ruff: noqa: N815 - shape suffixes (device_U) are upper case
"""Compiled moves of the annealing planner.

Arrays: `C` chains, `U` units, `V` ops, `D` devices, `M` meta-ops. Every chain has its own generator
state, so results do not depend on how many chains there are beside it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.planners.mask import Bools, Ints, Mask
from simulator.machine_code import cached

States = NDArray[np.uint64]

MAX_TRIES = 16
KEY_SHIFT = 0.15
FOLLOW = 0.7

_jit: Callable[[Any], Any] = cached()


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


@_jit
def propose(
    t: MoveTables,
    states_C: States,
    devices_CU: Ints,
    keys_CV: Ints,
    new_devices_CU: Ints,
    new_keys_CV: Ints,
    placements_CV: Ints,
) -> None:
    """Writes one legal move per chain into the `new` arrays, and its device per op.

    Moves: one unit to a random device (25 %) or to a neighbour's (20 %), each time with its
    same-device neighbours in half of the cases; two devices swapped (12 %), or swapped within a
    meta-op (8 %); two keys swapped (20 %); one key shifted (15 %).
    """
    for chain in range(len(states_C)):
        state = states_C[chain]
        devices_U, keys_V = new_devices_CU[chain], new_keys_CV[chain]
        devices_U[:] = devices_CU[chain]
        keys_V[:] = keys_CV[chain]
        for _ in range(MAX_TRIES):
            state, u = _uniform(state)
            if u < 0.65 and t.movable.size > 0:
                state, moved = _move_devices(t, state, u, devices_U)
            else:
                state, moved = _move_keys(t, state, u, keys_V)
            if moved and _is_legal(t, devices_U):
                break
            devices_U[:] = devices_CU[chain]
        states_C[chain] = state
        for op in range(t.unit_V.size):
            unit = t.unit_V[op]
            placements_CV[chain, op] = devices_U[unit] if unit >= 0 else 0


@_jit
def _uniform(state: np.uint64) -> tuple[np.uint64, float]:
    """Next state and a number in [0, 1). Source: Steele et al. 2014 (SplitMix64)."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return state, np.float64(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@_jit
def _below(state: np.uint64, count: int) -> tuple[np.uint64, int]:
    state, u = _uniform(state)
    return state, int(u * count)


@_jit
def _move_devices(
    t: MoveTables, state: np.uint64, u: float, devices_U: Ints
) -> tuple[np.uint64, bool]:
    state, index = _below(state, t.movable.size)
    unit = t.movable[index]
    if u < 0.45:
        device = -1
        if u < 0.25 or t.near_ptr[unit] == t.near_ptr[unit + 1]:
            state, device = _below(state, t.limit_D.size)
        else:
            state, offset = _below(state, t.near_ptr[unit + 1] - t.near_ptr[unit])
            device = devices_U[t.near_unit[t.near_ptr[unit] + offset]]
        before = devices_U[unit]
        if device == before or not t.allowed_UD[unit, device]:
            return state, False
        devices_U[unit] = device
        state, follow = _uniform(state)
        if follow < 0.5:
            for n in range(t.near_ptr[unit], t.near_ptr[unit + 1]):
                other = t.near_unit[n]
                state, draw = _uniform(state)
                if draw < FOLLOW and devices_U[other] == before and t.allowed_UD[other, device]:
                    devices_U[other] = device
        return state, True
    if u < 0.57 or t.meta_unit.size == 0:
        state, index = _below(state, t.movable.size)
        other = t.movable[index]
        return state, _swap(t, devices_U, unit, other)
    state, meta = _below(state, t.meta_ptr.size - 1)
    state, a = _below(state, t.limit_D.size)
    state, b = _below(state, t.limit_D.size)
    moved = False
    for n in range(t.meta_ptr[meta], t.meta_ptr[meta + 1]):
        member = t.meta_unit[n]
        if devices_U[member] == a and a != b and t.allowed_UD[member, b]:
            devices_U[member] = b
            moved = True
        elif devices_U[member] == b and a != b and t.allowed_UD[member, a]:
            devices_U[member] = a
            moved = True
    return state, moved


@_jit
def _swap(t: MoveTables, devices_U: Ints, one: int, other: int) -> bool:
    first, second = devices_U[one], devices_U[other]
    if first == second or not t.allowed_UD[one, second] or not t.allowed_UD[other, first]:
        return False
    devices_U[one], devices_U[other] = second, first
    return True


@_jit
def _move_keys(t: MoveTables, state: np.uint64, u: float, keys_V: Ints) -> tuple[np.uint64, bool]:
    state, index = _below(state, t.keyed.size)
    op = t.keyed[index]
    if u < 0.85:
        state, index = _below(state, t.keyed.size)
        other = t.keyed[index]
        keys_V[op], keys_V[other] = keys_V[other], keys_V[op]
        return state, keys_V[op] != keys_V[other]
    state, a = _uniform(state)
    state, b = _uniform(state)
    normal = np.sqrt(-2.0 * np.log(1.0 - a)) * np.cos(2.0 * np.pi * b)
    keys_V[op] += np.int64(KEY_SHIFT * normal * 1024.0 * keys_V.size)
    return state, True


@_jit
def _is_legal(t: MoveTables, devices_U: Ints) -> bool:
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
