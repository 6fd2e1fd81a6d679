# ruff: noqa: N815 - shape suffixes (device_U) are upper case
"""List schedules of a problem: one preparation, many compiled runs.

All rules take transfers at their uncontended time and see one iteration (edges of distance 0); the
scorer has the last word.
"""

import enum
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from doppler.core.costs import Costs
from doppler.core.problem import Problem
from doppler.graphs.levels import (
    b_levels,
    mean_op_ns,
    mean_transfer_ns,
    next_on_longest_path,
    optimistic_costs,
    t_levels,
    upward_ranks,
)
from doppler.planners.list_core import (
    ALL_READY,
    EARLIEST_START,
    INSERTION,
    decode_keys,
    place,
    predecessors_first,
    ready_order,
)
from doppler.planners.list_parts import FIT_ALL, FIT_LIVE, FIT_NONE, PLACED
from doppler.planners.list_queue import assign_when_ready
from doppler.planners.mask import NO_UNIT, Bools, Ints, Mask, make_mask
from doppler.planners.tables import Floats, ListTables, make_tables

_NOTHING: Floats = np.zeros((0, 0))

# What CPoP adds for ops of the critical path elsewhere: more than any schedule takes.
OFF_PATH_NS = 1e15


class Fit(enum.IntEnum):
    """Which tensors a list scheduler keeps within each device's memory.

    `live`: those that an op not yet placed will read, close to what the runtime holds.
    `all`: all that were ever there, which is safe.
    """

    none = FIT_NONE
    live = FIT_LIVE
    all = FIT_ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What a list scheduler makes.

    Attributes:
        devices_U: Device per unit.
        priority_V: Distinct priorities, larger first; 0 for ops without a device.
        makespan_ns: Length by the scheduler's own account, links without contention.
    """

    devices_U: Ints
    priority_V: Ints
    makespan_ns: float


@dataclass(frozen=True, kw_only=True, eq=False)
class ListScheduler:
    """Runs list schedulers on one problem.

    Where a rule runs into a dead end (state or links leave an op no device), the units of the dead
    end are placed by the mask's search first, and the rule places the rest.

    Attributes:
        problem, costs: What is placed.
        mask: Legal placements.
        tables: The problem as arrays.
        ranks_V: Upward rank per op.
        levels_V: b-level per op, mean times and mean transfers.
        position_V: Place of each op in topological order.
        versions: Versions of a tensor that may be in memory at once.
    """

    problem: Problem
    costs: Costs
    mask: Mask
    tables: ListTables
    ranks_V: Floats
    levels_V: Floats
    position_V: Ints
    versions: int

    def heft(
        self, ranks_V: Floats | None = None, *, insertion: bool = True, fit: Fit = Fit.none
    ) -> Schedule:
        """Returns HEFT's schedule: by rank, earliest finish.

        Args:
            ranks_V: Order, largest first; None = upward ranks. Predecessors go first anyway.
            insertion: Use idle gaps; else append.
            fit: What a device's memory must hold together.

        Raises:
            CapacityError, PlanError: If there is no legal placement.

        Source: Topcuoglu et al. 2002.
        """
        order = self.order(self.ranks_V if ranks_V is None else ranks_V)
        return self.place_in_order(order, insertion=insertion, fit=fit)

    def place_in_order(
        self, order: Ints, *, insertion: bool = True, fit: Fit = Fit.none
    ) -> Schedule:
        """Returns HEFT's schedule of a given order, predecessors first; see `heft`."""
        return self._place(order, rule=INSERTION if insertion else 0, fit=fit)

    def peft(self, fit: Fit = Fit.none) -> Schedule:
        """Returns PEFT's schedule: ready op of largest mean OCT, least finish + OCT, insertion.

        Source: Arabnejad and Barbosa 2014.
        """
        table_VD = optimistic_costs(self.problem, self.costs)
        order = self._ready_order(table_VD.mean(axis=1))
        return self._place(order, extra_VD=table_VD, rule=INSERTION, fit=fit)

    def cpop(self, fit: Fit = Fit.none) -> Schedule:
        """Returns CPoP's schedule: ready op of largest b-level + t-level, insertion.

        The ops of the critical path go to the one device that runs them fastest (those that may not
        or cannot go there choose freely), all others to the earliest finish.

        Source: Topcuoglu et al. 2002, section 4.2.
        """
        path = self._critical_path_ops()
        times_PD = self.tables.times_VD[path]
        allowed_PD = self.mask.allowed_UD[self.mask.unit_V[path]]
        barred_D = (~allowed_PD).sum(axis=0)
        device = int(np.lexsort(((times_PD * allowed_PD).sum(axis=0), barred_D))[0])
        extra_VD = np.zeros_like(self.tables.times_VD)
        extra_VD[path] = OFF_PATH_NS
        extra_VD[path, device] = 0.0
        order = self._ready_order(self.levels_V + t_levels(self.problem.graph, *self._means))
        return self._place(order, extra_VD=extra_VD, rule=INSERTION, fit=fit)

    def etf(self, fit: Fit = Fit.none) -> Schedule:
        """Returns ETF's schedule: the (ready op, device) pair that can start first.

        Ties go to the larger b-level without communication.

        Source: Hwang et al. 1989; with `fit` it is m-ETF of Baechi (arXiv 2301.08695).
        """
        levels_V = b_levels(self.problem.graph, self._means[0])
        tie_VD = np.ascontiguousarray(
            np.broadcast_to(-levels_V[:, None], self.tables.times_VD.shape)
        )
        order = self.order(levels_V)
        return self._place(order, tie_VD=tie_VD, rule=EARLIEST_START | ALL_READY, fit=fit)

    def critical_path(self, rng: np.random.Generator) -> Schedule:
        """Returns one run of the critical-path rule: largest b-level, earliest start, random ties.

        Source: Kwok and Ahmad 1999.
        """
        order = ready_order(self.tables, self.levels_V, rng.random(len(self.levels_V)))
        tie_VD = rng.random(self.tables.times_VD.shape)
        return self._place(order, tie_VD=tie_VD, rule=EARLIEST_START, fit=Fit.none)

    def earliest_start(self, fit: Fit = Fit.none) -> Schedule:
        """Returns dask's schedule: depth first, least occupancy + transfer of what is missing.

        Source: dask.distributed's scheduler, `decide_worker` and `worker_objective`.
        """
        return self._assign(self.depth_first(), run_time=False, fit=fit)

    def dmdas(self, fit: Fit = Fit.none) -> Schedule:
        """Returns StarPU's dmdas: by upward rank, least queue + transfer + run time.

        Source: StarPU handbook, scheduling policies `dm`, `dmda`, `dmdas`.
        """
        return self._assign(self._priority(self.order(self.ranks_V)), run_time=True, fit=fit)

    def depth_first(self) -> Ints:
        """Returns priorities by which an op runs soon after what it reads was made, int64[V].

        So it finds its operands in a cache. Ops without a device have 0.
        """
        backwards = self.order(np.zeros(len(self.ranks_V)))[::-1]
        order = predecessors_first(self.tables, np.ascontiguousarray(backwards))
        return self._priority(np.asarray(order))

    def decode(self, keys_BV: Floats, fit: Fit = Fit.none) -> tuple[Ints, Ints, Bools]:
        """Places orders given by keys, largest first, by HEFT with insertion.

        Returns:
            (device per unit [B, U], priority per op [B, V], False where a row met a dead end [B]).
        """
        result: tuple[Ints, Ints, Bools] = decode_keys(
            self.tables, keys_BV, int(fit), self.versions, self.mask.is_fully_linked
        )
        return result

    def order(self, ranks_V: Floats) -> Ints:
        """Returns the ops that have a device by rank, largest first, predecessors first."""
        order = np.lexsort((self.position_V, -ranks_V)).astype(np.int64)
        order = order[self.mask.unit_V[order] != NO_UNIT]
        return np.asarray(predecessors_first(self.tables, order))

    @cached_property
    def _means(self) -> tuple[Floats, Floats]:
        return mean_op_ns(self.problem, self.costs), mean_transfer_ns(self.problem)

    def _ready_order(self, keys_V: Floats) -> Ints:
        return np.asarray(ready_order(self.tables, keys_V, self.position_V.astype(np.float64)))

    def _critical_path_ops(self) -> Ints:
        """Ops with a device on the longest path, mean times and transfers."""
        after_V = next_on_longest_path(self.problem.graph, *self._means)
        op, path = int(self.levels_V.argmax()), []
        while op >= 0:
            if self.mask.unit_V[op] != NO_UNIT:
                path.append(op)
            op = int(after_V[op])
        return np.asarray(path, dtype=np.int64)

    def _place(
        self,
        order: Ints,
        *,
        rule: int,
        fit: Fit,
        extra_VD: Floats = _NOTHING,
        tie_VD: Floats = _NOTHING,
    ) -> Schedule:
        how = (order, extra_VD, tie_VD, rule)
        fully_linked = self.mask.is_fully_linked
        devices_U, placed, _, makespan, status = place(
            self.tables, *how, int(fit), self.versions, fully_linked
        )
        if status != PLACED:
            devices_U, placed, _, makespan, _ = place(
                self._guided(devices_U), *how, FIT_NONE, self.versions, True
            )
        return Schedule(
            devices_U=devices_U, priority_V=self._priority(placed), makespan_ns=float(makespan)
        )

    def _assign(self, priority_V: Ints, *, run_time: bool, fit: Fit) -> Schedule:
        fully_linked = self.mask.is_fully_linked
        devices_U, _, makespan, status = assign_when_ready(
            self.tables, priority_V, run_time, int(fit), self.versions, fully_linked
        )
        if status != PLACED:
            devices_U, _, makespan, _ = assign_when_ready(
                self._guided(devices_U), priority_V, run_time, FIT_NONE, self.versions, True
            )
        return Schedule(devices_U=devices_U, priority_V=priority_V, makespan_ns=float(makespan))

    def _guided(self, devices_U: Ints) -> ListTables:
        """Tables that allow one device only: the mask's completion of a schedule cut short."""
        wanted = np.where(devices_U >= 0, devices_U, 0)
        fixed_U = self.mask.complete(self.mask.prefer_devices(wanted))
        allowed_UD = np.zeros_like(self.mask.allowed_UD)
        allowed_UD[np.arange(self.mask.num_units), fixed_U] = True
        return self.tables._replace(allowed_UD=allowed_UD)

    def _priority(self, order: Ints) -> Ints:
        priority_V = np.zeros(len(self.ranks_V), dtype=np.int64)
        priority_V[order] = np.arange(len(order), 0, -1)
        return priority_V


def make_list_scheduler(problem: Problem, costs: Costs) -> ListScheduler:
    """Returns the list scheduler of a problem."""
    mask = make_mask(problem)
    graph = problem.graph
    position_V = np.empty(graph.num_ops, dtype=np.int64)
    position_V[list(graph.topological_order)] = np.arange(graph.num_ops)
    return ListScheduler(
        problem=problem,
        costs=costs,
        mask=mask,
        tables=make_tables(mask, costs),
        ranks_V=upward_ranks(problem, costs),
        levels_V=b_levels(graph, mean_op_ns(problem, costs), mean_transfer_ns(problem)),
        position_V=position_V,
        versions=graph.window if graph.is_cyclic else 1,
    )
