# ruff: noqa: N815 - shape suffixes (devices_U) are upper case
"""Annealing chains in one compiled loop: moves, simulator and acceptance, no Python between.

Where the runs write their log, most moves are those on the critical path of the chain's plan, and
the run of a changed plan goes on from a state of the chain's own run: the last one before the
first effect of the change. What it returns is what the whole run would (`simulator.engine.saved`).

Arrays: `C` chains, `U` units, `V` ops, `N` critical moves, `M` saved states.
"""

from typing import Any, NamedTuple

import numpy as np

from doppler.planners.anneal_core import MoveTables, States, uniform
from doppler.planners.anneal_critical import SHARE, find_path, propose_critical
from doppler.planners.anneal_moves import place_ops, propose_one, slack
from doppler.planners.mask import Ints
from simulator.engine.jit import COUNT_BYTES, IDLE, NOW, TRANSFERS, WRITE_LOG, entry, jit
from simulator.engine.kernel import run_plans
from simulator.engine.saved import complete_log, first_effect
from simulator.engine.saved_run import run_saved
from simulator.engine.tails import may_overflow


class Trial(NamedTuple):
    """A changed plan.

    Attributes:
        devices_U: Device per unit.
        keys_1V: Priority per op.
        placement_1V: Device per op.
    """

    devices_U: Ints
    keys_1V: Ints
    placement_1V: Ints


@entry
def temperature(hot: float, cold: float, progress: float) -> float:
    """Falls geometrically from `hot` to `cold` as progress goes from 0 to 1."""
    return float(hot * (cold / hot) ** progress)


@jit
def run_whole(
    tab: Any, ws: Any, log: Any, iterations: int, mode: int, penalty: int, trial: Trial, bound: Any
) -> int:
    """Runs a plan as `run_plans` does."""
    bound_1, out_1 = np.empty(1, np.int64), np.empty(1, np.int64)
    bound_1[0] = bound
    run_plans(
        tab,
        ws,
        log,
        trial.placement_1V,
        trial.keys_1V,
        np.empty((0, 3), np.int64),
        np.zeros(2, np.int64),
        np.empty((0, 0, 0), np.int64),
        bound_1,
        iterations,
        mode,
        penalty,
        out_1,
    )
    return int(out_1[0])


@jit
def propose_any(
    t: MoveTables,
    state: np.uint64,
    moves_N3: Ints,
    count: int,
    devices_U: Ints,
    keys_V: Ints,
    trial: Trial,
) -> np.uint64:
    """Writes one legal move of a plan into the trial; most are critical where any are known."""
    if count > 0:
        state, u = uniform(state)
        if u < SHARE:
            trial.devices_U[:] = devices_U
            trial.keys_1V[0] = keys_V
            state, moved = propose_critical(
                t, state, moves_N3, count, trial.devices_U, trial.keys_1V[0]
            )
            if moved:
                place_ops(t, trial.devices_U, trial.placement_1V[0])
                return state
    return propose_one(
        t, state, devices_U, keys_V, trial.devices_U, trial.keys_1V[0], trial.placement_1V[0]
    )


