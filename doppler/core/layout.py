"""A layout: how each processor is cut into devices; `apply` gives the cluster."""

import enum
from dataclasses import dataclass, replace

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.errors import ClusterError, nearest
from doppler.core.hardware import Hardware, Processor
from doppler.core.partition import MEMORY_SLICES, MigProfile, check_instances


class Backend(enum.Enum):
    """What cuts a processor: cores by affinity, or one of the ways to share a GPU."""

    core_group = "core_group"
    whole = "whole"
    green_context = "green_context"
    mps = "mps"
    mig = "mig"


DEVICE_KIND = {
    Backend.core_group: "cpu",
    Backend.whole: "cuda",
    Backend.green_context: "green_context",
    Backend.mps: "mps",
    Backend.mig: "mig",
}
ZERO_COPY_BACKENDS = (Backend.core_group, Backend.green_context, Backend.mps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One device cut from a processor.

    Attributes:
        parent: Processor that it is cut from.
        backend: How it is cut.
        units: Cores or multiprocessors that it owns.
        name: Name of the device.
        memory_bytes: Its memory, or None for the same share as its units.
        num_streams: Ops that it may run at the same time.
    """

    parent: str
    backend: Backend
    units: int
    name: str
    memory_bytes: int | None = None
    num_streams: int = 1


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How hardware is cut into devices, in device order."""

    name: str
    slices: tuple[Slice, ...]

    def apply(self, hardware: Hardware) -> Cluster:
        """Returns the cluster that this layout makes of `hardware`.

        Devices of one parent are joined without a copy where the back end shares memory; devices
        of different parents inherit latency, bandwidth and buses of the link or fixed route between
        the parents. MIG instances see no peer (NVIDIA MIG User Guide, deployment considerations),
        neither of their own GPU nor of another: they are joined over the CPU of their host.

        Raises:
            ClusterError: If a slice names an unknown processor, does not fit its kind, is no cut
                that the processor's partition rules allow, or the slices of one processor own more
                units than it has.
        """
        used = dict.fromkeys(hardware.processor_by_name, 0)
        devices: list[Device] = []
        for part in self.slices:
            processor = hardware.processor_by_name.get(part.parent)
            if processor is None:
                raise ClusterError(
                    f"slice {part.name!r} of layout {self.name!r} names processor "
                    f"{part.parent!r}; {nearest(part.parent, hardware.processor_by_name)}"
                )
            devices.append(_cut(part, processor, used[part.parent], self.name))
            used[part.parent] += part.units
        for processor in hardware.processors:
            _check_together(
                [part for part in self.slices if part.parent == processor.name],
                processor,
                self.name,
            )
        return Cluster(
            name=f"{hardware.name}/{self.name}",
            devices=tuple(devices),
            links=tuple(_links(self.slices, hardware)),
        )


def _cut(part: Slice, processor: Processor, first_unit: int, layout: str) -> Device:
    where = f"slice {part.name!r} of layout {layout!r}"
    if (part.backend is Backend.core_group) != (processor.kind == "cpu"):
        raise ClusterError(
            f"a core_group cuts a cpu and nothing else does, and {where} cuts {processor.kind} "
            f"{processor.name!r} by {part.backend.value}"
        )
    if part.units < 1 or first_unit + part.units > processor.num_units:
        raise ClusterError(
            f"the slices of {processor.name!r} own at most its {processor.num_units} units, and "
            f"{where} asks for {part.units} with {first_unit} taken"
        )
    profile = _check_cut(part, processor, where)
    share = part.units / processor.num_units
    memory_share = share if profile is None else profile.memory_slices / MEMORY_SLICES
    memory = part.memory_bytes
    if memory is None:
        memory = profile.memory_bytes if profile else int(processor.memory_bytes * share)
    return Device(
        name=part.name,
        kind=DEVICE_KIND[part.backend],
        parent=processor.name,
        share=share,
        memory_bytes=memory,
        num_streams=part.num_streams,
        copy_engines=profile.copy_engines if profile else processor.copy_engines,
        cores=processor.core_ids[first_unit : first_unit + part.units],
        flop_per_s=int(processor.flop_per_s * share),
        memory_bytes_per_s=int(processor.memory_bytes_per_s * memory_share),
        launch_ns=processor.launch_ns,
    )


def _check_cut(part: Slice, processor: Processor, where: str) -> MigProfile | None:
    """Checks one slice against the processor's rules; returns the profile of a MIG instance."""
    rules = processor.partitions
    if rules is None:
        return None
    place = f"{where} of {processor.name!r} ({processor.model})"
    if part.backend is Backend.mps:
        rules.check_mps(part.units, place)
    elif part.backend is Backend.green_context:
        rules.check_green_context(part.units, place)
    elif part.backend is Backend.mig:
        return rules.mig_profile(part.units, part.memory_bytes, place)
    return None


def _check_together(parts: list[Slice], processor: Processor, layout: str) -> None:
    """Checks the slices of one processor against each other."""
    if processor.partitions is None or all(part.backend is not Backend.mig for part in parts):
        return
    where = f"layout {layout!r} for {processor.name!r} ({processor.model})"
    other = next((part for part in parts if part.backend is not Backend.mig), None)
    if other is not None:
        raise ClusterError(
            f"a GPU in MIG mode is cut into MIG instances only, and {where} has slice "
            f"{other.name!r} by {other.backend.value} beside them"
        )
    rules = processor.partitions
    profiles = [rules.mig_profile(part.units, part.memory_bytes, where) for part in parts]
    check_instances(profiles, where)


def _links(slices: tuple[Slice, ...], hardware: Hardware) -> list[Link]:
    links: list[Link] = []
    for a in slices:
        for b in slices:
            if a.name == b.name:
                continue
            link = _path(a, b, hardware)
            if link is None:
                continue
            sender = hardware.processor_by_name[a.parent]
            # Without copy engines the sender's stream is what a copy holds, not the wires.
            buses = link.buses if sender.copy_engines else ()
            links.append(replace(link, src=a.name, dst=b.name, buses=buses))
    return links


def _path(a: Slice, b: Slice, hardware: Hardware) -> Link | None:
    if a.parent == b.parent and a.backend in ZERO_COPY_BACKENDS and b.backend in ZERO_COPY_BACKENDS:
        publish_ns = hardware.processor_by_name[a.parent].publish_ns
        return Link(src=a.name, dst=b.name, latency_ns=publish_ns)
    is_mig = Backend.mig in (a.backend, b.backend)
    if is_mig and Backend.core_group not in (a.backend, b.backend):
        return hardware.link_through_host(a.parent, b.parent)
    return hardware.link_table.get((a.parent, b.parent))


def per_core_layout(processor: Processor) -> Layout:
    """Returns the layout with one device per core of a CPU."""
    return Layout(
        name="per_core",
        slices=tuple(
            Slice(parent=processor.name, backend=Backend.core_group, units=1, name=f"core{index}")
            for index in range(processor.num_units)
        ),
    )


def all_cores_layout(processor: Processor) -> Layout:
    """Returns the layout with one device that owns all cores of a CPU."""
    part = Slice(
        parent=processor.name,
        backend=Backend.core_group,
        units=processor.num_units,
        name="all_cores",
    )
    return Layout(name="all_cores", slices=(part,))


def whole_layout(hardware: Hardware) -> Layout:
    """Returns the layout with one device per GPU; without a GPU, one per core of each CPU."""
    gpus = [processor for processor in hardware.processors if processor.kind == "gpu"]
    if gpus:
        return Layout(
            name="whole",
            slices=tuple(
                Slice(parent=gpu.name, backend=Backend.whole, units=gpu.num_units, name=gpu.name)
                for gpu in gpus
            ),
        )
    return Layout(
        name="per_core",
        slices=tuple(
            Slice(
                parent=cpu.name,
                backend=Backend.core_group,
                units=1,
                name=f"{cpu.name}.core{index}",
            )
            for cpu in hardware.processors
            for index in range(cpu.num_units)
        ),
    )
