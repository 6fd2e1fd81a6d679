"""Scores many plans of one problem with the compiled engine.

Legend: B plans, R replicas, I iterations, V ops.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from doppler.core.costs import Costs
from doppler.core.errors import ConfigError, DeadlockError, PlanError
from doppler.core.plan import Plan, check_plan
from doppler.core.problem import Objective, Problem
from doppler.core.trace import MIN_PERIOD_ITERATIONS
from simulator.engine.jit import COUNT_BYTES, FIND_PERIOD, GIVE_PERIOD, IDLE, WHERE_TIGHT, WRITE_LOG
from simulator.engine.lanes import Engine, Holds, Kernel, Lane
from simulator.engine.limits import int64_array
from simulator.engine.tables import Int64
from simulator.runtime import SimPyRuntime

DEFAULT_PERIOD_ITERATIONS = 40
CHUNKS_PER_THREAD = 4
NUM_MARKS = 24  # states that a search keeps of the run it walks from
LARGEST_PENALTY = 1 << 42  # ns per MiB: more than an hour


class CompiledScorer:
    """The `Scorer` for search and learning: deterministic, and equal for every thread count.

    The makespan is that of one iteration. The period comes from the exact recurrence of the
    relative state, or, where there is none within `period_iterations`, from the second half of
    that many iterations.

    A plan that does not fit in memory scores `INFEASIBLE_NS`; with `memory_penalty_ns_per_mib` it
    scores its objective and that much for every MiB above the limits, so that a search can pass
    through such plans (`simulator.memory.overflow_penalty_ns` is the formula).

    Attributes:
        problem, costs: What is scored.
        num_calls: Plans, replicas and cost tables scored so far.

    Raises:
        ConfigError: If `threads` or `period_iterations` is too small, the penalty negative, a
            number too large for 63 bits, or the objective a percentile, which needs replicas.
    """

    def __init__(
        self,
        problem: Problem,
        costs: Costs,
        threads: int = 1,
        period_iterations: int = DEFAULT_PERIOD_ITERATIONS,
        memory_penalty_ns_per_mib: int | None = None,
    ) -> None:
        if threads < 1:
            raise ConfigError(f"threads is at least 1, and it is {threads}")
        if period_iterations < MIN_PERIOD_ITERATIONS:
            raise ConfigError(
                f"period_iterations is at least {MIN_PERIOD_ITERATIONS}, and it is "
                f"{period_iterations}"
            )
        penalty = memory_penalty_ns_per_mib
        if penalty is not None and not 0 <= penalty <= LARGEST_PENALTY:
            raise ConfigError(
                f"memory_penalty_ns_per_mib lies in [0, {LARGEST_PENALTY}], and it is {penalty}"
            )
        if problem.objective is Objective.p95:
            raise ConfigError(
                "objective p95 is a percentile over replicas and needs noise (ReplicaScorer); "
                "one run has a makespan or a period"
            )
        self.problem = problem
        self.costs = costs
        self.num_calls = 0
        is_period = problem.objective is Objective.period
        self._iterations = period_iterations if is_period else 1
        self._engine = Engine(problem, costs)
        self._penalty = penalty
        self._engine.check_run(self._iterations, penalty_ns_per_mib=penalty)
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None
        self._lanes: dict[tuple[int, int, bool, bool], list[Lane]] = {}
        self._searched: Lane | None = None
        self._mode = FIND_PERIOD | GIVE_PERIOD if is_period else 0

    def score(
        self,
        placements_BV: npt.ArrayLike,
        priorities_BV: npt.ArrayLike,
        bounds_B: npt.ArrayLike | None = None,
    ) -> Int64:
        """Returns makespan or period per plan in ns, int64[B] (see `doppler.core.runtime.Scorer`).

        Raises:
            PlanError: If a shape is wrong, or a device breaks a range, kind, pin or group.
        """
        return self._score(placements_BV, priorities_BV, bounds_B, None, ())

    def score_plans(self, plans: Sequence[Plan], bounds_B: npt.ArrayLike | None = None) -> Int64:
        """Returns the same as `score` for plans, their holds obeyed.

        Raises:
            PlanError: If a plan does not fit the problem.
        """
        for plan in plans:
            check_plan(self.problem, plan)
        rows = [self._engine.hold_rows(plan.holds) for plan in plans]
        starts = np.cumsum([0, *map(len, rows)])
        return self._score(
            int64_array([plan.placement for plan in plans], "placements"),
            int64_array([plan.priority for plan in plans], "priorities"),
            bounds_B,
            (np.concatenate([np.zeros((0, 3), np.int64), *rows]), starts),
            [plan.holds for plan in plans],
        )

    def score_replicas(
        self,
        placement: npt.ArrayLike,
        priority: npt.ArrayLike,
        duration_ns: npt.ArrayLike,
        holds: Holds = (),
    ) -> Int64:
        """Returns the objective of one plan under durations drawn outside, int64[R].

        Args:
            placement: Device per op, [V].
            priority: Priority per op, [V].
            duration_ns: int64[R, I, V]; with the makespan as objective all I iterations run, with
                the period at least 20 are needed.
            holds: Holds of the plan.

        Raises:
            PlanError: If a shape is wrong, a duration negative, or the plan is not legal.
            ConfigError: If the runs do not fit in 63 bits.
        """
        if holds:
            check_plan(
                self.problem,
                self._plan(
                    _integers(placement, "placement"), _integers(priority, "priority"), holds
                ),
            )
        durations = int64_array(duration_ns, "duration_ns")
        num_ops = self.problem.graph.num_ops
        if durations.ndim != 3 or durations.shape[2] != num_ops or durations.shape[1] < 1:
            raise PlanError(f"duration_ns is [R, I, {num_ops}], and it is {durations.shape}")
        _, iterations, _ = durations.shape
        if self._mode and iterations < MIN_PERIOD_ITERATIONS:
            raise PlanError(
                f"a period needs at least {MIN_PERIOD_ITERATIONS} iterations, and duration_ns has "
                f"{iterations}"
            )
        return self._score_durations(
            placement, priority, durations, holds, iterations, self._mode & GIVE_PERIOD
        )

    def score_costs(self, plan: Plan, costs: Sequence[Costs]) -> Int64:
        """Returns the objective of one plan under many cost tables, int64[K].

        The same numbers as one scorer per table would give.

        Args:
            plan: The plan, its holds obeyed.
            costs: Cost tables of the problem.

        Raises:
            PlanError: If the plan does not fit the problem.
            ConfigError: If a table does not fit in 63 bits.
        """
        check_plan(self.problem, plan)
        calls, out = self.num_calls, np.zeros(len(costs), np.int64)
        by_overheads: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
        for row, table in enumerate(costs):
            key = (table.slowdown_permille, table.dispatch_ns)
            by_overheads.setdefault(key, []).append(row)
        ops = range(self.problem.graph.num_ops)
        for rows in by_overheads.values():
            scorer = self._with_overheads(costs[rows[0]])
            op_ns = [[costs[row].op_ns[op][plan.placement[op]] for op in ops] for row in rows]
            out[rows] = scorer._score_durations(
                plan.placement,
                plan.priority,
                int64_array(op_ns, "op_ns")[:, None, :],
                plan.holds,
                self._iterations,
                self._mode,
            )
        self.num_calls = calls + len(costs)
        return out

    def kernel(self) -> Kernel:
        """What a compiled search hands to `simulator.engine.kernel.run_plans` itself, plan by plan.

        It counts its plans in `num_calls`, and uses the kernel in one thread at a time. Runs of one
        iteration write their log, which says what the makespan waited for.
        """
        mode = self._mode | self._memory_mode(self._iterations) | (0 if self._mode else WRITE_LOG)
        if self._searched is None:
            self._searched = Lane(
                self._engine,
                self._iterations,
                memory=bool(mode & COUNT_BYTES),
                recurrence=bool(mode & FIND_PERIOD),
                traced=bool(mode & WRITE_LOG),
                marks=NUM_MARKS if mode & WRITE_LOG else 0,
            )
        return self._searched.kernel(mode, self._penalty, stops_early=not self._mode)

    def _with_overheads(self, costs: Costs) -> "CompiledScorer":
        """This scorer, or one like it where slowdown or dispatch costs are others."""
        if (costs.slowdown_permille, costs.dispatch_ns) == (
            self.costs.slowdown_permille,
            self.costs.dispatch_ns,
        ):
            return self
        iterations = self._iterations if self._mode else DEFAULT_PERIOD_ITERATIONS
        return CompiledScorer(self.problem, costs, self._threads, iterations, self._penalty)

    def _score_durations(
        self,
        placement: npt.ArrayLike,
        priority: npt.ArrayLike,
        durations: Int64,
        holds: Holds,
        iterations: int,
        mode: int,
    ) -> Int64:
        """Scores one plan under int64[R, I, V] durations, or [R, 1, V] for all iterations."""
        if durations.min(initial=0) < 0:
            raise PlanError(f"times are at least 0 ns, and duration_ns has {durations.min()}")
        self._engine.check_run(iterations, durations, self._penalty)
        placements, priorities = self._plans(
            _integers(placement, "placement")[None], _integers(priority, "priority")[None]
        )
        rows_of_holds = self._engine.hold_rows(holds)
        replicas = len(durations)
        out, bounds = np.zeros(replicas, np.int64), np.full(replicas, IDLE)
        mode |= self._memory_mode(iterations)

        def run(start: int, end: int, lane: Lane) -> None:
            rows = slice(start, end)
            lane.run(
                placements,
                priorities,
                bounds[rows],
                mode,
                out[rows],
                (rows_of_holds, np.array([0, len(rows_of_holds)], np.int64)),
                durations[rows],
                self._penalty,
            )

        finds_period = bool(mode & FIND_PERIOD)
        self._spread(run, replicas, (iterations, len(rows_of_holds), True, finds_period))
        return self._checked(out, placements, priorities, [holds])

    def _score(
        self,
        placements_BV: npt.ArrayLike,
        priorities_BV: npt.ArrayLike,
        bounds_B: npt.ArrayLike | None,
        holds: tuple[Int64, Int64] | None,
        plan_holds: Sequence[Holds],
    ) -> Int64:
        placements, priorities = self._plans(placements_BV, priorities_BV)
        count = len(placements)
        out = np.zeros(count, np.int64)
        bounds = np.full(count, IDLE)
        if bounds_B is not None and not self._mode:
            bounds = np.ascontiguousarray(bounds_B, np.int64)
            if bounds.shape != (count,):
                raise PlanError(f"bounds has one entry per plan ({count}), and is {bounds.shape}")
        mode = self._mode | self._memory_mode(self._iterations)
        most_holds = int(np.diff(holds[1]).max(initial=0)) if holds else 0

        def run(start: int, end: int, lane: Lane) -> None:
            rows = slice(start, end)
            held = (holds[0], holds[1][start : end + 1]) if holds else None
            lane.run(
                placements[rows],
                priorities[rows],
                bounds[rows],
                mode,
                out[rows],
                held,
                penalty_ns_per_mib=self._penalty,
            )

        self._spread(run, count, (self._iterations, most_holds, False, self._mode != 0))
        return self._checked(out, placements, priorities, plan_holds)

    def _plans(
        self, placements_BV: npt.ArrayLike, priorities_BV: npt.ArrayLike
    ) -> tuple[Int64, Int64]:
        num_ops = self.problem.graph.num_ops
        placements = _integers(placements_BV, "placements")
        priorities = _integers(priorities_BV, "priorities")
        if placements.size == 0 and priorities.size == 0:
            return placements.reshape(0, num_ops), priorities.reshape(0, num_ops)
        for label, array in (("placements", placements), ("priorities", priorities)):
            if array.shape != (len(placements), num_ops):
                raise PlanError(
                    f"placements and priorities are [B, {num_ops}], and {label} is {array.shape}"
                )
        return placements, priorities

    def _memory_mode(self, iterations: int) -> int:
        """Bytes are counted only where some plan could overflow some device."""
        smallest = int(self._engine.tables.memory_limit.min())
        return COUNT_BYTES | WHERE_TIGHT if self._engine.most_bytes(iterations) > smallest else 0

    def _spread(
        self, run: Callable[[int, int, Lane], None], count: int, key: tuple[int, int, bool, bool]
    ) -> None:
        """Runs chunks of rows, each with a lane that nobody else has meanwhile."""
        lanes = self._lanes_for(key)
        if self._pool is None or count < 2:
            run(0, count, lanes[0])
            return
        edges = np.linspace(0, count, min(count, self._threads * CHUNKS_PER_THREAD) + 1).astype(int)
        chunks = deque(pairwise(edges.tolist()))

        def work(lane: Lane) -> None:
            while True:
                try:
                    start, end = chunks.popleft()
                except IndexError:
                    return
                run(start, end, lane)

        # The calling thread works too, so that one wake-up less is waited for.
        others = [self._pool.submit(work, lane) for lane in lanes[1 : self._threads]]
        work(lanes[0])
        for other in others:
            other.result()

    def _lanes_for(self, key: tuple[int, int, bool, bool]) -> list[Lane]:
        """One lane per thread for iterations, holds, noise and recurrence."""
        iterations, num_holds, noise, recurrence = key
        # Room for the next power of two, so that searches that add holds share their lanes.
        room = 1 << (num_holds - 1).bit_length() if num_holds else 0
        lanes = self._lanes.setdefault((iterations, room, noise, recurrence), [])
        while len(lanes) < self._threads:
            lanes.append(self._new_lane(iterations, room, noise, recurrence))
        return lanes

    def _new_lane(self, iterations: int, num_holds: int, noise: bool, recurrence: bool) -> Lane:
        return Lane(
            self._engine,
            iterations,
            num_holds=num_holds,
            memory=self._memory_mode(iterations) != 0,
            recurrence=recurrence,
            noise=noise,
        )

    def _plan(self, placement_V: Int64, priority_V: Int64, holds: Holds) -> Plan:
        return Plan(
            graph_digest=self.problem.graph.digest,
            cluster_digest=self.problem.cluster.digest,
            placement=tuple(placement_V.tolist()),
            priority=tuple(priority_V.tolist()),
            holds=tuple(holds),
        )

    def _checked(
        self,
        out_B: Int64,
        placements_BV: Int64,
        priorities_BV: Int64,
        holds_B: Sequence[Holds],
    ) -> Int64:
        self.num_calls += len(out_B)
        if out_B.size and out_B.min() < 0:
            row = min(int(out_B.argmin()), len(placements_BV) - 1)
            held = holds_B[row] if holds_B else ()
            plan = self._plan(placements_BV[row], priorities_BV[row], held)
            # The specification knows what waits for what, and raises.
            SimPyRuntime(self.costs).run(self.problem, plan, self._iterations)
            raise DeadlockError(f"plan {row} of the batch ended with work left: {plan}")
        return out_B


def _integers(values: npt.ArrayLike, what: str) -> Int64:
    """The values as contiguous int64; what is no integer is refused instead of cut off."""
    array = np.asarray(values)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise PlanError(f"{what} are integers, and these are {array.dtype}")
    return np.ascontiguousarray(array, np.int64)
