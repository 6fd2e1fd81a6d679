"""MIG slices as they are found: listing, profiles, environment. None is made, changed or removed.

Not yet run on hardware.

Source: NVIDIA MIG User Guide (device names, profiles, CUDA_VISIBLE_DEVICES with MIG UUIDs).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from doppler.core.errors import ClusterError

_GPU = re.compile(r"^GPU (\d+): (.+) \(UUID: (GPU-[0-9a-fA-F-]+)\)$")
_MIG = re.compile(r"^\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)\s]+)\)$")
_PROFILE = re.compile(r"^(?:(\d)c\.)?(\d)g\.(\d+)gb((?:\+[a-z.]+)*)$")
GIB = 1 << 30
COMPUTE_SLICES, MEMORY_SLICES = 7, 8


@dataclass(frozen=True, slots=True)
class MigProfile:
    """What a profile name says.

    Attributes:
        compute_slices: Sevenths of the multiprocessors that the compute instance has.
        instance_slices: Sevenths of the GPU instance that it lies in.
        memory_gib: Memory of the GPU instance, shared by its compute instances.
        attributes: What follows a plus sign ("me": media engines).
    """

    compute_slices: int
    instance_slices: int
    memory_gib: int
    attributes: tuple[str, ...] = ()

    @property
    def shares_instance(self) -> bool:
        """True if other compute instances may use the same memory and engines."""
        return self.compute_slices < self.instance_slices


@dataclass(frozen=True, slots=True)
class MigSlice:
    """One MIG device.

    Attributes:
        gpu, gpu_uuid: Index and UUID of its GPU.
        device: Index on that GPU.
        uuid: Its own UUID ("MIG-...").
        profile: What it owns.
    """

    gpu: int
    gpu_uuid: str
    device: int
    uuid: str
    profile: MigProfile


def parse_profile(name: str) -> MigProfile:
    """Returns what a profile ("1g.18gb", "1c.3g.20gb", "1g.10gb+me") says.

    Raises:
        ClusterError: If it is no profile.
    """
    match = _PROFILE.match(name)
    if match is None:
        raise ClusterError(f"a MIG profile looks like 1g.18gb or 1c.3g.20gb, and got {name!r}")
    compute, instance, memory, attributes = match.groups()
    slices = int(instance)
    own = int(compute) if compute else slices
    if not 1 <= own <= slices <= COMPUTE_SLICES:
        raise ClusterError(
            f"a MIG profile has 1 to {COMPUTE_SLICES} slices and no more than its instance, and "
            f"{name!r} has {own} of {slices}"
        )
    return MigProfile(own, slices, int(memory), tuple(filter(None, attributes.split("+"))))


def parse_listing(text: str) -> tuple[MigSlice, ...]:
    """Returns the MIG devices in the output of `nvidia-smi -L`.

    Raises:
        ClusterError: If a line is neither a GPU nor one of its MIG devices.
    """
    found: list[MigSlice] = []
    gpu: tuple[int, str] | None = None
    for line in filter(str.strip, text.splitlines()):
        if match := _GPU.match(line):
            gpu = (int(match[1]), match[3])
        elif (match := _MIG.match(line)) and gpu is not None:
            found.append(MigSlice(gpu[0], gpu[1], int(match[2]), match[3], parse_profile(match[1])))
        else:
            raise ClusterError(f"nvidia-smi -L lists GPUs and their MIG devices, and has {line!r}")
    return tuple(found)


def slice_environment(environment: Mapping[str, str], mig: MigSlice) -> dict[str, str]:
    """Returns the environment of a worker on a slice; a process sees one slice only."""
    kept = {k: v for k, v in environment.items() if not k.startswith("CUDA_MPS_")}
    return {**kept, "CUDA_VISIBLE_DEVICES": mig.uuid}


def assign_slices(
    wanted: Sequence[tuple[str, int]], found: Sequence[MigSlice]
) -> dict[str, MigSlice]:
    """Returns a slice per device: each gets the smallest free one with enough memory.

    Args:
        wanted: (device name, bytes of memory).
        found: Slices that exist.

    Raises:
        ClusterError: If there is none for some device; slices are never made here.
    """
    free = sorted(found, key=lambda mig: (mig.profile.memory_gib, mig.gpu, mig.device))
    assigned: dict[str, MigSlice] = {}
    for name, memory_bytes in wanted:
        fits = [mig for mig in free if mig.profile.memory_gib * GIB >= memory_bytes]
        if not fits:
            raise ClusterError(
                f"MIG slices are used as found, and for device {name!r} no free one of the "
                f"{len(found)} has {memory_bytes / GIB:.1f} GiB"
            )
        assigned[name] = fits[0]
        free.remove(fits[0])
    return assigned
