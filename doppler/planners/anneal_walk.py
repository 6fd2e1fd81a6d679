"""Annealing chains in one compiled loop: moves, simulator and acceptance, no Python between.

Where the runs write their log, most moves are those on the critical path of the chain's plan.
Arrays: `C` chains, `U` units, `V` ops, `N` critical moves.
"""

from typing import Any

import numpy as np

from doppler.planners.anneal_core import MoveTables, States, uniform
from doppler.planners.anneal_critical import SHARE, find_path, propose_critical
from doppler.planners.anneal_moves import place_ops, propose_one, slack
from doppler.planners.mask import Ints
from simulator.engine.jit import IDLE, TRANSFERS, WRITE_LOG, entry
from simulator.engine.kernel import run_plans


@entry
def temperature(hot: float, cold: float, progress: float) -> float:
    """Falls geometrically from `hot` to `cold` as progress goes from 0 to 1."""
    return float(hot * (cold / hot) ** progress)


@entry
def walk(
    tab: Any,
    ws: Any,
    log: Any,
    iterations: int,
    mode: int,
    penalty: int,
    stops_early: bool,
    t: MoveTables,
    states_C: States,
    values_C: Ints,
    devices_CU: Ints,
    keys_CV: Ints,
    paths_CN3: Ints,
    counts_C: Ints,
    hot: float,
    cold: float,
    first_step: int,
    last_step: int,
    steps: int,
    calls: int,
    best_ns: int,
    best_placement_V: Ints,
    best_keys_V: Ints,
) -> tuple[int, int]:
    """Walks every chain from `first_step` to before `last_step` of `steps`; changes them in place.

    Returns (calls made, best value met); the arrays `best` hold the best plan if one of the walk is
    below `best_ns`. A value below 0 is the code of a plan that the engine refuses, and ends the
    walk.

    Args:
        tab: See `simulator.engine.lanes.Kernel`, as the next six.
        ws: Workspace.
        log: Log.
        iterations: Iterations of one run.
        mode: Mode flags.
        penalty: Of memory.
        stops_early: True if a run above its bound may be stopped.
        t: Moves.
        states_C: Generator of each chain.
        values_C: Value of each chain's plan.
        devices_CU: Its devices.
        keys_CV: Its keys.
        paths_CN3: Critical moves of its plan.
        counts_C: How many they are; 0 before the chain's first step.
        hot: First temperature of the whole walk, in ns.
        cold: Last one.
        first_step: First step of this part of the walk.
        last_step: The step after its last one.
        steps: Steps of the whole walk.
        calls: Plans that may be scored.
        best_ns: Value of the best plan so far.
        best_placement_V: Filled with a better plan's devices.
        best_keys_V: Filled with its keys.
    """
    num_chains, num_ops = keys_CV.shape
    new_devices_U, new_keys_1V = devices_CU[0].copy(), np.empty((1, num_ops), np.int64)
    placement_1V = np.empty((1, num_ops), np.int64)
    holds, hold_start = np.empty((0, 3), np.int64), np.zeros(2, np.int64)
    durations = np.empty((0, 0, 0), np.int64)
    bound_1, out_1 = np.empty(1, np.int64), np.empty(1, np.int64)
    made = 0
    for step in range(first_step, last_step):
        heat = temperature(hot, cold, step / max(1, steps - 1))
        for chain in range(num_chains):
            if made == calls:
                return made, best_ns
            states_C[chain], room = slack(states_C[chain], heat)
            limit = values_C[chain] + room
            moved = False
            if counts_C[chain] > 0:
                states_C[chain], u = uniform(states_C[chain])
                if u < SHARE:
                    new_devices_U[:] = devices_CU[chain]
                    new_keys_1V[0] = keys_CV[chain]
                    states_C[chain], moved = propose_critical(
                        t,
                        states_C[chain],
                        paths_CN3[chain],
                        counts_C[chain],
                        new_devices_U,
                        new_keys_1V[0],
                    )
                    place_ops(t, new_devices_U, placement_1V[0])
            if not moved:
                states_C[chain] = propose_one(
                    t,
                    states_C[chain],
                    devices_CU[chain],
                    keys_CV[chain],
                    new_devices_U,
                    new_keys_1V[0],
                    placement_1V[0],
                )
            bound_1[0] = limit if stops_early else IDLE
            run_plans(
                tab,
                ws,
                log,
                placement_1V,
                new_keys_1V,
                holds,
                hold_start,
                durations,
                bound_1,
                iterations,
                mode,
                penalty,
                out_1,
            )
            made += 1
            value = out_1[0]
            if value < best_ns:
                best_ns = value
                best_placement_V[:] = placement_1V[0]
                best_keys_V[:] = new_keys_1V[0]
                if value < 0:
                    return made, best_ns
            if value <= limit:
                values_C[chain] = value
                devices_CU[chain] = new_devices_U
                keys_CV[chain] = new_keys_1V[0]
                if mode & WRITE_LOG:
                    transfers = ws.scalars[TRANSFERS]
                    counts_C[chain] = find_path(
                        tab, log, transfers, t, new_devices_U, paths_CN3[chain]
                    )
    return made, best_ns
