"""From a topology to hardware: which wires each pair of processors holds.

Shared wires (buses) of one host:
- `gpu0.pcie.out`, `gpu0.pcie.in`: the lanes of a GPU;
- `switch0.up`, `switch0.down`: between a PCIe switch and its CPU, shared by the GPUs below it;
- `cpu0>cpu1`: between two CPUs, one direction;
- `gpu0>gpu1`: direct NVLinks of a pair, one direction;
- `gpu0.nvlink.out`, `gpu0.nvlink.in`: all NVLinks of a GPU at an NVSwitch. The switch itself blocks
  nobody and is no bus.

PIX and PXB pairs talk below the CPU; PHB pairs over the uplinks of their switches; NODE and SYS
pairs have no link of their own but a fixed route through the CPUs, where drivers stage such copies.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from doppler.core.cluster import Link, Route
from doppler.core.errors import ConfigError
from doppler.core.hardware import Hardware, Processor
from simulator.hardware.entries import LinkEntry
from simulator.hardware.topology import Topology

BELOW_ONE_SWITCH = ("PIX", "PXB")
UNDER_ONE_BRIDGE = "PHB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wires:
    """The kinds of wire of a host; `nvlink` may be missing."""

    nvlink: LinkEntry | None
    pcie: LinkEntry
    socket: LinkEntry


def gpu_groups(topology: Topology) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns per GPU the number of its PCIe switch and the number of its CPU.

    GPUs share a switch if their path is PIX or PXB, to each other or to one network adapter; they
    share a CPU if NUMA affinity and CPU affinity are equal.
    """
    num_gpus = len(topology.gpus)
    switch = list(range(num_gpus))
    for a in range(num_gpus):
        for b in range(a):
            near = topology.relations[a][b] in BELOW_ONE_SWITCH or any(
                one in BELOW_ONE_SWITCH and other in BELOW_ONE_SWITCH
                for one, other in zip(
                    topology.nic_relations[a], topology.nic_relations[b], strict=True
                )
            )
            if near:
                old, new = switch[a], switch[b]
                switch = [new if value == old else value for value in switch]
    places = [(topology.numa[gpu], topology.cores[gpu]) for gpu in range(num_gpus)]
    return _numbered(switch), _numbered(places)


def _numbered(keys: Sequence[object]) -> tuple[int, ...]:
    order = list(dict.fromkeys(keys))
    return tuple(order.index(key) for key in keys)


def wire_host(
    name: str,
    topology: Topology,
    gpus: Sequence[Processor],
    cpus: Sequence[Processor],
    wires: Wires,
    nvlinks_per_gpu: int,
) -> Hardware:
    """Returns the hardware of one host.

    Args:
        name: Name of the hardware.
        topology: Paths between the GPUs.
        gpus: One processor per GPU of the topology, in its order.
        cpus: One processor per CPU of `gpu_groups`, in its order.
        wires: Latency and bandwidth of each kind of wire.
        nvlinks_per_gpu: NVLinks of one GPU. Where its NV# paths add up to more, they run over an
            NVSwitch and share the GPU's wires, else each pair has its own.

    Raises:
        ConfigError: If the topology states NVLinks and the GPU or the wires have none.
    """
    switches, cpu_of = gpu_groups(topology)
    links: list[Link] = []
    routes: list[Route] = []
    for a, gpu in enumerate(gpus):
        cpu = cpus[cpu_of[a]].name
        out, into = f"{gpu.name}.pcie.out", f"{gpu.name}.pcie.in"
        up, down = f"switch{switches[a]}.up", f"switch{switches[a]}.down"
        links.append(_link(gpu.name, cpu, wires.pcie, (out, up)))
        links.append(_link(cpu, gpu.name, wires.pcie, (down, into)))
        for far in cpus:
            if far.name != cpu:
                routes += [Route(gpu.name, far.name, (cpu,)), Route(far.name, gpu.name, (cpu,))]
        num_links = [topology.num_nvlinks(a, b) for b in range(len(gpus))]
        is_switched = sum(num_links) > nvlinks_per_gpu
        for b, peer in enumerate(gpus):
            if a == b:
                continue
            relation = topology.relations[a][b]
            peer_in = f"{peer.name}.pcie.in"
            if num_links[b]:
                if wires.nvlink is None or nvlinks_per_gpu == 0:
                    raise ConfigError(
                        f"{topology.gpus[a]} and {topology.gpus[b]} of {name!r} are joined by "
                        f"{relation}, and {gpu.model} has no NVLink: name the GPU that is there"
                    )
                buses: tuple[str, ...] = (f"{gpu.name}>{peer.name}",)
                if is_switched:
                    buses = (f"{gpu.name}.nvlink.out", f"{peer.name}.nvlink.in")
                links.append(_link(gpu.name, peer.name, wires.nvlink, buses, num_links[b]))
            elif switches[a] == switches[b]:
                links.append(_link(gpu.name, peer.name, wires.pcie, (out, peer_in)))
            elif relation == UNDER_ONE_BRIDGE:
                buses = (out, up, f"switch{switches[b]}.down", peer_in)
                links.append(_link(gpu.name, peer.name, wires.pcie, buses))
            else:
                via = tuple(dict.fromkeys((cpu, cpus[cpu_of[b]].name)))
                routes.append(Route(gpu.name, peer.name, via))
    for first in cpus:
        for second in cpus:
            if first.name != second.name:
                bus = f"{first.name}>{second.name}"
                links.append(_link(first.name, second.name, wires.socket, (bus,)))
    return Hardware(name=name, processors=(*gpus, *cpus), links=tuple(links), routes=tuple(routes))


