"""Even layouts: every processor of one kind cut into the same number of GMIs."""

from collections import Counter
from collections.abc import Mapping, Sequence

from doppler.core.errors import ClusterError
from doppler.core.hardware import Hardware, Processor
from doppler.core.layout import Backend, Layout, Slice
from doppler.core.partition import PartitionRules, check_instances

MAX_GMIS = {Backend.mig: 7, Backend.mps: 48}
"""GMIs per GPU that the vendor allows.

Source: NVIDIA MIG User Guide (seven compute slices); NVIDIA MPS documentation (48 clients).
"""
UNIT_MULTIPLE = {Backend.green_context: 8}
"""Multiprocessors come in groups of this many from Hopper on; used where a processor has no rules.

Source: FlashInfer documentation of `split_device_green_ctx` (10 asked -> 16).
"""
CONTEXT_MARGIN = 0.05
"""Part of a GPU's free memory that no GMI owns: contexts of CUDA take it. Ours, not measured."""


def max_gmis(processor: Processor, backend: Backend) -> int:
    """Returns how many equal GMIs a processor can be cut into by a back end, 0 if into none."""
    most = MAX_GMIS.get(backend, processor.num_units)
    return next((gmis for gmis in range(most, 0, -1) if even_units(processor, backend, gmis)), 0)


def even_units(processor: Processor, backend: Backend, gmis: int) -> int:
    """Returns the units of each of `gmis` equal GMIs, 0 if the processor cannot be cut so finely.

    They keep to the processor's partition rules where it has some; units that do not divide are
    left over.
    """
    if not 1 <= gmis <= MAX_GMIS.get(backend, processor.num_units):
        return 0
    if backend is Backend.whole:
        return processor.num_units if gmis == 1 else 0
    step, least, rules = UNIT_MULTIPLE.get(backend, 1), 1, processor.partitions
    if rules is not None and backend is Backend.mig:
        return _mig_units(rules, gmis)
    if rules is not None and backend is Backend.mps:
        step = rules.mps_step
    elif rules is not None and backend is Backend.green_context:
        step, least = rules.green_step if rules.green_min else 0, rules.green_min
    units = processor.num_units // gmis // step * step if step else 0
    return units if units >= least else 0


def even_layout(
    hardware: Hardware,
    backend: Backend,
    gmis: int,
    free_bytes: Mapping[str, int] | None = None,
) -> Layout:
    """Returns the layout with `gmis` equal devices on every processor that the back end cuts.

    Units that do not divide are left over; streams of a processor are not divided.

    Args:
        hardware: What there is.
        backend: How it is cut.
        gmis: Devices per processor.
        free_bytes: Memory of each GPU that nobody uses, by name: devices share that, less a margin.
            None = the share of its units. MIG instances own what their profile says.

    Raises:
        ClusterError: If there is no such processor, or one cannot be cut so finely.
    """
    kind = "cpu" if backend is Backend.core_group else "gpu"
    processors = [p for p in hardware.processors if p.kind == kind]
    if not processors:
        raise ClusterError(
            f"back end {backend.value!r} cuts a {kind}, and hardware {hardware.name!r} has none"
        )
    slices: list[Slice] = []
    for processor in processors:
        units = even_units(processor, backend, gmis)
        if units == 0:
            most = max_gmis(processor, backend)
            found = f"into 1 to {most} GMIs" if most else "into no GMIs"
            raise ClusterError(
                f"{processor.name!r} is cut {found} by {backend.value}, and {gmis} are asked"
            )
        memory = None
        if free_bytes is not None and backend not in (Backend.core_group, Backend.mig):
            memory = int(free_bytes[processor.name] * (1 - CONTEXT_MARGIN)) // gmis
        slices += [
            Slice(
                parent=processor.name,
                backend=backend,
                units=units,
                name=f"{processor.name}.{index}",
                memory_bytes=memory,
            )
            for index in range(gmis)
        ]
    return Layout(name=f"{backend.value}x{gmis}", slices=tuple(slices))


def even_layouts(
    hardware: Hardware,
    backend: Backend,
    most: int,
    free_bytes: Mapping[str, int] | None = None,
) -> dict[int, Layout]:
    """Returns every even layout of 1 to `most` devices per processor that all processors allow.

    Raises:
        ClusterError: If there is none.
    """
    kind = "cpu" if backend is Backend.core_group else "gpu"
    processors = [p for p in hardware.processors if p.kind == kind]
    possible = [
        gmis
        for gmis in range(1, most + 1)
        if all(even_units(processor, backend, gmis) for processor in processors)
    ]
    if not possible or not processors:
        even_layout(hardware, backend, 1)  # says why
        raise ClusterError(f"hardware {hardware.name!r} has no even layout by {backend.value}")
    return {gmis: even_layout(hardware, backend, gmis, free_bytes) for gmis in possible}


def instance_layouts(instances: Mapping[str, Sequence[tuple[int, int]]]) -> dict[int, Layout]:
    """Returns the layouts of MIG instances that exist: the same number of one size on every GPU.

    Args:
        instances: GPU -> (multiprocessors, bytes) of each of its instances.

    Raises:
        ClusterError: If no size is there on every GPU.
    """
    sizes = [Counter(found) for found in instances.values()]
    common = set(sizes[0]).intersection(*sizes[1:]) if sizes else set()
    if not common:
        raise ClusterError(
            f"MIG layouts need instances of one size on every GPU, and they are "
            f"{ {gpu: list(found) for gpu, found in instances.items()} } (multiprocessors, bytes)"
        )
    # The size of which most are there on every GPU; of equals the larger one.
    units, memory = max(common, key=lambda size: (min(found[size] for found in sizes), size))
    return {
        gmis: Layout(
            name=f"mig{units}x{gmis}",
            slices=tuple(
                Slice(
                    parent=gpu,
                    backend=Backend.mig,
                    units=units,
                    name=f"{gpu}.{index}",
                    memory_bytes=memory,
                )
                for gpu in instances
                for index in range(gmis)
            ),
        )
        for gmis in range(1, min(found[units, memory] for found in sizes) + 1)
    }


def _mig_units(rules: PartitionRules, gmis: int) -> int:
    """Units of the largest profile of which a GPU holds so many instances, 0 if of none."""
    for profile in sorted(rules.mig, key=lambda profile: -profile.units):
        least_memory = rules.mig_profile(profile.units, None, "an even layout")
        try:
            check_instances([least_memory] * gmis, "an even layout")
        except ClusterError:
            continue
        return profile.units
    return 0