@entry
def walk(
    tab: Any,
    ws: Any,
    log: Any,
    base: Any,
    marks: int,
    iterations: int,
    mode: int,
    penalty: int,
    stops_early: bool,
    t: MoveTables,
    states_C: States,
    values_C: Ints,
    devices_CU: Ints,
    keys_CV: Ints,
    moves_N3: Ints,
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

    One chain after the other, so that the states of one run are kept at a time; a chain's plan is
    run once more when its turn comes, which is no call. Where calls run out the first chains have
    one step more than the others.

    Returns (calls made, best value met); the arrays `best` hold the best plan if one of the walk is
    below `best_ns`, of several the one of the first step. A value below 0 is the code of a plan
    that the engine refuses, and ends the walk.

    Args:
        tab: See `simulator.engine.lanes.Kernel`, as the next eight.
        ws: Workspace.
        log: Log.
        base: Log of the chain's plan.
        marks: States that are saved of a run.
        iterations: Iterations of one run.
        mode: Mode flags.
        penalty: Of memory.
        stops_early: True if a run above its bound may be stopped.
        t: Moves.
        states_C: Generator of each chain.
        values_C: Value of each chain's plan.
        devices_CU: Its devices.
        keys_CV: Its keys.
        moves_N3: Scratch for the critical moves of one plan.
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
    trial = Trial(
        devices_CU[0].copy(), np.empty((1, num_ops), np.int64), np.empty((1, num_ops), np.int64)
    )
    placement_V = np.empty(num_ops, np.int64)
    is_logged = mode & WRITE_LOG
    if not is_logged or not stops_early:
        marks = 0
    rows_M, spare_M = np.arange(marks), np.arange(marks, 2 * marks)
    each, more = divmod(calls, num_chains)
    made, best_step, num_moves = 0, -1, 0
    for chain in range(num_chains):
        end = min(last_step, first_step + each + (1 if chain < more else 0))
        if is_logged and end > first_step:
            trial.devices_U[:] = devices_CU[chain]
            trial.keys_1V[0] = keys_CV[chain]
            place_ops(t, trial.devices_U, trial.placement_1V[0])
            placement_V[:] = trial.placement_1V[0]
            if marks > 0:
                run_saved(
                    tab, ws, log, base, trial.placement_1V, trial.keys_1V, IDLE, -1, rows_M, 0
                )
            else:
                run_whole(tab, ws, log, iterations, mode, penalty, trial, IDLE)
            num_moves = find_path(tab, log, ws.scalars[TRANSFERS], t, trial.devices_U, moves_N3)
            if marks > 0:
                log, base = base, log
        for step in range(first_step, end):
            heat = temperature(hot, cold, step / max(1, steps - 1))
            states_C[chain], room_ns = slack(states_C[chain], heat)
            limit = values_C[chain] + room_ns
            states_C[chain] = propose_any(
                t, states_C[chain], moves_N3, num_moves, devices_CU[chain], keys_CV[chain], trial
            )
            row, first = -1, 0
            if marks > 0:
                effect = first_effect(
                    tab, base, placement_V, keys_CV[chain], trial.placement_1V[0], trial.keys_1V[0]
                )
                for mark in range(marks):
                    if ws.saved[rows_M[mark], NOW] < effect:
                        row, first = rows_M[mark], mark + 1
                value = run_saved(
                    tab,
                    ws,
                    log,
                    base,
                    trial.placement_1V,
                    trial.keys_1V,
                    limit,
                    row,
                    spare_M,
                    first,
                )
                # Bytes change no time: they are counted only where the plan would be accepted.
                if mode & COUNT_BYTES and 0 <= value <= limit and may_overflow(tab, ws, iterations):
                    value = run_whole(tab, ws, log, iterations, mode, penalty, trial, IDLE)
            else:
                bound = limit if stops_early else IDLE
                value = run_whole(tab, ws, log, iterations, mode, penalty, trial, bound)
            made += 1
            if value < best_ns or (value == best_ns and step < best_step):
                best_ns, best_step = value, step
                best_placement_V[:] = trial.placement_1V[0]
                best_keys_V[:] = trial.keys_1V[0]
                if value < 0:
                    return made, best_ns
            if value <= limit:
                values_C[chain] = value
                devices_CU[chain] = trial.devices_U
                keys_CV[chain] = trial.keys_1V[0]
                placement_V[:] = trial.placement_1V[0]
                if row >= 0:
                    complete_log(tab, ws, base, log, row)
                for mark in range(first, marks):
                    rows_M[mark], spare_M[mark] = spare_M[mark], rows_M[mark]
                if is_logged:
                    num_moves = find_path(
                        tab, log, ws.scalars[TRANSFERS], t, trial.devices_U, moves_N3
                    )
                if marks > 0:
                    log, base = base, log
    return made, best_ns
