"""MIG instances as they are found: profiles, choice, environment. None is made, changed or removed.

Not yet run on hardware.

Source: NVIDIA MIG User Guide (device names, profiles, CUDA_VISIBLE_DEVICES with MIG UUIDs).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from doppler.core.errors import ClusterError

_PROFILE = re.compile(r"^(?:(\d)c\.)?(\d)g\.(\d+)gb((?:\+[a-z.]+)*)$")
COMPUTE_SLICES = 7


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """One MIG device that exists.

    Attributes:
        uuid: Its own UUID ("MIG-...").
        profile: Its profile's name ("1g.18gb").
        units: Multiprocessors that it has.
        memory_bytes: Memory that it has.
    """

    uuid: str
    profile: str
    units: int
    memory_bytes: int

    @property
    def text(self) -> str:
        """Profile and numbers in words."""
        shared = ", memory shared" if parse_profile(self.profile).shares_instance else ""
        return f"{self.profile} ({self.units} SMs, {self.memory_bytes} bytes{shared})"


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


def profile_of(device_name: str) -> str:
    """Returns the profile at the end of a MIG device's name ("NVIDIA A100-SXM4-40GB MIG 1g.5gb").

    Raises:
        ClusterError: If the name ends in none.
    """
    profile = device_name.rpartition(" ")[2]
    parse_profile(profile)
    return profile


def instance_environment(environment: Mapping[str, str], uuid: str) -> dict[str, str]:
    """Returns the environment of a worker on an instance; a process sees one instance only."""
    kept = {k: v for k, v in environment.items() if not k.startswith("CUDA_MPS_")}
    return {**kept, "CUDA_VISIBLE_DEVICES": uuid}


def assign_instances(
    wanted: Sequence[tuple[str, int, int]], found: Sequence[MigInstance], gpu: str
) -> dict[str, MigInstance]:
    """Returns an instance per device: the smallest free one that is large enough.

    Args:
        wanted: (device name, multiprocessors, bytes of memory); multiprocessors match exactly.
        found: Instances of one GPU.
        gpu: Name of that GPU, for messages.

    Raises:
        ClusterError: If there is none for some device; instances are never made here.
    """
    free = sorted(found, key=lambda mig: (mig.memory_bytes, mig.uuid))
    assigned: dict[str, MigInstance] = {}
    for name, units, memory_bytes in sorted(wanted, key=lambda row: -row[2]):
        fits = [mig for mig in free if mig.units == units and mig.memory_bytes >= memory_bytes]
        if not fits:
            left = ", ".join(mig.text for mig in free) or "none"
            raise ClusterError(
                f"MIG instances are used as found, and device {name!r} of {gpu!r} needs one of "
                f"{units} SMs and {memory_bytes} bytes; free there: {left}"
            )
        assigned[name] = fits[0]
        free.remove(fits[0])
    return assigned
