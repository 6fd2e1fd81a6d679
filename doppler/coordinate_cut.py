"""How `doppler coordinate` may cut this machine: cores, or every GPU by one back end.

The GPU back ends are *not yet run on hardware*.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from doppler.calibration_bench import MeasuredLayouts
from doppler.coordinator.layouts import even_layouts, instance_layouts, max_gmis
from doppler.coordinator.resource_model import Occupancy
from doppler.core.errors import ConfigError
from doppler.core.hardware import Hardware
from doppler.core.layout import DEVICE_KIND, Backend, Layout
from doppler.core.partition import PartitionRules
from executor.launch.gpus import Gpu, host_gpus
from executor.probe import BACKENDS, STATIC_MPS, ProbeResult, verify_backend
from executor.workers.mps import chunk_sms

FreeBytes = Callable[[], Mapping[str, int]]
"""Returns the memory of each GPU that nobody uses now, by its name."""


def free_gpu_bytes() -> Mapping[str, int]:
    """Returns the memory of each GPU of this host that nobody uses now."""
    return {gpu.name: gpu.free_bytes for gpu in host_gpus().gpus}


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The layouts that are compared.

    Attributes:
        backend: How each processor is cut.
        layouts: GMIs per processor -> layout, ascending.
        memory_bytes: Memory of the smallest processor, for all its GMIs together.
        num_processors: Processors that are cut.
        static_mps: MPS clients have static partitions.
        free_bytes: Reads the free memory of the GPUs.
    """

    backend: Backend
    layouts: Mapping[int, Layout]
    memory_bytes: int
    num_processors: int = 1
    static_mps: bool = False
    free_bytes: FreeBytes = field(default=dict)

    @property
    def is_on_cores(self) -> bool:
        """True if cores are cut."""
        return self.backend is Backend.core_group

    @property
    def kind(self) -> str:
        """Kind of the processors."""
        return "cpu" if self.is_on_cores else "gpu"

    @property
    def occupancy(self) -> Occupancy:
        """Whether what one GMI leaves idle serves others: MPS percentages only bound a client."""
        is_shared = self.backend is Backend.mps and not self.static_mps
        return Occupancy.time_weighted if is_shared else Occupancy.reserved

    @property
    def measured(self) -> MeasuredLayouts | None:
        """Where op times are measured: on the smallest and the largest GMI; None = as for cores."""
        if self.is_on_cores:
            return None
        most, least = max(self.layouts), min(self.layouts)
        is_one = most * self.num_processors == 1
        return MeasuredLayouts(
            spread=None if is_one else self.layouts[most], single=self.layouts[least]
        )


def core_cut(hardware: Hardware) -> Cut:
    """Returns the layouts of the cores of a host."""
    cpu = next(p for p in hardware.processors if p.kind == "cpu")
    layouts = even_layouts(hardware, Backend.core_group, max_gmis(cpu, Backend.core_group))
    return Cut(backend=Backend.core_group, layouts=layouts, memory_bytes=cpu.memory_bytes)


def make_cut(found: ProbeResult, backend: Backend, most: int, *, static_mps: bool = False) -> Cut:
    """Returns the layouts of this machine by a back end.

    Args:
        found: What the probe found.
        backend: How processors are cut. GPUs are cut by their free memory; MIG instances are those
            that exist.
        most: GMIs per GPU at most.
        static_mps: MPS clients get static partitions, whole chunks of multiprocessors.

    Raises:
        ConfigError: If the back end is absent; says why, as `doppler probe` does.
        ClusterError: If the GPUs cannot be cut alike.
    """
    if backend is Backend.core_group:
        return core_cut(found.hardware)
    name = STATIC_MPS if static_mps else BACKENDS[DEVICE_KIND[backend]]
    finding = verify_backend(found, name)
    if not finding.is_present:
        raise ConfigError(f"backend={backend.value} needs {name} on this machine: {finding.detail}")
    gpus = [gpu for gpu in found.inventory.gpus if gpu.has_mig == (backend is Backend.mig)]
    if backend is Backend.mig:
        layouts = instance_layouts(
            {gpu.name: [(i.units, i.memory_bytes) for i in gpu.instances] for gpu in gpus}
        )
    else:
        hardware = _hardware_of(found.hardware, gpus, static_mps)
        layouts = even_layouts(hardware, backend, most, {gpu.name: gpu.free_bytes for gpu in gpus})
    return Cut(
        backend=backend,
        layouts={gmis: layout for gmis, layout in layouts.items() if gmis <= most},
        memory_bytes=min(gpu.free_bytes for gpu in gpus),
        num_processors=len(gpus),
        static_mps=static_mps,
        free_bytes=free_gpu_bytes,
    )


def _hardware_of(hardware: Hardware, gpus: Sequence[Gpu], static_mps: bool) -> Hardware:
    """Returns the host with these GPUs only, cut by MPS in chunks where partitions are static."""
    names = {"cpu", *(gpu.name for gpu in gpus)}
    kept = {p.name: p for p in hardware.processors if p.name in names}
    for gpu in gpus if static_mps else ():
        rules = PartitionRules(mps_step=chunk_sms(gpu.capability))
        kept[gpu.name] = replace(kept[gpu.name], partitions=rules)
    links = tuple(link for link in hardware.links if {link.src, link.dst} <= names)
    return Hardware(name=hardware.name, processors=tuple(kept.values()), links=links)
