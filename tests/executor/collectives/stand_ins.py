"""What stands for a GPU's memory and for NCCL in tests: rows in host memory, and groups of gloo."""

import os

import torch
import torch.distributed

from executor.collectives.gloo import INTERFACE
from executor.collectives.peers import peers_bytes
from executor.collectives.polled import Library
from executor.shared_memory import allocate, map_all


def gloo_group(store, rank, size):
    """Returns a group that waits for longer than its members do."""
    kind = torch.distributed.ProcessGroupGloo
    options = kind._Options()
    options._devices = [kind.create_device(interface=INTERFACE)]
    return kind(store, rank, size, options)


GLOO = Library(
    title="gloo",
    is_available=lambda distributed: distributed.is_gloo_available(),
    prepare=lambda: None,
    open_group=gloo_group,
    first=lambda: torch.zeros(1),
)


class Place:
    """Shared memory with the lines of some members, two rows of each behind them, and a store.

    Args:
        count: Members.
        length: Elements of a row.
    """

    def __init__(self, count, length=0):
        self.names = [f"gmi{m}" for m in range(count)]
        self.length, self.base = length, peers_bytes(count)
        fd = allocate("/dev/shm", self.base + count * 2 * length * 4, "a test")
        self.memory = map_all(fd)
        os.close(fd)
        self.store_fd = os.memfd_create("store")

    @property
    def store(self):
        """Path of the store and a name in it."""
        return (f"/proc/self/fd/{self.store_fd}", "rows")

    def rows(self, first):
        """Returns what opens the rows of the members from `first` on."""

        def open_rows(store, member, num_members):
            store.set(f"came{member}", "yes")
            every = torch.frombuffer(
                self.memory,
                dtype=torch.float32,
                offset=self.base + first * 2 * self.length * 4,
                count=num_members * 2 * self.length,
            )
            return list(every.view(num_members, 2, self.length))

        return open_rows

    def close(self):
        os.close(self.store_fd)
