"""Named machines: hardware and clusters made of catalogue entries."""

from collections.abc import Sequence

from doppler.core.cluster import Cluster
from doppler.core.errors import ConfigError, nearest
from doppler.core.hardware import Hardware, Processor
from doppler.core.layout import Layout, whole_layout
from doppler.core.partition import MEMORY_SLICES, MigProfile, PartitionRules
from simulator.hardware.catalogue import DEFAULT_DTYPE, Catalogue
from simulator.hardware.entries import CpuEntry, GpuEntry, NodeEntry, Rate
from simulator.hardware.topology import Topology, parse_topology
from simulator.hardware.wiring import Wires, gpu_groups, join_hosts, wire_host

DTYPE_MARK = "@"


def split_name(name: str) -> tuple[str, str]:
    """Returns machine and data type of a name such as "dgx_a100" or "dgx_a100@bf16"."""
    machine, mark, dtype = name.partition(DTYPE_MARK)
    return machine, dtype if mark else DEFAULT_DTYPE


def named_hardware(catalogue: Catalogue, name: str) -> Hardware:
    """Returns the hardware of a named machine.

    Args:
        catalogue: What is known.
        name: Node or pod, with "@dtype" behind it for the rates of a data type (default fp32).

    Raises:
        ConfigError: If the machine is unknown, or its processors have no such data type.
    """
    machine, dtype = split_name(name)
    node, count, network = catalogue.node_of(machine)
    if node.gpu is None:
        cores = tuple(range(node.cores or 0))
        return Hardware(
            name=name, processors=(cpu_processor(catalogue.cpus[node.cpu], "cpu0", cores, dtype),)
        )
    topology = parse_topology("\n".join(node.topology), node.name)
    host = imported_hardware(catalogue, name, topology, node, dtype)
    if network is None:
        return host
    return join_hosts(name, host, count, topology, catalogue.links[network])


def named_cluster(catalogue: Catalogue, name: str, layout: Layout | None = None) -> Cluster:
    """Returns the cluster of a named machine: whole GPUs (or single cores), or cut by `layout`.

    Raises:
        ConfigError: If the machine is unknown, or its processors have no such data type.
        ClusterError: If the layout does not fit.
    """
    hardware = named_hardware(catalogue, name)
    return (layout or whole_layout(hardware)).apply(hardware)


def imported_hardware(
    catalogue: Catalogue,
    name: str,
    topology: Topology,
    node: NodeEntry,
    dtype: str = DEFAULT_DTYPE,
) -> Hardware:
    """Returns the hardware of one host with a given topology, and the models and wires of `node`.

    Raises:
        ConfigError: If the node has no GPU, the GPU lacks the data type, or the topology states
            NVLinks and the GPU has none.
    """
    if node.gpu is None:
        raise ConfigError(f"a topology joins GPUs, and {node.name!r} has none")
    entry = catalogue.gpus[node.gpu]
    _, cpu_of = gpu_groups(topology)
    sockets = sorted(set(cpu_of))
    cpus = [
        cpu_processor(
            catalogue.cpus[node.cpu],
            f"cpu{socket}",
            topology.cores[cpu_of.index(socket)],
            dtype,
        )
        for socket in sockets
    ]
    gpus = [gpu_processor(entry, f"gpu{index}", dtype) for index in range(len(topology.gpus))]
    wires = Wires(
        nvlink=None if node.nvlink is None else catalogue.links[node.nvlink],
        pcie=catalogue.links[node.pcie],
        socket=catalogue.links[node.socket],
    )
    return wire_host(name, topology, gpus, cpus, wires, entry.nvlink_links.value)


def gpu_processor(entry: GpuEntry, name: str, dtype: str) -> Processor:
    """Returns one GPU of a model, with the rate of a data type."""
    memory = entry.memory_bytes.value
    return Processor(
        name=name,
        kind="gpu",
        model=entry.title,
        num_units=entry.num_sms.value,
        memory_bytes=memory,
        copy_engines=entry.copy_engines.value,
        flop_per_s=_rate(entry.flop_per_s, dtype, entry.title),
        memory_bytes_per_s=entry.memory_bytes_per_s.value,
        launch_ns=entry.launch_ns.value,
        partitions=PartitionRules(
            mig=tuple(
                MigProfile(
                    name=profile.name,
                    units=profile.units,
                    memory_slices=profile.memory_slices,
                    memory_bytes=memory * profile.memory_slices // MEMORY_SLICES,
                    max_count=profile.max_count,
                    starts=profile.starts,
                    copy_engines=profile.copy_engines,
                )
                for profile in entry.mig
            ),
            mps_step=entry.mps_step.value,
            green_min=entry.green_min.value,
            green_step=entry.green_step.value,
        ),
    )


def cpu_processor(entry: CpuEntry, name: str, cores: Sequence[int], dtype: str) -> Processor:
    """Returns a CPU made of cores of a model; without core ids (none printed) it counts as one.

    Cores have no tensor units: types that the entry does not list run at its fp32 rate.
    """
    known = {rate.dtype for rate in entry.flop_per_s}
    num_cores = max(1, len(cores))
    rate = _rate(entry.flop_per_s, dtype if dtype in known else DEFAULT_DTYPE, entry.title)
    return Processor(
        name=name,
        kind="cpu",
        model=entry.title,
        num_units=num_cores,
        memory_bytes=entry.memory_bytes.value * num_cores,
        core_ids=tuple(cores),
        publish_ns=entry.publish_ns.value,
        flop_per_s=rate * num_cores,
        memory_bytes_per_s=entry.memory_bytes_per_s.value * num_cores,
        launch_ns=entry.launch_ns.value,
    )


def _rate(rates: Sequence[Rate], dtype: str, title: str) -> int:
    values = {rate.dtype: rate.value for rate in rates}
    if dtype not in values:
        raise ConfigError(f"{title} has no rate for {dtype!r}; {nearest(dtype, values)}")
    return values[dtype]
