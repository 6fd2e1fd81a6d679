"""What the catalogue is made of: figures with a source, and entries made of figures."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where figures come from.

    Attributes:
        name: Key that figures name.
        title: Document.
        year: When it appeared.
        url: Where it is, or empty.
    """

    name: str
    title: str
    year: int
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number.

    Attributes:
        value: In the unit that the field's name states.
        source: Name of its source.
        confirmed: A second public text was seen to state it; False = believed, or an estimate.
    """

    value: int
    source: str
    confirmed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Peak arithmetic rate of one data type in flop/s, dense, tensor cores where it has them."""

    dtype: str
    value: int
    source: str
    confirmed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MigEntry:
    """One MIG profile; the fields are those of `doppler.core.partition.MigProfile`."""

    name: str
    units: int
    memory_slices: int
    max_count: int
    starts: tuple[int, ...]
    copy_engines: int
    source: str
    confirmed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEntry:
    """One model of GPU; figures as in `doppler.core.hardware.Processor` and `PartitionRules`."""

    name: str
    title: str
    compute_capability: str
    num_sms: Figure
    memory_bytes: Figure
    memory_bytes_per_s: Figure
    flop_per_s: tuple[Rate, ...]
    launch_ns: Figure
    copy_engines: Figure
    nvlink_links: Figure
    mps_step: Figure
    green_min: Figure
    green_step: Figure
    mig: tuple[MigEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuEntry:
    """One model of CPU core; memory and rates are per core."""

    name: str
    title: str
    memory_bytes: Figure
    memory_bytes_per_s: Figure
    flop_per_s: tuple[Rate, ...]
    launch_ns: Figure
    publish_ns: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEntry:
    """One kind of wire, in one direction.

    Attributes:
        name: Key.
        title: What it is.
        family: "nvlink" (one link of several), "pcie", "socket" (between CPUs), "network".
        latency_ns: Time from the last byte's start to its arrival.
        bytes_per_s: Bandwidth.
    """

    name: str
    title: str
    family: str
    latency_ns: Figure
    bytes_per_s: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEntry:
    """One host.

    Attributes:
        name: Key.
        title: What it is.
        gpu: Its model of GPU, or None.
        cpu: Its model of core.
        nvlink, pcie, socket: Its wires.
        source: Source of the topology.
        confirmed: A second public text was seen to state the topology.
        cores: Cores of a host without GPUs, else None.
        topology: Lines of its `nvidia-smi topo -m`, rows of the GPUs only.
    """

    name: str
    title: str
    gpu: str | None
    cpu: str
    nvlink: str | None
    pcie: str
    socket: str
    source: str
    confirmed: bool
    cores: int | None
    topology: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEntry:
    """Several equal hosts on one network."""

    name: str
    title: str
    node: str
    count: int
    network: str
