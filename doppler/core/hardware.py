"""Hardware: what is physically there, before a layout cuts it into devices."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from doppler.core.cluster import Link, Route, check_link, join_links
from doppler.core.errors import ClusterError
from doppler.core.partition import PartitionRules

PROCESSOR_KINDS = ("cpu", "gpu")
COUNTS = (
    "memory_bytes",
    "copy_engines",
    "publish_ns",
    "flop_per_s",
    "memory_bytes_per_s",
    "launch_ns",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """One GPU, or the CPU cores of one host.

    Attributes:
        name: Unique name.
        kind: "cpu" or "gpu".
        model: What the vendor calls it.
        num_units: Cores of a CPU, streaming multiprocessors of a GPU.
        memory_bytes: Memory in total.
        core_ids: The operating system's ids of the cores (CPU), else empty.
        copy_engines: Copies that a GPU runs beside kernels; 0 on a CPU.
        num_streams: Ops that a whole processor may run at the same time.
        publish_ns: Time to hand a tensor to another part of the same processor without a copy.
        flop_per_s: Peak arithmetic rate of all units; 0 = unknown.
        memory_bytes_per_s: Memory bandwidth of the whole processor; 0 = unknown.
        launch_ns: Fixed cost of starting a kernel.
        partitions: How it may be cut; None = not known, and any cut is believed.
    """

    name: str
    kind: str
    model: str
    num_units: int
    memory_bytes: int
    core_ids: tuple[int, ...] = ()
    copy_engines: int = 0
    num_streams: int = 1
    publish_ns: int = 0
    flop_per_s: int = 0
    memory_bytes_per_s: int = 0
    launch_ns: int = 0
    partitions: PartitionRules | None = None

    def __post_init__(self) -> None:
        if self.kind not in PROCESSOR_KINDS:
            raise ClusterError(
                f"a processor is one of {PROCESSOR_KINDS}, and {self.name!r} is {self.kind!r}"
            )
        if self.num_units < 1:
            raise ClusterError(f"num_units is at least 1, and {self.name!r} has {self.num_units}")
        if self.core_ids and len(self.core_ids) != self.num_units:
            raise ClusterError(
                f"core_ids has one id per unit ({self.num_units}), and {self.name!r} has "
                f"{len(self.core_ids)}"
            )
        if len(set(self.core_ids)) < len(self.core_ids) or min(self.core_ids, default=0) < 0:
            raise ClusterError(
                f"core_ids are different ids of at least 0, and {self.name!r} has {self.core_ids}"
            )
        if self.num_streams < 1:
            raise ClusterError(
                f"num_streams is at least 1, and {self.name!r} has {self.num_streams}"
            )
        for label in COUNTS:
            if getattr(self, label) < 0:
                raise ClusterError(
                    f"{label} is at least 0, and {self.name!r} has {getattr(self, label)}"
                )


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """All processors of one or more hosts and how they are joined (named by processor).

    Attributes:
        name: Name of the hardware.
        processors: CPUs and GPUs.
        links: What joins two processors directly.
        routes: Fixed paths of pairs without a link; the processors passed through need not become
            devices of a layout.
    """

    name: str
    processors: tuple[Processor, ...]
    links: tuple[Link, ...] = ()
    routes: tuple[Route, ...] = ()

    def __post_init__(self) -> None:
        names = [processor.name for processor in self.processors]
        if not names or len(set(names)) != len(names):
            raise ClusterError(
                f"hardware has processors with unique names, and {self.name!r} has {names}"
            )
        seen: set[tuple[str, str]] = set()
        for link in self.links:
            where = f"link {link.src!r} -> {link.dst!r} of hardware {self.name!r}"
            for end in (link.src, link.dst):
                if end not in names:
                    raise ClusterError(f"{where} names {end!r}, and processors are {names}")
            check_link(link, where)
            if (link.src, link.dst) in seen:
                raise ClusterError(f"a pair has one link, and {where} stands twice")
            seen.add((link.src, link.dst))
        _ = self.link_table

    @cached_property
    def processor_by_name(self) -> dict[str, Processor]:
        """Processor name -> processor."""
        return {processor.name: processor for processor in self.processors}

    @cached_property
    def link_table(self) -> dict[tuple[str, str], Link]:
        """(source, destination) -> link, routes resolved to one link that passes through them."""
        table = {(link.src, link.dst): link for link in self.links}
        for route in self.routes:
            if (route.src, route.dst) in table:
                raise ClusterError(
                    f"a pair has a link or a route, and {route.src!r} -> {route.dst!r} of "
                    f"hardware {self.name!r} has both"
                )
            table[route.src, route.dst] = self._join((route.src, *route.via, route.dst))
        return table

    def link_through_host(self, src: str, dst: str) -> Link | None:
        """Returns how two GPUs that see no peer reach each other: over the CPUs of their hosts.

        None if one of them has no link to and from a CPU, or those CPUs have none.
        """
        pairs = {(link.src, link.dst) for link in self.links}
        cpus = [p.name for p in self.processors if p.kind == "cpu"]
        for first in cpus:
            if (src, first) not in pairs:
                continue
            for last in cpus:
                if (last, dst) in pairs and (first == last or (first, last) in pairs):
                    return self._join((*dict.fromkeys((src, first, last)), dst))
        return None

    def _join(self, stops: Sequence[str]) -> Link:
        direct = {(link.src, link.dst): link for link in self.links}
        for pair in itertools.pairwise(stops):
            if pair not in direct:
                raise ClusterError(
                    f"route {stops[0]!r} -> {stops[-1]!r} of hardware {self.name!r} passes "
                    f"{pair[0]!r} -> {pair[1]!r}, and there is no such link"
                )
        return join_links([direct[pair] for pair in itertools.pairwise(stops)])
