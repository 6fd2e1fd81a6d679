"""A layout: how each processor is cut into devices; `apply` gives the cluster."""

import enum
from dataclasses import dataclass

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.errors import ClusterError, nearest
from doppler.core.hardware import Hardware, Processor


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
        of different parents inherit latency, bandwidth and buses of the link between the parents.

        Raises:
            ClusterError: If a slice names an unknown processor, does not fit its kind, or the
                slices of one processor own more units than it has.
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
    share = part.units / processor.num_units
    memory = part.memory_bytes
    return Device(
        name=part.name,
        kind=DEVICE_KIND[part.backend],
        parent=processor.name,
        share=share,
        memory_bytes=int(processor.memory_bytes * share) if memory is None else memory,
        num_streams=part.num_streams,
        copy_engines=processor.copy_engines,
        cores=processor.core_ids[first_unit : first_unit + part.units],
        flop_per_s=int(processor.flop_per_s * share),
        memory_bytes_per_s=int(processor.memory_bytes_per_s * share),
        launch_ns=processor.launch_ns,
    )


def _links(slices: tuple[Slice, ...], hardware: Hardware) -> list[Link]:
    physical = {(link.src, link.dst): link for link in hardware.links}
    links: list[Link] = []
    for a in slices:
        for b in slices:
            if a.name == b.name:
                continue
            if a.parent == b.parent:
                if a.backend in ZERO_COPY_BACKENDS and b.backend in ZERO_COPY_BACKENDS:
                    publish_ns = hardware.processor_by_name[a.parent].publish_ns
                    links.append(Link(src=a.name, dst=b.name, latency_ns=publish_ns))
                continue
            link = physical.get((a.parent, b.parent))
            if link is not None:
                links.append(
                    Link(
                        src=a.name,
                        dst=b.name,
                        latency_ns=link.latency_ns,
                        bytes_per_s=link.bytes_per_s,
                        buses=link.buses,
                    )
                )
    return links


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
