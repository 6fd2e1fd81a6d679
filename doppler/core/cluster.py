"""The cluster: placeable devices, links with shared buses, fixed routes."""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from doppler.core.errors import ClusterError

NS_PER_S = 1_000_000_000
ISOLATED_KIND = "mig"
MAX_STREAMS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Something that an op can be placed on.

    Attributes:
        name: Unique name.
        kind: "cpu" (a core group), "cuda", "green_context", "mps", "mig".
        parent: Name of the physical hardware that it is cut from.
        share: Part of the parent that it owns, in (0, 1].
        memory_bytes: Memory that placed ops may use.
        num_streams: Ops that may run at the same time, at most `MAX_STREAMS`.
        copy_engines: 0 = a copy is work on the sender's stream; else copies run beside ops.
        cores: Core ids that the worker is bound to (core groups), else empty.
        flop_per_s: Peak arithmetic rate of its share, for the roofline model; 0 = unknown.
        memory_bytes_per_s: Memory bandwidth of its share; 0 = unknown.
        launch_ns: Fixed cost of starting a kernel.
    """

    name: str
    kind: str
    parent: str
    share: float = 1.0
    memory_bytes: int = 1 << 40
    num_streams: int = 1
    copy_engines: int = 1
    cores: tuple[int, ...] = ()
    flop_per_s: int = 0
    memory_bytes_per_s: int = 0
    launch_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A directed connection between two devices.

    A transfer holds every bus for bytes / bandwidth, then travels for the latency without
    holding anything. `bytes_per_s = None` means that nothing is copied (shared memory): only the
    latency is paid, and no bus or stream is held.

    Attributes:
        src, dst: Device names.
        latency_ns: Time from the release of the buses to the arrival.
        bytes_per_s: Bandwidth, or None for a zero-copy publish.
        buses: Names of the shared wires that a transfer holds.
    """

    src: str
    dst: str
    latency_ns: int = 0
    bytes_per_s: int | None = None
    buses: tuple[str, ...] = ()

    def occupancy_ns(self, num_bytes: int) -> int:
        """Time that a transfer of `num_bytes` holds its buses (or its stream), rounded up."""
        if self.bytes_per_s is None:
            return 0
        return -(-num_bytes * NS_PER_S // self.bytes_per_s)


@dataclass(frozen=True, slots=True)
class Route:
    """A fixed path for a pair of devices without a link: the devices passed through, in order."""

    src: str
    dst: str
    via: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The placeable devices and how they are joined.

    Raises:
        ClusterError: If names repeat or are unknown, or a number is out of range.
    """

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    routes: tuple[Route, ...] = ()

    def __post_init__(self) -> None:
        _check_devices(self)
        _check_links(self)
        _ = self.link_table

    @property
    def num_devices(self) -> int:
        """Number of placeable devices."""
        return len(self.devices)

    @cached_property
    def device_ids(self) -> dict[str, int]:
        """Device name -> device id."""
        return {device.name: index for index, device in enumerate(self.devices)}

    @cached_property
    def bus_names(self) -> tuple[str, ...]:
        """Every bus named by a link, sorted; the bus id is the position."""
        return tuple(sorted({bus for link in self.links for bus in link.buses}))

    @cached_property
    def link_table(self) -> dict[tuple[int, int], Link]:
        """(source id, destination id) -> link, routes resolved to one composite link.

        A route is cut through, not stored and forwarded: latencies add, the narrowest bandwidth
        holds, and all buses on the way are held together.
        """
        ids = self.device_ids
        table = {(ids[link.src], ids[link.dst]): link for link in self.links}
        for route in self.routes:
            joined = _composite(route, table, ids)
            key = (ids[route.src], ids[route.dst])
            table[key] = joined
            where = f"route {route.src!r} -> {route.dst!r} of cluster {self.name!r}"
            _check_buses(table[key], self.devices[key[0]], where)
        return table

    @cached_property
    def domains(self) -> tuple[int, ...]:
        """For each device the number of what it shares with siblings: its parent, by first device.

        A MIG instance shares nothing that counts: it has memory, caches and SMs of its own (NVIDIA
        MIG User Guide, introduction).
        """
        keys = [(d.parent, d.name if d.kind == ISOLATED_KIND else "") for d in self.devices]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        return tuple(numbers[key] for key in keys)

    @cached_property
    def siblings(self) -> tuple[tuple[int, ...], ...]:
        """For each device the ids of the others that slow it down while they run an op."""
        return tuple(
            tuple(
                other
                for other, domain in enumerate(self.domains)
                if other != index and domain == self.domains[index]
            )
            for index in range(self.num_devices)
        )

    @cached_property
    def digest(self) -> str:
        """Content hash over devices, links and routes (the cluster's name is left out)."""
        rows = [repr(device) for device in self.devices]
        rows += [repr(link) for link in self.links]
        rows += [repr(route) for route in self.routes]
        return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:32]


def _check_devices(cluster: Cluster) -> None:
    if not cluster.devices:
        raise ClusterError(f"a cluster needs a device, and cluster {cluster.name!r} has none")
    names = [device.name for device in cluster.devices]
    for device in cluster.devices:
        where = f"device {device.name!r} of cluster {cluster.name!r}"
        if names.count(device.name) > 1:
            raise ClusterError(f"device names are unique, and {device.name!r} stands twice")
        if not 0.0 < device.share <= 1.0:
            raise ClusterError(f"a share lies in (0, 1], and {where} has {device.share}")
        if device.memory_bytes < 0:
            raise ClusterError(f"memory_bytes is at least 0, and {where} has {device.memory_bytes}")
        if not 1 <= device.num_streams <= MAX_STREAMS:
            raise ClusterError(
                f"num_streams is at least 1 and at most {MAX_STREAMS}, and {where} has "
                f"{device.num_streams}"
            )
        if device.copy_engines < 0:
            raise ClusterError(f"copy_engines is at least 0, and {where} has {device.copy_engines}")
        for label, value in (
            ("flop_per_s", device.flop_per_s),
            ("memory_bytes_per_s", device.memory_bytes_per_s),
            ("launch_ns", device.launch_ns),
        ):
            if value < 0:
                raise ClusterError(f"{label} is at least 0, and {where} has {value}")


def check_link(link: Link, where: str) -> None:
    """Checks what holds of a link between devices and of one between processors.

    Raises:
        ClusterError: If it joins something with itself, a number is out of range, or a bus repeats.
    """
    if link.src == link.dst:
        raise ClusterError(f"a link joins two devices, and {where} joins one with itself")
    if link.latency_ns < 0:
        raise ClusterError(f"latency_ns is at least 0, and {where} has {link.latency_ns}")
    if link.bytes_per_s is not None and link.bytes_per_s <= 0:
        raise ClusterError(f"bytes_per_s is positive, and {where} has {link.bytes_per_s}")
    if len(set(link.buses)) != len(link.buses):
        raise ClusterError(f"a transfer holds a bus once, and {where} lists {link.buses}")


def _check_links(cluster: Cluster) -> None:
    ids = cluster.device_ids
    seen: set[tuple[str, str]] = set()
    for link in cluster.links:
        where = f"link {link.src!r} -> {link.dst!r} of cluster {cluster.name!r}"
        for end in (link.src, link.dst):
            if end not in ids:
                raise ClusterError(f"{where} names device {end!r}, and devices are {sorted(ids)}")
        check_link(link, where)
        if (link.src, link.dst) in seen:
            raise ClusterError(f"a pair has one link, and {where} stands twice")
        seen.add((link.src, link.dst))
        _check_buses(link, cluster.devices[ids[link.src]], where)


def _check_buses(link: Link, sender: Device, where: str) -> None:
    on_stream = sender.copy_engines == 0
    if len(set(link.buses)) != len(link.buses):
        raise ClusterError(f"a transfer holds a bus once, and {where} lists {link.buses}")
    if link.bytes_per_s is None and link.buses:
        raise ClusterError(f"a zero-copy link holds no bus, and {where} lists {link.buses}")
    if link.bytes_per_s is not None and on_stream and link.buses:
        raise ClusterError(
            f"a sender without copy engines copies on its stream and holds no bus, "
            f"and {where} lists {link.buses}"
        )
    if link.bytes_per_s is not None and not on_stream and not link.buses:
        raise ClusterError(f"a link with a bandwidth holds at least one bus, and {where} has none")


def _composite(route: Route, table: dict[tuple[int, int], Link], ids: dict[str, int]) -> Link:
    stops = (route.src, *route.via, route.dst)
    if route.src == route.dst:
        raise ClusterError(f"a route joins two devices, and one joins {route.src!r} with itself")
    hops: list[Link] = []
    for src, dst in itertools.pairwise(stops):
        if src not in ids or dst not in ids or (ids[src], ids[dst]) not in table:
            raise ClusterError(
                f"route {route.src!r} -> {route.dst!r} passes {src!r} -> {dst!r}, "
                f"and there is no such link"
            )
        hops.append(table[ids[src], ids[dst]])
    if (ids[route.src], ids[route.dst]) in table:
        raise ClusterError(
            f"a pair has a link or a route, and {route.src!r} -> {route.dst!r} has both"
        )
    return join_links(hops)


def join_links(hops: Sequence[Link]) -> Link:
    """Returns the link that passes through `hops` in order, cut through.

    Latencies add, the narrowest bandwidth holds, and all buses on the way are held together.
    """
    speeds = [hop.bytes_per_s for hop in hops if hop.bytes_per_s is not None]
    return Link(
        src=hops[0].src,
        dst=hops[-1].dst,
        latency_ns=sum(hop.latency_ns for hop in hops),
        bytes_per_s=min(speeds) if speeds else None,
        buses=tuple(dict.fromkeys(bus for hop in hops for bus in hop.buses)),
    )
