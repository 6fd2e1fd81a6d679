# ruff: noqa: N815 - shape suffixes (device_U) are upper case
"""List schedules of a problem: one preparation, many compiled runs."""

from dataclasses import dataclass

import numpy as np

from doppler.core.costs import Costs
from doppler.core.problem import Problem
from doppler.graphs.levels import b_levels, mean_op_ns, mean_transfer_ns, upward_ranks
from doppler.planners.list_core import PLACED, critical_path, heft, heft_by_keys, predecessors_first
from doppler.planners.mask import NO_UNIT, Ints, Mask, make_mask
from doppler.planners.tables import Floats, ListTables, make_tables


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

    Attributes:
        mask: Legal placements.
        tables: The problem as arrays.
        ranks_V: Upward rank per op.
        levels_V: b-level per op, mean times and mean transfers.
        tensors_in_flight: Versions of a tensor that may be in memory at once.
    """

    mask: Mask
    tables: ListTables
    ranks_V: Floats
    levels_V: Floats
    position_V: Ints
    tensors_in_flight: int

    def heft(
        self, ranks_V: Floats | None = None, *, insertion: bool = True, fit_tensors: bool = False
    ) -> Schedule:
        """Returns HEFT's schedule.

        Where it runs into a dead end (state or links leave an op no device), the units of the
        dead end are placed by the mask's search first, and HEFT places the rest.

        Args:
            ranks_V: Order, largest first; None = upward ranks. Predecessors go first anyway.
            insertion: Use idle gaps; else append.
            fit_tensors: Take a device only if all tensors placed there fit together.

        Raises:
            CapacityError, PlanError: If there is no legal placement.

        Source: Topcuoglu et al. 2002.
        """
        order = self.order(self.ranks_V if ranks_V is None else ranks_V)
        count = self.tensors_in_flight if fit_tensors else 0
        fully_linked = self.mask.is_fully_linked
        devices_U, _, makespan, status = heft(self.tables, order, insertion, count, fully_linked)
        if status != PLACED:
            tables = self._guided(devices_U)
            devices_U, _, makespan, status = heft(tables, order, insertion, 0, True)
        return Schedule(
            devices_U=devices_U, priority_V=self._priority(order), makespan_ns=float(makespan)
        )

    def heft_by_keys(self, keys_V: Floats) -> Schedule | None:
        """Returns HEFT's schedule in the order of keys, or None where it meets a dead end."""
        devices_U, order, status = heft_by_keys(self.tables, keys_V, self.mask.is_fully_linked)
        if status != PLACED:
            return None
        return Schedule(devices_U=devices_U, priority_V=self._priority(order), makespan_ns=np.nan)

    def critical_path(self, rng: np.random.Generator) -> Schedule:
        """Returns one run of the critical-path rule: largest b-level, earliest start, random ties.

        Source: Kwok and Ahmad 1999.
        """
        draws_V2 = rng.random((len(self.levels_V), 2))
        fully_linked = self.mask.is_fully_linked
        devices_U, order, count, status = critical_path(
            self.tables, self.levels_V, draws_V2, fully_linked
        )
        if status != PLACED:
            tables = self._guided(devices_U)
            devices_U, order, count, _ = critical_path(tables, self.levels_V, draws_V2, True)
        return Schedule(
            devices_U=devices_U, priority_V=self._priority(order[:count]), makespan_ns=np.nan
        )

    def order(self, ranks_V: Floats) -> Ints:
        """Returns the ops that have a device by rank, largest first, predecessors first."""
        order = np.lexsort((self.position_V, -ranks_V)).astype(np.int64)
        order = order[self.mask.unit_V[order] != NO_UNIT]
        return np.asarray(predecessors_first(self.tables, order))

    def _guided(self, devices_U: Ints) -> ListTables:
        """Tables that allow one device only: the mask's completion of a schedule cut short."""
        wanted = np.where(devices_U >= 0, devices_U, 0)
        fixed_U = self.mask.complete(self.mask.prefer_devices(wanted))
        allowed_UD = np.zeros_like(self.mask.allowed_UD)
        allowed_UD[np.arange(self.mask.num_units), fixed_U] = True
        return self.tables._replace(allowed_UD=allowed_UD)

    def _priority(self, order: Ints) -> Ints:
        priority_V = np.zeros(len(self.levels_V), dtype=np.int64)
        priority_V[order] = np.arange(len(order), 0, -1)
        return priority_V


def make_list_scheduler(problem: Problem, costs: Costs) -> ListScheduler:
    """Returns the list scheduler of a problem."""
    mask = make_mask(problem)
    graph = problem.graph
    position_V = np.empty(graph.num_ops, dtype=np.int64)
    position_V[list(graph.topological_order)] = np.arange(graph.num_ops)
    return ListScheduler(
        mask=mask,
        tables=make_tables(mask, costs),
        ranks_V=upward_ranks(problem, costs),
        levels_V=b_levels(graph, mean_op_ns(problem, costs), mean_transfer_ns(problem)),
        position_V=position_V,
        tensors_in_flight=graph.window if graph.is_cyclic else 1,
    )
