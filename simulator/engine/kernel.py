"""The compiled engine: the same model as `simulator/runtime.py`, with flat arrays.

Nothing is allocated during a run, and the result depends on the plan alone.
"""

from simulator.engine.jit import (
    ABOVE_BOUND,
    BLOCKED,
    BLOCKED_PLAN,
    CODE,
    COUNT_BYTES,
    DONE,
    FIND_PERIOD,
    FINDS_PERIOD,
    FIRST_START,
    FRONTIER,
    GIVE_PERIOD,
    IDLE,
    INFEASIBLE,
    ITERATIONS,
    LAST_END,
    LIMITED,
    MAY_OVERFLOW,
    MEMORY,
    MIB,
    NO_MEMORY,
    NO_PENALTY,
    NOISE,
    PERIOD_ITERATIONS,
    PERIOD_NS,
    REMAINING,
    STARTED,
    TOUCHED,
    TRACED,
    WHERE_TIGHT,
    WRITE_LOG,
    entry,
    inlined,
    jit,
)
from simulator.engine.ready_sets import push_ready
from simulator.engine.recurrence import state_recurs
from simulator.engine.reset import illegal_op, load_durations, load_plan, reset
from simulator.engine.rounds import complete, dispatch, fix_durations
from simulator.engine.tables import Int64, Tables
from simulator.engine.tails import fill_tails, may_overflow
from simulator.engine.transfers import start_transfers
from simulator.engine.workspace import Log, Workspace


@jit
def measure_memory(tab: Tables, ws: Workspace) -> bool:
    """Takes the peaks after a round; returns False if a device overflows."""
    fits = True
    for device in range(tab.num_devices):
        if ws.used[device] > ws.peak[device]:
            ws.peak[device] = ws.used[device]
            if ws.used[device] > tab.memory_limit[device]:
                fits = False
    return fits


@jit
def advance_frontier(ws: Workspace) -> int:
    """Records E_i for every iteration that is complete with all before it; returns how many."""
    advanced = 0
    iterations = ws.scalars[ITERATIONS]
    while ws.scalars[FRONTIER] < iterations and ws.iteration_left[ws.scalars[FRONTIER]] == 0:
        ws.ends[ws.scalars[FRONTIER]] = ws.scalars[LAST_END]
        ws.scalars[FRONTIER] += 1
        advanced += 1
    return advanced


@jit
def simulate(tab: Tables, ws: Workspace, log: Log, iterations: int, bound: int) -> int:
    """Runs the plan that lies in the workspace; returns how it ended."""
    if bound != IDLE:
        fill_tails(tab, ws)
    reset(tab, ws, iterations)
    push_first(tab, ws, log)
    while True:
        code = begin_round(tab, ws, log, bound)
        if code < 0:
            code = end_round(tab, ws, log)
        if code >= 0:
            return code


@jit
def push_first(tab: Tables, ws: Workspace, log: Log) -> None:
    """What needs nothing is ready at 0."""
    for op in range(tab.num_ops):
        if tab.runs[op] and ws.missing[0, op] == 0:
            push_ready(ws, log, op, 0)


@inlined
def begin_round(tab: Tables, ws: Workspace, log: Log, bound: int) -> int:
    """Phases (b) and (c): starts what can start now; returns how the run ended, or -1."""
    memory = ws.scalars[MEMORY]
    dispatch(tab, ws, log)
    if ws.scalars[STARTED] > 0:
        least = fix_durations(tab, ws, log, bound)
        if least >= 0:
            ws.scalars[LAST_END] = least + ws.scalars[FIRST_START]
            return ABOVE_BOUND
    if ws.scalars[TOUCHED] > 0:
        start_transfers(tab, ws)
    if memory and not measure_memory(tab, ws) and not ws.scalars[MAY_OVERFLOW]:
        return NO_MEMORY
    if advance_frontier(ws) > 0 and ws.scalars[LIMITED] == 0 and state_recurs(tab, ws):
        return DONE
    if ws.scalars[REMAINING] == 0 and not memory:
        return DONE
    return -1


@inlined
def end_round(tab: Tables, ws: Workspace, log: Log) -> int:
    """Phase (a) at the next time; returns how the run ended, or -1."""
    code = complete(tab, ws, log)
    if code == DONE and ws.scalars[REMAINING] > 0:
        return BLOCKED
    return code


