"""Layout and communication of a set of GMIs as text."""

from collections.abc import Sequence

import numpy as np

from executor.collectives.kernels import CollectiveKernel
from executor.gmi.communication import Channel, Collective, GMISpec, Link
from executor.launch.local import num_threads


def describe_gmi(spec: GMISpec) -> str:
    """Returns a GMI with its share of the hardware, on one line."""
    device = spec.device
    return (
        f"GMI {spec.gmi_id}  role {spec.role}  device {device.name} "
        f"(cores {','.join(map(str, device.cores))}; {num_threads(device)} threads; "
        f"{device.share:.0%} of {device.parent}; {device.memory_bytes / 2**30:.1f} GiB)"
    )


def describe_link(link: Link) -> str:
    """Returns who says what to whom, on one line."""
    if isinstance(link, Collective):
        layout = link.layout
        item = np.dtype(layout.dtype).itemsize
        shared = link.kernel is CollectiveKernel.shared_memory
        how = layout.schedule.name if shared else f"by {link.kernel.value}"
        return (
            f"all-reduce {link.name}: GMIs {_ids(link.members)}, {how}, "
            f"{layout.num_elements} x {layout.dtype} ({layout.num_elements * item / 1024:.1f} KiB)"
        )
    if isinstance(link, Channel):
        batch = link.ring.batch
        return (
            f"channel {link.name}: GMIs {_ids(link.producers)} -> {_ids(link.consumers)}, "
            f"{len(batch.channels)} packed channels, {batch.batch} records "
            f"({batch.size_bytes / 1024:.1f} KiB) per batch, {link.ring.num_slots} batches per "
            f"ring, full: {link.when_full.value}"
        )
    return (
        f"weights {link.name}: GMI {link.publisher} -> {_ids(link.readers)}, "
        f"{link.num_bytes / 1024:.1f} KiB"
    )


def _ids(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids))
