"""Problem and costs, ready for the compiled engine; shared by runtime and scorer."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from doppler.core.costs import Costs
from doppler.core.problem import Problem
from simulator.engine.kernel import run_plans
from simulator.engine.packed import Packed
from simulator.engine.tables import Int64, Tables, build_tables
from simulator.engine.workspace import Log, Workspace, make_log, make_workspace

Holds = Sequence[tuple[int, int]]


class Engine:
    """Tables of one problem and calls of the kernel with a workspace each.

    Attributes:
        tables: The arrays of the problem.
    """

    def __init__(self, problem: Problem, costs: Costs) -> None:
        self.tables: Tables = build_tables(problem, costs)
        self._packed = Packed(self.tables)
        self._edge_pairs = {(edge.src, edge.dst) for edge in problem.graph.edges}

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
    ) -> None:
        tables = engine.tables
        self.workspace: Workspace = make_workspace(
            tables, iterations, num_holds, memory, recurrence, noise
        )
        self.log: Log = make_log(tables, iterations if traced else 0)
        # Compiled code sees a packed record as the named tuple that it was made of.
        self._tables: Any = engine._packed
        self._workspace: Any = Packed(self.workspace)
        self._log: Any = Packed(self.log)
        self._iterations = iterations

    def run(
        self,
        placements_BV: Int64,
        priorities_BV: Int64,
        bounds_B: Int64,
        mode: int,
        out_B: Int64,
        holds: tuple[Int64, Int64] | None = None,
        durations_BIV: Int64 | None = None,
    ) -> None:
        """Fills `out_B` (see `kernel.run_plans`).

        Args:
            placements_BV: Devices per plan, or one plan for all rows of `out_B`.
            priorities_BV: Priorities of the same plans.
            bounds_B: Bound per row.
            mode: Sum of the kernel's mode flags.
            out_B: Results.
            holds: Rows of `hold_rows` of all plans, and where each plan's rows start.
            durations_BIV: Durations in place of the costs.
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
            out_B,
        )