@jit
def period(ws: Workspace, iterations: int) -> int:
    """Nanoseconds per iteration, rounded up: the recurrence, or the second half of the run."""
    time: int = ws.scalars[PERIOD_NS]
    count: int = ws.scalars[PERIOD_ITERATIONS]
    if count == 0:
        last, first = iterations - 1, (iterations - 1) // 2
        time, count = ws.ends[last] - ws.ends[first], last - first
    return (time + count - 1) // count


@jit
def overflow_penalty(tab: Tables, ws: Workspace, ns_per_mib: int) -> int:
    """Nanoseconds for the bytes above the limits of all devices, rounded up."""
    mib, rest = 0, 0  # apart, because the bytes of all devices together may leave 63 bits
    for device in range(tab.num_devices):
        over = max(ws.peak[device] - tab.memory_limit[device], 0)
        mib += over // MIB
        rest += over % MIB
    mib += rest // MIB
    return mib * ns_per_mib + (rest % MIB * ns_per_mib + MIB - 1) // MIB


@entry
def run_plans(
    tab: Tables,
    ws: Workspace,
    log: Log,
    places: Int64,
    priorities: Int64,
    holds: Int64,
    hold_start: Int64,
    durations: Int64,
    bounds: Int64,
    iterations: int,
    mode: int,
    penalty: int,
    out: Int64,
) -> None:
    """Runs plans one after the other and fills `out`.

    Args:
        tab: Tables of the problem.
        ws: Workspace of this thread.
        log: What traced runs write.
        places: int64[B, V], or one row for all.
        priorities: int64[B, V], or one row for all.
        holds: int64[H, 3], the rows of all plans (see `Engine.hold_rows`).
        hold_start: int64[B + 1], first row of each plan.
        durations: int64[B, N, V] in place of the costs, or [B, 1, V] for every iteration, or empty.
        bounds: int64[B]; a run stops when its makespan must exceed its bound (one iteration).
        iterations: Iterations to run.
        mode: Sum of COUNT_BYTES, WRITE_LOG, FIND_PERIOD, GIVE_PERIOD; WHERE_TIGHT beside
            COUNT_BYTES counts them only for plans that could overflow a device.
        penalty: Nanoseconds per MiB above the memory limits, or NO_PENALTY where such plans are
            infeasible.
        out: int64[B]: makespan or period, INFEASIBLE, BLOCKED_PLAN, or -1 - op for an op on an
            illegal device.
    """
    ws.scalars[ITERATIONS] = iterations
    ws.scalars[MEMORY], ws.scalars[TRACED] = mode & COUNT_BYTES, mode & WRITE_LOG
    ws.scalars[FINDS_PERIOD], ws.scalars[NOISE] = mode & FIND_PERIOD, durations.size
    ws.scalars[MAY_OVERFLOW] = 1 if penalty != NO_PENALTY else 0
    for row in range(out.size):
        plan = row if places.shape[0] > 1 else 0
        if plan == row:
            load_plan(tab, ws, places, priorities, holds, hold_start[row], hold_start[row + 1], row)
            bad = illegal_op(tab, ws)
        if bad >= 0:
            out[row] = -1 - bad
            continue
        if mode & WHERE_TIGHT:
            ws.scalars[MEMORY] = COUNT_BYTES if may_overflow(tab, ws, iterations) else 0
        if durations.size:
            load_durations(tab, ws, durations, iterations, row)
        ws.scalars[CODE] = simulate(tab, ws, log, iterations, bounds[row])
        out[row] = BLOCKED_PLAN if ws.scalars[CODE] == BLOCKED else INFEASIBLE
        if ws.scalars[CODE] == DONE and mode & GIVE_PERIOD:
            out[row] = period(ws, iterations)
        elif ws.scalars[CODE] == DONE or ws.scalars[CODE] == ABOVE_BOUND:
            # Where no op runs there is no first start.
            out[row] = ws.scalars[LAST_END] - min(ws.scalars[FIRST_START], ws.scalars[LAST_END])
        if ws.scalars[CODE] == DONE and ws.scalars[MEMORY] and penalty != NO_PENALTY:
            out[row] += overflow_penalty(tab, ws, penalty)
