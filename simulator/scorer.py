"""Scores many plans of one problem with the compiled engine.

Legend: B plans, R replicas, I iterations, V ops.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

from doppler.core.costs import Costs
from doppler.core.errors import ConfigError, DeadlockError, PlanError
from doppler.core.plan import Plan, check_plan
from doppler.core.problem import Objective, Problem
from doppler.core.trace import MIN_PERIOD_ITERATIONS
from simulator.engine.jit import COUNT_BYTES, FIND_PERIOD, GIVE_PERIOD, IDLE
from simulator.engine.lanes import Engine, Lane
from simulator.engine.tables import Int64

DEFAULT_PERIOD_ITERATIONS = 40
CHUNKS_PER_THREAD = 4


class CompiledScorer:
    """The `Scorer` for search and learning: deterministic, and equal for every thread count.

    The makespan is that of one iteration. The period comes from the exact recurrence of the
    relative state, or, where there is none within `period_iterations`, from the second half of
    that many iterations.

    Attributes:
        problem, costs: What is scored.
        num_calls: Plans (and replicas) scored so far.

    Raises:
        ConfigError: If `threads` or `period_iterations` is too small, or the objective is a
            percentile, which needs replicas.
    """

    def __init__(
        self,
        problem: Problem,
        costs: Costs,
        threads: int = 1,
        period_iterations: int = DEFAULT_PERIOD_ITERATIONS,
    ) -> None:
        if threads < 1:
            raise ConfigError(f"threads is at least 1, and it is {threads}")
        if period_iterations < MIN_PERIOD_ITERATIONS:
            raise ConfigError(
                f"period_iterations is at least {MIN_PERIOD_ITERATIONS}, and it is "
                f"{period_iterations}"
            )
        if problem.objective is Objective.p95:
            raise ConfigError(
                "objective p95 is a percentile over replicas, and CompiledScorer scores one run: "
                "valid are makespan and period"
            )
        self.problem = problem
        self.costs = costs
        self.num_calls = 0
        is_period = problem.objective is Objective.period
        self._iterations = period_iterations if is_period else 1
        self._engine = Engine(problem, costs)
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self._lanes: dict[tuple[int, int, bool], list[Lane]] = {}
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
        return self._score(placements_BV, priorities_BV, bounds_B, None)

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
            np.array([plan.placement for plan in plans], np.int64),
            np.array([plan.priority for plan in plans], np.int64),
            bounds_B,
            (np.concatenate([np.zeros((0, 3), np.int64), *rows]), starts),
        )

    def score_replicas(
        self, placement: npt.ArrayLike, priority: npt.ArrayLike, duration_ns: npt.ArrayLike
    ) -> Int64:
        """Returns the objective of one plan under durations drawn outside, int64[R].

        Args:
            placement: Device per op, [V].
            priority: Priority per op, [V].
            duration_ns: int64[R, I, V]; with the makespan as objective all I iterations run, with
                the period at least 20 are needed.

        Raises:
            PlanError: If a shape is wrong or the placement is not legal.
        """
        durations = np.ascontiguousarray(duration_ns, np.int64)
        num_ops = self.problem.graph.num_ops
        if durations.ndim != 3 or durations.shape[2] != num_ops or durations.shape[1] < 1:
            raise PlanError(f"duration_ns is [R, I, {num_ops}], and it is {durations.shape}")
        replicas, iterations, _ = durations.shape
        if self._mode and iterations < MIN_PERIOD_ITERATIONS:
            raise PlanError(
                f"a period needs at least {MIN_PERIOD_ITERATIONS} iterations, and duration_ns has "
                f"{iterations}"
            )
        placements, priorities = self._plans(
            np.array([placement], np.int64), np.array([priority], np.int64)
        )
        out = np.zeros(replicas, np.int64)
        bounds = np.full(replicas, IDLE)
        mode = self._mode & GIVE_PERIOD

        def run(start: int, end: int, lane: Lane) -> None:
            rows = slice(start, end)
            lane.run(
                placements,
                priorities,
                bounds[rows],
                mode | self._memory_mode(iterations),
                out[rows],
                durations_BIV=durations[rows],
            )

        self._spread(run, replicas, (iterations, 0, True))
        return self._checked(out, placements, priorities)

    def _score(
        self,
        placements_BV: npt.ArrayLike,
        priorities_BV: npt.ArrayLike,
        bounds_B: npt.ArrayLike | None,
        holds: tuple[Int64, Int64] | None,
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
            lane.run(placements[rows], priorities[rows], bounds[rows], mode, out[rows], held)

        self._spread(run, count, (self._iterations, most_holds, False))
        return self._checked(out, placements, priorities)

    def _plans(
        self, placements_BV: npt.ArrayLike, priorities_BV: npt.ArrayLike
    ) -> tuple[Int64, Int64]:
        num_ops = self.problem.graph.num_ops
        placements = np.ascontiguousarray(placements_BV, np.int64)
        priorities = np.ascontiguousarray(priorities_BV, np.int64)
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
        return COUNT_BYTES if self._engine.most_bytes(iterations) > smallest else 0

    def _spread(
        self, run: Callable[[int, int, Lane], None], count: int, key: tuple[int, int, bool]
    ) -> None:
        """Runs chunks of rows, each with a lane that nobody else has meanwhile."""
        lanes = self._lanes.setdefault(key, [])
        while len(lanes) < self._threads:
            lanes.append(self._new_lane(*key))
        if self._pool is None or count < 2:
            run(0, count, lanes[0])
            return
        free: SimpleQueue[Lane] = SimpleQueue()
        for lane in lanes:
            free.put(lane)

        def chunk(start: int, end: int) -> None:
            lane = free.get()
            try:
                run(start, end, lane)
            finally:
                free.put(lane)

        edges = np.linspace(0, count, min(count, self._threads * CHUNKS_PER_THREAD) + 1).astype(int)
        for future in [
            self._pool.submit(chunk, int(start), int(end)) for start, end in pairwise(edges)
        ]:
            future.result()

    def _new_lane(self, iterations: int, num_holds: int, noise: bool) -> Lane:
        return Lane(
            self._engine,
            iterations,
            num_holds=num_holds,
            memory=self._memory_mode(iterations) != 0,
            recurrence=self._mode != 0 and not noise,
            noise=noise,
        )

    def _checked(self, out_B: Int64, placements_BV: Int64, priorities_BV: Int64) -> Int64:
        self.num_calls += len(out_B)
        if out_B.size and out_B.min() < 0:
            row = min(int(out_B.argmin()), len(placements_BV) - 1)
            plan = Plan(
                graph_digest=self.problem.graph.digest,
                cluster_digest=self.problem.cluster.digest,
                placement=tuple(map(int, placements_BV[row])),
                priority=tuple(map(int, priorities_BV[row])),
            )
            check_plan(self.problem, plan)
            raise DeadlockError(f"plan {row} of the batch ended with work left: {plan}")
        return out_B
