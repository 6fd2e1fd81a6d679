"""Problem and costs, ready for the compiled engine; shared by runtime and scorer."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from doppler.core.costs import Costs
from doppler.core.problem import Problem
from simulator.engine.jit import MIB, NO_PENALTY
from simulator.engine.kernel import run_plans
from simulator.engine.limits import (
    check_integers,
    check_products,
    check_run,
    check_scaled,
    largest_permille,
    op_horizon_ns,
    transfer_horizon_ns,
)
from simulator.engine.packed import Packed
from simulator.engine.tables import Int64, Tables, build_tables
from simulator.engine.workspace import Log, Workspace, make_log, make_workspace

Holds = Sequence[tuple[int, int]]


class Engine:
    """Tables of one problem and calls of the kernel with a workspace each.

    Attributes:
        tables: The arrays of the problem.

    Raises:
        ConfigError: If a time, a number of bytes or a product of them does not fit in 63 bits.
    """

    def __init__(self, problem: Problem, costs: Costs) -> None:
        check_integers(problem, costs)
        self.tables: Tables = build_tables(problem, costs)
        check_products(problem, self.tables)
        self._graph = problem.graph
        self._ops_ns = float(op_horizon_ns(self.tables).sum())
        self._transfers_ns = transfer_horizon_ns(self.tables)
        self._packed = Packed(self.tables)
        self._edge_pairs = {(edge.src, edge.dst) for edge in problem.graph.edges}

    def check_run(
        self,
        iterations: int,
        durations_BIV: Int64 | None = None,
        penalty_ns_per_mib: int | None = None,
    ) -> None:
        """Checks that runs of so many iterations, with such durations, stay in their bits.

        Args:
            iterations: Iterations of one run.
            durations_BIV: Durations in place of the costs; one row stands for all iterations.
            penalty_ns_per_mib: What a MiB above a memory limit costs.

        Raises:
            ConfigError: Names what overflows.
        """
        ops_ns = iterations * self._ops_ns
        if durations_BIV is not None and durations_BIV.size:
            check_scaled(self._graph, self.tables, durations_BIV.max(axis=(0, 1)))
            longest_IV = durations_BIV.max(axis=0) * (largest_permille(self.tables) / 1000.0)
            dispatch = float(self.tables.dispatch_ns.max()) * longest_IV.size
            ops_ns = (float(longest_IV.sum()) + dispatch) * iterations / len(longest_IV)
        horizon_ns = ops_ns + iterations * self._transfers_ns
        if penalty_ns_per_mib:
            most = float(self.most_bytes(iterations)) * self.tables.num_devices
            horizon_ns += most / MIB * penalty_ns_per_mib
        check_run(self._graph, self.tables, iterations, horizon_ns)

    def hold_rows(self, holds: Holds) -> Int64:
        """Returns int64[H, 3]: before, after, 1 if no edge gives the pair its credit already."""
        seen = set(self._edge_pairs)
        rows: list[tuple[int, int, int]] = []
        for pair in holds:
            rows.append((*pair, int(pair not in seen)))
            seen.add(pair)
        return np.array(rows, np.int64).reshape(-1, 3)

    def most_bytes(self, iterations: int) -> int:
        """Returns a bound of the bytes that any plan can need on any device.

        A device holds at most the versions of the iterations in flight, the one that is made, and
        the initial ones.
        """
        tables = self.tables
        versions = min(iterations, tables.window + 2) + tables.tensor_distance
        return int(
            (tables.tensor_bytes * versions).sum()
            + tables.group_state.sum()
            + tables.resident_bytes.sum()
        )


class Kernel(NamedTuple):
    """Arguments of `kernel.run_plans` that stay the same from plan to plan, for compiled searches.

    Attributes:
        tables, workspace, log: Packed records.
        base: A second log: that of the run whose states are saved.
        marks: How many of its states are saved; 0 = none.
        iterations, mode, penalty: As `run_plans` takes them.
        stops_early: True if a run above its bound may be stopped.
    """

    tables: Any
    workspace: Any
    log: Any
    base: Any
    marks: int
    iterations: int
    mode: int
    penalty: int
    stops_early: bool


class Lane:
    """One workspace and log with the kernel's calls; never used by two threads at once."""

    def __init__(
        self,
        engine: Engine,
        iterations: int,
        *,
        num_holds: int = 0,
        memory: bool = False,
        recurrence: bool = False,
        noise: bool = False,
        traced: bool = False,
        marks: int = 0,
    ) -> None:
        tables = engine.tables
        engine.check_run(iterations)
        self.workspace: Workspace = make_workspace(
            tables, iterations, num_holds, memory, recurrence, noise, marks
        )
        self.log: Log = make_log(tables, iterations if traced else 0)
        # Compiled code sees a packed record as the named tuple that it was made of.
        self._tables: Any = engine._packed
        self._workspace: Any = Packed(self.workspace)
        self._log: Any = Packed(self.log)
        self.base: Log = make_log(tables, iterations if marks else 0)
        self._base: Any = Packed(self.base)
        self._iterations = iterations
        self._marks = marks

    def kernel(self, mode: int, penalty_ns_per_mib: int | None, *, stops_early: bool) -> Kernel:
        """Returns what compiled code needs to run plans in this lane."""
        penalty = NO_PENALTY if penalty_ns_per_mib is None else penalty_ns_per_mib
        return Kernel(
            self._tables,
            self._workspace,
            self._log,
            self._base,
            self._marks,
            self._iterations,
            mode,
            penalty,
            stops_early,
        )

    def run(
        self,
        placements_BV: Int64,
        priorities_BV: Int64,
        bounds_B: Int64,
        mode: int,
        out_B: Int64,
        holds: tuple[Int64, Int64] | None = None,
        durations_BIV: Int64 | None = None,
        penalty_ns_per_mib: int | None = None,
    ) -> None:
        """Fills `out_B` (see `kernel.run_plans`).

        Args:
            placements_BV: Devices per plan, or one plan for all rows of `out_B`.
            priorities_BV: Priorities of the same plans.
            bounds_B: Bound per row.
            mode: Sum of the kernel's mode flags.
            out_B: Results.
            holds: Rows of `hold_rows` of all plans, and where each plan's rows start.
            durations_BIV: Durations in place of the costs; one row stands for all iterations.
            penalty_ns_per_mib: What a MiB above a memory limit costs; None = no such plan fits.
        """
        if holds is None:
            holds = np.zeros((0, 3), np.int64), np.zeros(len(placements_BV) + 1, np.int64)
        if durations_BIV is None:
            durations_BIV = np.zeros((0, 0, 0), np.int64)
        run_plans(
            self._tables,
            self._workspace,
            self._log,
            placements_BV,
            priorities_BV,
            *holds,
            durations_BIV,
            bounds_B,
            self._iterations,
            mode,
            NO_PENALTY if penalty_ns_per_mib is None else penalty_ns_per_mib,
            out_B,
        )
