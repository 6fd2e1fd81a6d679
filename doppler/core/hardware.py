"""Hardware: what is physically there, before a layout cuts it into devices."""

from dataclasses import dataclass
from functools import cached_property

from doppler.core.cluster import Link
from doppler.core.errors import ClusterError

PROCESSOR_KINDS = ("cpu", "gpu")


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


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """All processors of one or more hosts and the links between them (named by processor)."""

    name: str
    processors: tuple[Processor, ...]
    links: tuple[Link, ...] = ()

    def __post_init__(self) -> None:
        names = [processor.name for processor in self.processors]
        if not names or len(set(names)) != len(names):
            raise ClusterError(
                f"hardware has processors with unique names, and {self.name!r} has {names}"
            )
        for link in self.links:
            for end in (link.src, link.dst):
                if end not in names:
                    raise ClusterError(
                        f"link {link.src!r} -> {link.dst!r} of hardware {self.name!r} names "
                        f"{end!r}, and processors are {names}"
                    )

    @cached_property
    def processor_by_name(self) -> dict[str, Processor]:
        """Processor name -> processor."""
        return {processor.name: processor for processor in self.processors}
