"""Where everything lies in the one piece of shared memory: board, rings, arena."""

import itertools
from dataclasses import dataclass
from functools import cached_property

from doppler.core.cluster import Cluster
from doppler.core.graph import DataflowGraph
from executor.arena import ArenaLayout
from executor.board import board_bytes
from executor.channels import ring_bytes, ring_records


@dataclass(frozen=True, kw_only=True)
class SharedLayout:
    """Offsets for one graph on one cluster; parent and workers work out the same ones.

    Attributes:
        graph: The workload.
        cluster: The devices.
    """

    graph: DataflowGraph
    cluster: Cluster

    @cached_property
    def num_records(self) -> int:
        """Records of each ring."""
        return ring_records(self.graph)

    @cached_property
    def boards(self) -> tuple[int, ...]:
        """First byte of each device's part of the board."""
        sizes = [board_bytes(device.num_streams) for device in self.cluster.devices]
        return tuple(itertools.accumulate(sizes, initial=0))[:-1]

    @cached_property
    def _rings_at(self) -> int:
        return sum(board_bytes(device.num_streams) for device in self.cluster.devices)

    def ring(self, src: int, dst: int) -> int:
        """Returns the first byte of the ring from one device to another."""
        position = src * self.cluster.num_devices + dst
        return self._rings_at + position * ring_bytes(self.num_records)

    @cached_property
    def arena_at(self) -> int:
        """First byte of the arena."""
        return self._rings_at + self.cluster.num_devices**2 * ring_bytes(self.num_records)

    @cached_property
    def arena(self) -> ArenaLayout:
        """The tensors."""
        return ArenaLayout(graph=self.graph)

    @property
    def size_bytes(self) -> int:
        """Bytes in total."""
        return self.arena_at + self.arena.size_bytes
