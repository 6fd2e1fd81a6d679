"""Even layouts: every processor of one kind cut into the same number of GMIs."""

from doppler.core.errors import ClusterError
from doppler.core.hardware import Hardware, Processor
from doppler.core.layout import Backend, Layout, Slice

MAX_GMIS = {Backend.mig: 7, Backend.mps: 48}
"""GMIs per GPU that the vendor allows.

Source: NVIDIA MIG User Guide (seven compute slices); NVIDIA MPS documentation (48 clients).
"""
UNIT_MULTIPLE = {Backend.green_context: 8}
"""Multiprocessors come in groups of this many from Hopper on.

Source: FlashInfer documentation of `split_device_green_ctx` (10 asked -> 16).
"""


def max_gmis(processor: Processor, backend: Backend) -> int:
    """Returns how many GMIs a processor can be cut into by a back end."""
    if backend is Backend.whole:
        return 1
    units = processor.num_units // UNIT_MULTIPLE.get(backend, 1)
    return min(units, MAX_GMIS.get(backend, units))


def even_layout(hardware: Hardware, backend: Backend, gmis: int) -> Layout:
    """Returns the layout with `gmis` equal devices on every processor that the back end cuts.

    Units that do not divide are left over; streams of a processor are not divided.

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
        most = max_gmis(processor, backend)
        if not 1 <= gmis <= most:
            raise ClusterError(
                f"{processor.name!r} is cut into 1 to {most} GMIs by {backend.value}, and {gmis} "
                f"are asked"
            )
        multiple = UNIT_MULTIPLE.get(backend, 1) if gmis > 1 else 1
        units = processor.num_units // gmis // multiple * multiple
        slices += [
            Slice(
                parent=processor.name,
                backend=backend,
                units=units,
                name=f"{processor.name}.{index}",
            )
            for index in range(gmis)
        ]
    return Layout(name=f"{backend.value}x{gmis}", slices=tuple(slices))
