"""Runs that save their states, and go on from a state that another run saved (see `saved.py`)."""

from typing import Any

import numpy as np

from simulator.engine.jit import (
    BLOCKED,
    BLOCKED_PLAN,
    FINDS_PERIOD,
    FIRST_START,
    IDLE,
    INFEASIBLE,
    ITERATIONS,
    LAST_END,
    MAY_OVERFLOW,
    MEMORY,
    NO_LINK_FOR_PAIR,
    NOISE,
    NOW,
    REMAINING,
    TRACED,
    WRITE_LOG,
    jit,
)
from simulator.engine.kernel import begin_round, end_round, push_first
from simulator.engine.reset import illegal_op, load_plan, reset
from simulator.engine.saved import least_of_started, next_time, restore, save
from simulator.engine.tables import Int64, Tables
from simulator.engine.tails import fill_tails
from simulator.engine.workspace import Log, Workspace


@jit
def run_saved(
    tab: Tables,
    ws: Workspace,
    log: Log,
    base: Log,
    places_1V: Int64,
    priorities_1V: Int64,
    bound: Any,
    row: int,
    rows_M: Int64,
    first: int,
) -> int:
    """Runs one plan for one iteration and saves its state at each mark from `first` on.

    Marks divide the ops that run in equal parts. Bytes are not counted; nothing else depends on
    them.

    Args:
        tab: Tables of the problem.
        ws: Workspace with room for states.
        log: What this run writes, from `row` on (`complete_log` adds what was before).
        base: Log of the run that saved `row`.
        places_1V: Device of each op.
        priorities_1V: Its priority.
        bound: The run stops when its makespan must exceed it; IDLE = never.
        row: State to go on from, saved before the plan's first effect; -1 = from the beginning.
        rows_M: Row of the state at each mark; a mark that the run does not reach has time IDLE.
        first: First mark that is saved.

    Returns:
        As `run_plans` writes it: the makespan, or any value above the bound.
    """
    ws.scalars[ITERATIONS], ws.scalars[TRACED] = 1, WRITE_LOG
    ws.scalars[MEMORY], ws.scalars[MAY_OVERFLOW] = 0, 0
    ws.scalars[FINDS_PERIOD], ws.scalars[NOISE] = 0, 0
    load_plan(tab, ws, places_1V, priorities_1V, np.empty((0, 3), np.int64), 0, 0, 0)
    bad = illegal_op(tab, ws)
    if bad >= 0:
        return -1 - bad
    if bound != IDLE:
        fill_tails(tab, ws)
        if row >= 0:
            least = least_of_started(tab, ws, base, row)
            if least > bound:
                return least
    reset(tab, ws, 1)
    num_run, marks, mark = ws.scalars[REMAINING], rows_M.size, first
    for later in range(first, marks):
        ws.saved[rows_M[later], NOW] = IDLE
    code = -1
    if row >= 0:
        restore(tab, ws, row)
        code = end_round(tab, ws, log)
    else:
        push_first(tab, ws, log)
    while code < 0:
        code = begin_round(tab, ws, log, bound)
        if code >= 0:
            break
        is_mark = mark < marks and is_due(ws, num_run, marks, mark)
        if is_mark and next_time(tab, ws) > ws.scalars[NOW]:
            while mark + 1 < marks and is_due(ws, num_run, marks, mark + 1):
                mark += 1
            save(tab, ws, rows_M[mark])
            mark += 1
        code = end_round(tab, ws, log)
    if code == BLOCKED:
        return int(BLOCKED_PLAN)
    if code == NO_LINK_FOR_PAIR:
        return int(INFEASIBLE)
    # Above the bound there is a last end, too; where no op runs there is no first start.
    return int(ws.scalars[LAST_END] - min(ws.scalars[FIRST_START], ws.scalars[LAST_END]))


@jit
def is_due(ws: Workspace, num_run: int, marks: int, mark: int) -> bool:
    """True once the ops before a mark have ended."""
    ended: int = num_run - ws.scalars[REMAINING]
    return ended * (marks + 1) >= (mark + 1) * num_run
