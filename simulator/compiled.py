"""The compiled engine as a `Runtime`: the trace of `runtime.py`, about two orders faster."""

import numpy as np

from doppler.core.costs import Costs
from doppler.core.errors import ConfigError
from doppler.core.plan import Plan, check_plan
from doppler.core.problem import Problem
from doppler.core.trace import OpSpan, Period, Trace, TransferSpan, half_period, sort_spans
from simulator.durations import check_durations
from simulator.engine.jit import (
    BLOCKED_PLAN,
    COUNT_BYTES,
    FIND_PERIOD,
    GIVE_PERIOD,
    IDLE,
    PERIOD_ITERATIONS,
    PERIOD_NS,
    TRANSFERS,
    WRITE_LOG,
)
from simulator.engine.lanes import Engine, Lane
from simulator.engine.limits import int64_array
from simulator.engine.tables import Int64
from simulator.memory import OverLimit
from simulator.runtime import SimPyRuntime


class CompiledRuntime:
    """Runs plans in simulated time with the costs of one problem.

    Attributes:
        costs: Times of the problem's ops.
        over_limit: What happens where a device's memory does not suffice.
    """

    def __init__(self, costs: Costs, over_limit: OverLimit = OverLimit.error) -> None:
        self.costs = costs
        self.over_limit = over_limit
        self._problem: Problem | None = None
        self._engine: Engine | None = None

    def run(
        self,
        problem: Problem,
        plan: Plan,
        iterations: int,
        duration_ns: Int64 | None = None,
    ) -> Trace:
        """Returns the trace of `iterations` iterations.

        Args:
            problem: What is run; the costs belong to it.
            plan: Placement, priorities and holds.
            iterations: At least 1.
            duration_ns: int64[I, V] in place of the costs, drawn outside.

        Raises:
            PlanError: If the plan does not fit the problem, or `duration_ns` has another shape.
            ConfigError: If `iterations` is below 1, or a time or key leaves 63 bits.
            CapacityError: If a device holds more than its limit (see `over_limit`).
            DeadlockError: If nothing is in flight and work is left.
        """
        lane = self._run(problem, plan, iterations, COUNT_BYTES | WRITE_LOG, duration_ns)
        if (
            self.over_limit is OverLimit.error
            and (lane.workspace.peak > self._engine_for(problem).tables.memory_limit).any()
        ):
            # The specification finds the op and the moment.
            return SimPyRuntime(self.costs).run(problem, plan, iterations, _rows(duration_ns))
        log, num_ops = lane.log, problem.graph.num_ops
        tables = self._engine_for(problem).tables
        latest = [
            [
                edge
                for edge in range(tables.in_ptr[op], tables.in_ptr[op + 1])
                if tables.in_latest[edge]
            ]
            for op in range(num_ops)
        ]
        spans = [
            OpSpan(
                op=op,
                iteration=iteration,
                device=plan.placement[op],
                stream=int(log.op_stream[iteration, op]),
                ready_ns=int(log.op_ready[iteration, op]),
                start_ns=int(log.op_start[iteration, op]),
                end_ns=int(log.op_end[iteration, op]),
                versions=tuple(int(log.versions[iteration, edge]) for edge in latest[op]),
            )
            for iteration in range(iterations)
            for op in range(num_ops)
            if tables.runs[op]
        ]
        rows = log.transfers[: lane.workspace.scalars[TRANSFERS]].tolist()
        transfers = [
            TransferSpan(
                op=int(tables.tensor_op[tensor]),
                output=int(tensor - tables.tensor_start[tables.tensor_op[tensor]]),
                iteration=iteration,
                src=src,
                dst=dst,
                request_ns=request,
                start_ns=start,
                release_ns=release,
                arrival_ns=arrival,
            )
            for tensor, iteration, src, dst, request, start, release, arrival in rows
        ]
        op_spans, transfer_spans = sort_spans(spans, transfers)
        return Trace(
            graph_digest=plan.graph_digest,
            cluster_digest=plan.cluster_digest,
            source=plan.source,
            runtime="compiled",
            iterations=iterations,
            op_spans=op_spans,
            transfers=transfer_spans,
            peak_bytes=tuple(int(peak) for peak in lane.workspace.peak),
        )

    def period(self, problem: Problem, plan: Plan, iterations: int) -> Period:
        """Returns the steady-state period: exact if the relative state recurs in `iterations`.

        Raises:
            PlanError: If the plan does not fit the problem.
            DopplerError: If nothing recurs and there are fewer than 20 iterations.
        """
        lane = self._run(problem, plan, iterations, FIND_PERIOD | GIVE_PERIOD, None)
        scalars = lane.workspace.scalars
        if scalars[PERIOD_ITERATIONS]:
            return Period(int(scalars[PERIOD_NS]), int(scalars[PERIOD_ITERATIONS]), exact=True)
        return half_period([int(end) for end in lane.workspace.ends])

    def _engine_for(self, problem: Problem) -> Engine:
        if self._engine is None or self._problem is not problem:
            self._engine, self._problem = Engine(problem, self.costs), problem
        return self._engine

    def _run(
        self, problem: Problem, plan: Plan, iterations: int, mode: int, durations: Int64 | None
    ) -> Lane:
        check_plan(problem, plan)
        if iterations < 1:
            raise ConfigError(f"iterations is at least 1, and it is {iterations}")
        engine = self._engine_for(problem)
        given = None
        if durations is not None:
            check_durations(durations, iterations, problem.graph.num_ops)
            given = int64_array(durations, "duration_ns")[None]
            engine.check_run(iterations, given)
        lane = Lane(
            engine,
            iterations,
            num_holds=len(plan.holds),
            memory=bool(mode & COUNT_BYTES),
            recurrence=bool(mode & FIND_PERIOD),
            noise=durations is not None,
            traced=bool(mode & WRITE_LOG),
        )
        rows = engine.hold_rows(plan.holds)
        out = np.zeros(1, np.int64)
        lane.run(
            np.array([plan.placement], np.int64),
            int64_array([plan.priority], "priorities"),
            np.full(1, IDLE),
            mode,
            out,
            (rows, np.array([0, len(rows)], np.int64)),
            given,
            penalty_ns_per_mib=0,  # a full device is told of, and the run goes on
        )
        if out[0] == BLOCKED_PLAN:
            # The specification knows what waits for what, and raises.
            SimPyRuntime(self.costs).run(problem, plan, iterations, _rows(durations))
        return lane


def _rows(duration_ns: Int64 | None) -> list[list[int]] | None:
    return None if duration_ns is None else np.asarray(duration_ns).tolist()
