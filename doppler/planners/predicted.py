"""Makespans of plans by static timelines: predictions that cost no simulation.

A timeline takes a plan's ops one after the other, by priority, and gives each its start. In that of
the policies an op starts when its inputs are on its device and a stream is idle for as long as it
needs, and transfers that hold the same wire follow one another in that order; other timelines are
in `doppler.planners.sent_timeline`. The runtime takes whatever is ready, so they differ from it by
a few percent; where a search by predictions exploits that, only a simulation can tell.

Legend: B plans, V ops, N placed ops.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from doppler.core.costs import Costs
from doppler.core.problem import Problem
from doppler.planners.list_core import ready_order
from doppler.planners.list_schedule import ListScheduler
from doppler.planners.mask import Ints
from doppler.planners.tables import Floats, ListTables
from doppler.policies.assignment import Assignment
from doppler.policies.dual import PolicyInputs
from doppler.policies.tables import NUM_DEVICE_COLUMNS, Tables, make_workspace
from doppler.policies.timeline import place, reset, set_times
from simulator.machine_code import cached

Follow = Callable[[ListTables, Ints, Floats, Ints, Floats, Floats, Floats], None]
"""Fills makespans and starts, both in the timeline's unit; see `follow_plans` from `lists` on."""


class TimelineScorer:
    """A `Scorer` that predicts makespans; memory is not counted, nor iterations after the first.

    Attributes:
        problem, costs: What is predicted.
        num_calls: Plans predicted so far.
    """

    def __init__(self, assignment: Assignment, lists: ListScheduler, follow: Follow) -> None:
        self.problem: Problem = lists.problem
        self.costs: Costs = lists.costs
        self.num_calls = 0
        self._assignment, self._lists, self._follow = assignment, lists, follow
        self._ties_V = lists.position_V.astype(np.float64)
        self._index_V = np.full(self.problem.graph.num_ops, -1, dtype=np.int64)
        self._index_V[assignment.op_ids] = np.arange(assignment.num_ops)

    def score(self, placements_BV: Ints, priorities_BV: Ints, bounds_B: Ints | None = None) -> Ints:
        """Returns the predicted makespan of each plan in ns, int64[B]; bounds are not needed."""
        del bounds_B
        return self.starts(placements_BV, priorities_BV)[0]

    def starts(self, placements_BV: Ints, priorities_BV: Ints) -> tuple[Ints, Floats]:
        """Returns (predicted makespan [B], predicted start of each op [B, V]) in ns."""
        priorities = np.ascontiguousarray(priorities_BV, dtype=np.float64)
        spans_B = np.empty(len(priorities))
        starts_BV = np.zeros_like(priorities)
        self._follow(
            self._lists.tables,
            self._index_V,
            self._ties_V,
            np.ascontiguousarray(placements_BV, dtype=np.int64),
            priorities,
            spans_B,
            starts_BV,
        )
        self.num_calls += len(priorities)
        unit_ns = self._assignment.unit_ns
        return np.rint(spans_B * unit_ns).astype(np.int64), starts_BV * unit_ns

    def in_order_of_start(self, placements_BV: Ints, priorities_BV: Ints) -> Ints:
        """Returns priorities by predicted start, earliest first: the runtime keeps nearer to it.

        Equal starts keep the order that they had.
        """
        _, starts_BV = self.starts(placements_BV, priorities_BV)
        result = np.array(priorities_BV, dtype=np.int64)
        op_ids = self._assignment.op_ids
        for row, (starts_V, priority_V) in enumerate(zip(starts_BV, result.copy(), strict=True)):
            order = np.lexsort((-priority_V[op_ids], starts_V[op_ids]))
            result[row, op_ids[order]] = np.arange(len(order), 0, -1)
        return result


def policy_timeline(inputs: PolicyInputs, lists: ListScheduler) -> TimelineScorer:
    """Returns predictions by the timeline that the policies place ops by."""
    return TimelineScorer(inputs.assignment, lists, partial(follow_plans, inputs.tables))


@cached()
def follow_plans(
    t: Tables,
    lists: ListTables,
    index_V: Ints,
    ties_V: Floats,
    placements_BV: Ints,
    priorities_BV: Floats,
    spans_B: Floats,
    starts_BV: Floats,
) -> None:
    """Fills makespan per plan and start per op, in the timeline's unit.

    Args:
        t: The timeline's tables, over placed ops.
        lists: The same problem over all ops; says which op is ready.
        index_V: Placed op of each op, -1 where a policy does not place it.
        ties_V: Of equal priorities the smaller entry goes first.
        placements_BV: Device per op.
        priorities_BV: Larger goes first, of the ops whose predecessors have gone.
        spans_B: Filled.
        starts_BV: Filled where a policy places the op.
    """
    s = make_workspace(t, 1, NUM_DEVICE_COLUMNS)
    for row in range(priorities_BV.shape[0]):
        reset(t, s)
        span = 0.0
        for op in ready_order(lists, priorities_BV[row], ties_V):
            placed = index_V[op]
            if placed < 0:
                continue
            device = placements_BV[row, op]
            set_times(t, s, placed, device, device + 1)
            place(t, s, placed, device)
            starts_BV[row, op] = s.start[placed]
            span = max(span, s.end[placed])
        spans_B[row] = span
