"""Compiled moves of the annealing planner.

Most moves change devices: where graphs have communication, priorities rarely decide, and most
changes of keys change nothing. Single units cannot cross the barrier of a transfer, so larger moves
take what belongs together: a unit with its neighbours, a connected cluster, the shards of a
tensor operation, all that lies in a window of the order.

Arrays: `C` chains, `U` units, `V` ops, `D` devices. Every chain has its own generator state, so
results do not depend on how many chains there are beside it.
"""

import numpy as np

from doppler.planners.anneal_core import MoveTables, States, below, is_legal, uniform
from doppler.planners.mask import Ints
from simulator.engine.jit import entry, jit

MAX_TRIES = 16
KEY_SHIFT = 0.15
FOLLOW = 0.7
LARGEST_CLUSTER = 16

# Each constant is where the share of its kind of move ends.
RANDOM, NEAR, SWAP, META, WINDOW, CLUSTER, KEY_SWAP = 0.24, 0.46, 0.57, 0.66, 0.75, 0.90, 0.96


@entry
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

    Moves: one unit to a random device (24 %) or to a neighbour's (22 %), each time with its
    same-device neighbours in half of the cases; two units swapped (11 %); two devices swapped
    within a meta-op (9 %) or within a window of keys (9 %); a connected cluster of one device to
    another one (15 %); two keys swapped (6 %); one key shifted (4 %).
    """
    for chain in range(states_C.size):
        states_C[chain] = propose_one(
            t,
            states_C[chain],
            devices_CU[chain],
            keys_CV[chain],
            new_devices_CU[chain],
            new_keys_CV[chain],
            placements_CV[chain],
        )


@jit
def propose_one(
    t: MoveTables,
    state: np.uint64,
    devices_U: Ints,
    keys_V: Ints,
    new_devices_U: Ints,
    new_keys_V: Ints,
    placement_V: Ints,
) -> np.uint64:
    """Writes one legal move into the `new` arrays; returns the next state."""
    new_devices_U[:] = devices_U
    new_keys_V[:] = keys_V
    for _ in range(MAX_TRIES):
        state, u = uniform(state)
        if u < CLUSTER and t.movable.size > 0:
            state, moved = _move_devices(t, state, u, new_devices_U, keys_V)
            if moved and is_legal(t, new_devices_U):
                break
            new_devices_U[:] = devices_U
        else:
            state, moved = _move_keys(t, state, u >= KEY_SWAP, new_keys_V)
            if moved:
                break
    place_ops(t, new_devices_U, placement_V)
    return state


@jit
def place_ops(t: MoveTables, devices_U: Ints, placement_V: Ints) -> None:
    """Writes the device of each op."""
    for op in range(t.unit_V.size):
        unit = t.unit_V[op]
        placement_V[op] = devices_U[unit] if unit >= 0 else 0


@jit
def slack(state: np.uint64, temperature: float) -> tuple[np.uint64, int]:
    """Next state, and by how much a move may be worse: -T ln u."""
    state, u = uniform(state)
    return state, int(-temperature * np.log(1.0 - u))


@entry
def slacks(states_C: States, temperature: float, slacks_C: Ints) -> None:
    """Draws the slack of every chain."""
    for chain in range(states_C.size):
        states_C[chain], slacks_C[chain] = slack(states_C[chain], temperature)


@jit
def _move_devices(
    t: MoveTables, state: np.uint64, u: float, devices_U: Ints, keys_V: Ints
) -> tuple[np.uint64, bool]:
    state, index = below(state, t.movable.size)
    unit = t.movable[index]
    if u < NEAR:
        return _move_unit(t, state, u < RANDOM, unit, devices_U)
    if u < SWAP:
        state, index = below(state, t.movable.size)
        return state, swap_units(t, devices_U, unit, t.movable[index])
    state, a = below(state, t.limit_D.size)
    state, b = below(state, t.limit_D.size)
    if a == b:
        return state, False
    if u < META and t.meta_unit.size > 0:
        state, meta = below(state, t.meta_ptr.size - 1)
        moved = False
        for n in range(t.meta_ptr[meta], t.meta_ptr[meta + 1]):
            moved |= _exchange(t, devices_U, t.meta_unit[n], a, b)
        return state, moved
    if u < WINDOW:
        return _swap_in_window(t, state, devices_U, keys_V, a, b)
    return move_cluster(t, state, unit, b, devices_U)


@jit
def _move_unit(
    t: MoveTables, state: np.uint64, anywhere: bool, unit: int, devices_U: Ints
) -> tuple[np.uint64, bool]:
    near = t.near_ptr[unit + 1] - t.near_ptr[unit]
    if anywhere or near == 0:
        state, device = below(state, t.limit_D.size)
    else:
        state, offset = below(state, near)
        device = devices_U[t.near_unit[t.near_ptr[unit] + offset]]
    return move_with_followers(t, state, unit, device, devices_U)


@jit
def move_with_followers(
    t: MoveTables, state: np.uint64, unit: int, device: int, devices_U: Ints
) -> tuple[np.uint64, bool]:
    """Moves a unit, in half of the cases with neighbours of its device; False if it stays."""
    before = devices_U[unit]
    if device == before or not t.allowed_UD[unit, device]:
        return state, False
    devices_U[unit] = device
    state, follow = uniform(state)
    if follow < 0.5:
        for n in range(t.near_ptr[unit], t.near_ptr[unit + 1]):
            other = t.near_unit[n]
            state, draw = uniform(state)
            if draw < FOLLOW and devices_U[other] == before and t.allowed_UD[other, device]:
                devices_U[other] = device
    return state, True


@jit
def swap_units(t: MoveTables, devices_U: Ints, one: int, other: int) -> bool:
    """Exchanges the devices of two units; False if that is not allowed or changes nothing."""
    first, second = devices_U[one], devices_U[other]
    if first == second or not t.allowed_UD[one, second] or not t.allowed_UD[other, first]:
        return False
    devices_U[one], devices_U[other] = second, first
    return True


@jit
def _exchange(t: MoveTables, devices_U: Ints, unit: int, a: int, b: int) -> bool:
    device = devices_U[unit]
    target = b if device == a else a
    if device not in (a, b) or not t.allowed_UD[unit, target]:
        return False
    devices_U[unit] = target
    return True


@jit
def _swap_in_window(
    t: MoveTables, state: np.uint64, devices_U: Ints, keys_V: Ints, a: int, b: int
) -> tuple[np.uint64, bool]:
    """Swaps two devices for all units with an op whose key lies in a window; short ones prevail."""
    state, one = below(state, t.keyed.size)
    state, other = below(state, t.keyed.size)
    state, part = uniform(state)
    low = min(keys_V[t.keyed[one]], keys_V[t.keyed[other]])
    width = abs(keys_V[t.keyed[one]] - keys_V[t.keyed[other]])
    high = low + np.int64(part * part * width)
    inside_U = np.zeros(devices_U.size, np.bool_)
    for op in range(t.unit_V.size):
        if t.unit_V[op] >= 0 and low <= keys_V[op] <= high:
            inside_U[t.unit_V[op]] = True
    moved = False
    for unit in range(devices_U.size):
        if inside_U[unit]:
            moved |= _exchange(t, devices_U, unit, a, b)
    return state, moved


@jit
def move_cluster(
    t: MoveTables, state: np.uint64, unit: int, device: int, devices_U: Ints
) -> tuple[np.uint64, bool]:
    """Moves a connected cluster of units of one device; small ones prevail."""
    before = devices_U[unit]
    if device == before or not t.allowed_UD[unit, device]:
        return state, False
    state, part = uniform(state)
    size = 2 + int((LARGEST_CLUSTER - 2) * part * part)
    cluster = np.empty(LARGEST_CLUSTER, np.int64)
    cluster[0] = unit
    devices_U[unit] = device
    count, head = 1, 0
    while head < count:
        for n in range(t.near_ptr[cluster[head]], t.near_ptr[cluster[head] + 1]):
            other = t.near_unit[n]
            if count == size:
                return state, True
            if devices_U[other] != before or not t.allowed_UD[other, device]:
                continue
            state, draw = uniform(state)
            if draw < FOLLOW:
                devices_U[other] = device
                cluster[count] = other
                count += 1
        head += 1
    return state, True


@jit
def _move_keys(
    t: MoveTables, state: np.uint64, shifts: bool, keys_V: Ints
) -> tuple[np.uint64, bool]:
    if t.keyed.size == 0:
        return state, False
    state, index = below(state, t.keyed.size)
    op = t.keyed[index]
    if not shifts:
        state, index = below(state, t.keyed.size)
        other = t.keyed[index]
        keys_V[op], keys_V[other] = keys_V[other], keys_V[op]
        return state, keys_V[op] != keys_V[other]
    state, a = uniform(state)
    state, b = uniform(state)
    normal = np.sqrt(-2.0 * np.log(1.0 - a)) * np.cos(2.0 * np.pi * b)
    keys_V[op] += np.int64(KEY_SHIFT * normal * 1024.0 * keys_V.size)
    return state, True
