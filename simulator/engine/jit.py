"""Decorators and constants that all parts of the compiled engine share."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic

from doppler.core.runtime import INFEASIBLE_NS
from simulator.machine_code import cached

IDLE = np.int64((1 << 63) - 1)
INFEASIBLE = np.int64(INFEASIBLE_NS)
BLOCKED_PLAN = -IDLE
FREE, COPYING = -1, -2

# What a run ends with.
DONE, ABOVE_BOUND, NO_MEMORY, NO_LINK_FOR_PAIR, BLOCKED = 0, 1, 2, 3, 4

# What a run does beside simulating.
COUNT_BYTES, WRITE_LOG, FIND_PERIOD, GIVE_PERIOD, WHERE_TIGHT = 1, 2, 4, 8, 16
NO_PENALTY = -1
MIB = 1 << 20

# Indices of Workspace.scalars; the first NUM_RESET are zeroed before each run.
NOW, ROUND, ACTIVE, REMAINING, CREDITS, SENT, TOUCHED, STARTED, DIRTY, FREE_RECORD = range(10)
FRONTIER, FIRST_START, LAST_END, STAMP, TRANSFERS, LIMITED = range(10, 16)
PERIOD_NS, PERIOD_ITERATIONS, STATES, RECORDS, NUM_RESET = range(16, 21)
ITERATIONS, MEMORY, TRACED, HOLDS, NOISE, FINDS_PERIOD, SEEN, CODE, MAY_OVERFLOW = range(21, 30)

_F = TypeVar("_F", bound=Callable[..., Any])


def entry(function: _F) -> _F:
    """Compiles a function that Python calls; the machine code is kept on disk."""
    return cached(error_model="numpy")(function)


def jit(function: _F) -> _F:
    """Compiles a function that only compiled code calls."""
    compiled = njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
    return cast(_F, compiled(function))


def inlined(function: _F) -> _F:
    """Compiles a small function of the hot path into every compiled function that calls it."""
    compiled = njit(
        nogil=True,
        error_model="numpy",
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
        forceinline=True,
    )
    return cast(_F, compiled(function))


@intrinsic  # type: ignore[untyped-decorator]
def trailing_zeros(_typing: Any, _word: Any) -> Any:  # noqa: D103
    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), codegen
