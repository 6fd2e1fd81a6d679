"""Device assignment as a Markov decision process: one op and its device per step, as arrays.

The arrays are over the ops that a policy places (`N` of them, graph inputs left out).
`doppler.policies.build` makes them, `doppler.policies.timeline` is the compiled state of an
episode, and `doppler.policies.sampling` runs whole batches of episodes.
"""

import heapq
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from doppler.core.graph import InputResidency
from doppler.core.problem import Problem
from doppler.graphs.longest_paths import Levels, compute_levels, lookahead_costs

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The MDP of one problem as arrays; times are in units of the mean op time.

    Legend: N placed ops, D devices, E edges of distance 0, A edges of any distance twice (once
    from each end), G groups, M meta-ops. CSR: row i of `x` is x[x_ptr[i]:x_ptr[i + 1]].

    Attributes:
        problem: What is placed.
        op_ids: Op id in the graph per placed op, N.
        unit_ns: Nanoseconds of one time unit.
        work: N x D, time per op and device, the device's dispatch time included.
        allowed: N x D, devices that kinds, pins and pins of the group leave.
        input_ready: N x D, when inputs that lie on one device only could be on device d.
        in_ptr, in_src, in_bytes: In-edges of distance 0.
        in_tensor: Tensor of each in-edge; edges with equal producer and output share one.
        out_ptr, out_dst: Out-edges of distance 0.
        out_in: Position of each out-edge among the in-edges.
        near_ptr, near_op, near_bytes: All neighbours of any distance, self-loops left out.
        near_out: True where the neighbour is the consumer.
        near_loop: True where the edge's distance is at least 1.
        group: Group per op, -1 = none.
        group_bytes: State per group.
        meta: Meta-op per op, -1 = none.
        meta_size: Ops per meta-op.
        parent_meta_ptr, parent_meta: Meta-ops of the producers of each op, distance 0, unique.
        latency, per_byte: D x D, transfer time = latency + bytes * per_byte, 0 on the diagonal.
        bus_ptr, bus: Wires that a transfer from device i to j holds, row i * D + j; a copy that is
            work on the sender's stream holds a wire of its own.
        linked: D x D, True where a tensor can go; True on the diagonal.
        num_streams: Ops at a time per device.
        memory_bytes: Limit per device.
    """

    problem: Problem
    op_ids: Ints
    unit_ns: float
    work: Floats
    allowed: Bools
    input_ready: Floats
    in_ptr: Ints
    in_src: Ints
    in_bytes: Floats
    in_tensor: Ints
    out_ptr: Ints
    out_dst: Ints
    out_in: Ints
    near_ptr: Ints
    near_op: Ints
    near_bytes: Floats
    near_out: Bools
    near_loop: Bools
    group: Ints
    group_bytes: Floats
    meta: Ints
    meta_size: Ints
    parent_meta_ptr: Ints
    parent_meta: Ints
    latency: Floats
    per_byte: Floats
    bus_ptr: Ints
    bus: Ints
    linked: Bools
    num_streams: Ints
    memory_bytes: Floats

    @property
    def num_ops(self) -> int:
        """Placed ops = decisions per episode."""
        return len(self.op_ids)

    @property
    def num_devices(self) -> int:
        """Devices."""
        return len(self.num_streams)

    @cached_property
    def mean_work(self) -> Floats:
        """Mean time per op over its allowed devices."""
        mean: Floats = (self.work * self.allowed).sum(1) / self.allowed.sum(1)
        return mean

    @cached_property
    def mean_link(self) -> tuple[float, float]:
        """Mean (latency, time per byte) over linked ordered pairs of devices."""
        pairs = max(1, int(self.linked.sum()) - self.num_devices)
        return float(self.latency.sum() / pairs), float(self.per_byte.sum() / pairs)

    @cached_property
    def levels(self) -> Levels:
        """Levels with mean work and mean transfer times over one link."""
        return compute_levels(self.mean_work, self.in_ptr, self.in_src, self.in_comm)

    @cached_property
    def in_comm(self) -> Floats:
        """Mean transfer time over one link per in-edge, E."""
        latency, per_byte = self.mean_link
        comm: Floats = latency + self.in_bytes * per_byte
        return comm

    @cached_property
    def lookahead(self) -> Floats:
        """Optimistic time after an op ends on a device, N x D; see `lookahead_costs`."""
        cost = lookahead_costs(
            np.where(self.allowed, self.work, np.inf),
            (self.in_ptr, self.in_src, self.in_bytes),
            np.where(self.linked, self.latency, np.inf),
            self.per_byte,
            self.levels.order,
        )
        finite = np.isfinite(cost)
        capped: Floats = np.where(finite, cost, 2.0 * cost[finite].max(initial=1.0))
        return capped

    @cached_property
    def initial_device(self) -> Ints:
        """The only allowed device per op, -1 where there is a choice."""
        single = self.allowed.sum(1) == 1
        return np.where(single, self.allowed.argmax(1), -1).astype(np.int64)

    @cached_property
    def initial_group_device(self) -> Ints:
        """Device of each group whose ops have one allowed device, else -1."""
        devices = np.full(len(self.group_bytes), -1, dtype=np.int64)
        known = (self.group >= 0) & (self.initial_device >= 0)
        devices[self.group[known]] = self.initial_device[known]
        return devices

    def plan_arrays(self, orders_BN: Ints, devices_BN: Ints) -> tuple[Ints, Ints]:
        """Returns (placements_BV, priorities_BV) of episodes; the first selected op is first.

        Args:
            orders_BN: Placed ops in the order of their selection.
            devices_BN: Device of `orders_BN[b, t]`.
        """
        batch, num_ops = orders_BN.shape
        graph = self.problem.graph
        placements_BV = np.zeros((batch, graph.num_ops), dtype=np.int64)
        priorities_BV = np.zeros((batch, graph.num_ops), dtype=np.int64)
        if graph.inputs is InputResidency.pinned:
            for op_id, op in enumerate(graph.ops):
                if op.is_input:
                    pin = self.problem.pins[op.name]
                    placements_BV[:, op_id] = self.problem.cluster.device_ids[pin]
                    priorities_BV[:, op_id] = num_ops + 1
        rows = np.arange(batch)[:, None]
        placements_BV[rows, self.op_ids[orders_BN]] = devices_BN
        priorities_BV[rows, self.op_ids[orders_BN]] = num_ops - np.arange(num_ops)[None, :]
        return placements_BV, priorities_BV

    def episode_arrays(self, placements_BV: Ints, priorities_BV: Ints) -> tuple[Ints, Ints]:
        """Returns (orders_BN, devices_BN) of the episodes that make these plans.

        The order takes the candidate with the highest priority at every step, ties to the lowest
        id, so priorities against the edges' direction are followed as far as an episode can.
        """
        orders = [_list_order(self, priorities_V[self.op_ids]) for priorities_V in priorities_BV]
        orders_BN = np.array(orders, dtype=np.int64).reshape(len(priorities_BV), self.num_ops)
        rows = np.arange(len(orders_BN))[:, None]
        return orders_BN, placements_BV[rows, self.op_ids[orders_BN]].astype(np.int64)


def _list_order(assignment: Assignment, priorities_N: Ints) -> list[int]:
    missing = np.diff(assignment.in_ptr).tolist()
    heap = [(-int(priorities_N[op]), op) for op in range(assignment.num_ops) if not missing[op]]
    heapq.heapify(heap)
    order: list[int] = []
    while heap:
        _, op = heapq.heappop(heap)
        order.append(op)
        for consumer in assignment.out_dst[assignment.out_ptr[op] : assignment.out_ptr[op + 1]]:
            missing[consumer] -= 1
            if not missing[consumer]:
                heapq.heappush(heap, (-int(priorities_N[consumer]), int(consumer)))
    return order
