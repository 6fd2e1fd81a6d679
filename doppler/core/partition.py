"""How a GPU may be cut: MIG profiles, and the units that MPS and green contexts come in."""

from collections.abc import Sequence
from dataclasses import dataclass

from doppler.core.errors import ClusterError

MEMORY_SLICES = 8
"""Memory slices of a GPU with MIG. Source: NVIDIA MIG User Guide, section on concepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """One kind of GPU instance.

    Attributes:
        name: As the driver prints it, such as "2g.20gb".
        units: Multiprocessors of an instance.
        memory_slices: Eighths of the memory (and of its bandwidth) that an instance owns.
        memory_bytes: Its memory.
        max_count: Instances of this profile that a GPU holds.
        starts: Memory slices at which an instance may begin.
        copy_engines: Copies that it runs beside kernels.

    Raises:
        ClusterError: If a number is out of range.
    """

    name: str
    units: int
    memory_slices: int
    memory_bytes: int
    max_count: int
    starts: tuple[int, ...]
    copy_engines: int

    def __post_init__(self) -> None:
        where = f"MIG profile {self.name!r}"
        for label, least in (
            ("units", 1),
            ("memory_slices", 1),
            ("memory_bytes", 0),
            ("max_count", 1),
            ("copy_engines", 0),
        ):
            if getattr(self, label) < least:
                raise ClusterError(
                    f"{label} is at least {least}, and {where} has {getattr(self, label)}"
                )
        if min(self.starts, default=0) < 0:
            raise ClusterError(f"starts are memory slices from 0 on, and {where} has {self.starts}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRules:
    """What cuts of one GPU exist.

    Attributes:
        mig: Profiles; none = the GPU has no MIG.
        mps_step: Multiprocessors per MPS chunk; 0 = MPS gives no share of this GPU.
        green_min: Least multiprocessors of a green context; 0 = no green contexts.
        green_step: Multiprocessors of a green context come in multiples of it.

    Raises:
        ClusterError: If a number is negative, or green contexts exist and have no step.
    """

    mig: tuple[MigProfile, ...] = ()
    mps_step: int = 0
    green_min: int = 0
    green_step: int = 0

    def __post_init__(self) -> None:
        if min(self.mps_step, self.green_min, self.green_step) < 0:
            raise ClusterError(
                f"mps_step, green_min and green_step are at least 0, and they are "
                f"{self.mps_step}, {self.green_min}, {self.green_step}"
            )
        if self.green_min and not self.green_step:
            raise ClusterError(
                f"green contexts of at least {self.green_min} multiprocessors have a green_step of "
                f"at least 1, and it is 0"
            )

    def check_mps(self, units: int, where: str) -> None:
        """Checks the size of an MPS partition.

        Raises:
            ClusterError: If MPS cannot give that many multiprocessors.
        """
        if self.mps_step == 0:
            raise ClusterError(f"MPS gives no share of this GPU, and {where} asks for one")
        if units % self.mps_step:
            raise ClusterError(
                f"MPS cuts this GPU in chunks of {self.mps_step} multiprocessors, and {where} asks "
                f"for {units}"
            )

    def check_green_context(self, units: int, where: str) -> None:
        """Checks the size of a green context.

        Raises:
            ClusterError: If the driver would round that many multiprocessors.
        """
        if self.green_min == 0:
            raise ClusterError(f"this GPU has no green contexts, and {where} asks for one")
        if units < self.green_min or units % self.green_step:
            raise ClusterError(
                f"a green context of this GPU owns at least {self.green_min} multiprocessors and a "
                f"multiple of {self.green_step}, and {where} asks for {units}"
            )

    def mig_profile(self, units: int, memory_bytes: int | None, where: str) -> MigProfile:
        """Returns the profile of an instance: the least memory of that size that suffices.

        Raises:
            ClusterError: If no profile has that many multiprocessors and that much memory.
        """
        if not self.mig:
            raise ClusterError(f"this GPU has no MIG, and {where} asks for an instance")
        fitting = [
            profile
            for profile in self.mig
            if profile.units == units and (memory_bytes or 0) <= profile.memory_bytes
        ]
        if not fitting:
            known = ", ".join(f"{p.name} ({p.units}, {p.memory_bytes} bytes)" for p in self.mig)
            wanted = "" if memory_bytes is None else f" with {memory_bytes} bytes"
            raise ClusterError(
                f"a MIG instance has the multiprocessors and at most the memory of a profile "
                f"({known}), and {where} asks for {units}{wanted}"
            )
        return min(fitting, key=lambda profile: profile.memory_bytes)


def check_instances(profiles: Sequence[MigProfile], where: str) -> None:
    """Checks that a GPU can hold these instances at the same time.

    Raises:
        ClusterError: If a profile is there too often, or no placement on the memory slices exists.
    """
    names = [profile.name for profile in profiles]
    for profile in profiles:
        if names.count(profile.name) > profile.max_count:
            raise ClusterError(
                f"a GPU holds at most {profile.max_count} MIG instances {profile.name}, and "
                f"{where} asks for {names.count(profile.name)}"
            )
    largest_first = sorted(profiles, key=lambda profile: -profile.memory_slices)
    if not _fits(largest_first, frozenset()):
        raise ClusterError(
            f"MIG instances share {MEMORY_SLICES} memory slices, each from a start of its profile, "
            f"and {where} asks for {', '.join(names)}, which no placement holds"
        )


def _fits(profiles: Sequence[MigProfile], taken: frozenset[int]) -> bool:
    if not profiles:
        return True
    first, *rest = profiles
    for start in first.starts:
        slices = frozenset(range(start, start + first.memory_slices))
        if max(slices) < MEMORY_SLICES and not slices & taken and _fits(rest, taken | slices):
            return True
    return False