def nearest_nic(topology: Topology, gpu: int) -> int:
    """Returns the network adapter with the shortest path to a GPU, of equals the first.

    GPUs that share their nearest adapters take turns, so that a switch with two adapters serves two
    GPUs at full speed.
    """
    order = (*BELOW_ONE_SWITCH, UNDER_ONE_BRIDGE, "NODE", "SYS")
    row = topology.nic_relations[gpu]
    best = min(order.index(relation) for relation in row)
    nearest = [nic for nic, relation in enumerate(row) if order.index(relation) == best]
    sharing = [other for other in range(gpu) if topology.nic_relations[other] == row]
    return nearest[len(sharing) % len(nearest)]


def join_hosts(
    name: str, host: Hardware, count: int, topology: Topology, network: LinkEntry
) -> Hardware:
    """Returns `count` equal hosts whose GPUs reach each other through their nearest adapters.

    A message holds the sender's PCIe lanes, both adapters and the receiver's PCIe lanes (GPUDirect
    RDMA); where the path to the adapter leaves the switch, the switch's uplink, too. The network
    between adapters blocks nobody. CPUs of two hosts are joined through the first adapter.
    """
    ends = _ends(topology)
    gpus = [p.name for p in host.processors if p.kind == "gpu"]
    cpus = [p.name for p in host.processors if p.kind == "cpu"]
    lanes = {link.src: link for link in host.links if link.src in gpus and link.dst in cpus}
    links = [link for number in range(count) for link in _renamed(host, number)]
    routes = [
        Route(
            f"host{number}.{route.src}",
            f"host{number}.{route.dst}",
            tuple(f"host{number}.{via}" for via in route.via),
        )
        for number in range(count)
        for route in host.routes
    ]
    for here, there in itertools.permutations(range(count), 2):
        for (a, src), (b, dst) in itertools.product(enumerate(gpus), repeat=2):
            wire = lanes[src]
            links.append(
                Link(
                    src=f"host{here}.{src}",
                    dst=f"host{there}.{dst}",
                    latency_ns=network.latency_ns.value + 2 * wire.latency_ns,
                    bytes_per_s=min(wire.bytes_per_s or 0, network.bytes_per_s.value),
                    buses=(
                        *(f"host{here}.{bus}" for bus in ends[a][0]),
                        *(f"host{there}.{bus}" for bus in ends[b][1]),
                    ),
                )
            )
        for src, dst in itertools.product(cpus, repeat=2):
            buses = (f"host{here}.nic0.out", f"host{there}.nic0.in")
            links.append(_link(f"host{here}.{src}", f"host{there}.{dst}", network, buses))
        for gpu, cpu in itertools.product(gpus, cpus):
            near = f"host{here}.{lanes[gpu].dst}"
            routes.append(Route(f"host{here}.{gpu}", f"host{there}.{cpu}", (near,)))
            routes.append(Route(f"host{there}.{cpu}", f"host{here}.{gpu}", (near,)))
    return Hardware(
        name=name,
        processors=tuple(
            replace(processor, name=f"host{number}.{processor.name}")
            for number in range(count)
            for processor in host.processors
        ),
        links=tuple(links),
        routes=tuple(routes),
    )


def _ends(topology: Topology) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Per GPU the wires of its host that a message holds on its way out, and on its way in."""
    switches, _ = gpu_groups(topology)
    ends = []
    for gpu, switch in enumerate(switches):
        nic = nearest_nic(topology, gpu) if topology.nics else 0
        relation = topology.nic_relations[gpu][nic] if topology.nics else UNDER_ONE_BRIDGE
        is_near = relation in BELOW_ONE_SWITCH
        up, down = ((), ()) if is_near else ((f"switch{switch}.up",), (f"switch{switch}.down",))
        ends.append(
            (
                (f"gpu{gpu}.pcie.out", *up, f"nic{nic}.out"),
                (f"nic{nic}.in", *down, f"gpu{gpu}.pcie.in"),
            )
        )
    return ends


def _renamed(host: Hardware, number: int) -> list[Link]:
    prefix = f"host{number}."
    return [
        replace(
            link,
            src=prefix + link.src,
            dst=prefix + link.dst,
            buses=tuple(prefix + bus for bus in link.buses),
        )
        for link in host.links
    ]


def _link(src: str, dst: str, wire: LinkEntry, buses: tuple[str, ...], width: int = 1) -> Link:
    return Link(
        src=src,
        dst=dst,
        latency_ns=wire.latency_ns.value,
        bytes_per_s=wire.bytes_per_s.value * width,
        buses=buses,
    )
