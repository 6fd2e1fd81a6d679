"""Records per batch of an experience channel: an analytic choice, then measured near it.

The paper's metric (`top_mov`) chooses how packages are grouped; the batch cancels out of it. So the
analytic choice is ours. A batch costs about what a call of `send` does, beside its bytes: with some
tens of calls per batch nothing more is gained. A ring that leaves the cache of a core is read from
memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from doppler.core.cluster import Device
from doppler.core.errors import ConfigError
from doppler.gmi_trial import Measured, TrialOptions, run_trial
from executor.experience.flow import WhenFull
from executor.experience.packages import (
    BatchLayout,
    Package,
    choose_batch,
    group_packages,
    top_mov,
)
from executor.experience.ring import RingLayout
from executor.gmi.communication import Channel
from executor.gmi.trials import MoveTrial

CACHE_BYTES = 1 << 20
"""Taken for the cache of a core where the system does not tell."""
NEAR = (-2, -1, 0, 1, 2)
"""Powers of two beside the analytic choice that are measured."""
MOVED_BATCHES = 8
"""Training batches moved per measurement: of the largest batch, rounded up to whole calls."""
ENOUGH_CALLS = 64
"""Calls of `send` per batch after which its fixed cost is small."""
TOLERANCE = 0.03
"""A smaller batch is preferred if its rate is lower by no more than this part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChoice:
    """Which batch a channel has, and why.

    Attributes:
        batch: Records per batch.
        analytic: The analytic choice.
        records_per_s: Measured rate per batch size.
        measured: How they were measured.
        top_mov: The paper's metric of the grouping, in bytes.
    """

    batch: int
    analytic: int
    records_per_s: dict[int, float]
    measured: Measured
    top_mov: float

    def describe(self) -> str:
        """Returns the figures as text, one batch size per line."""
        lines = [
            f"batch {self.batch} (analytic {self.analytic}; TOP_mov {self.top_mov:.1f} bytes), "
            f"{self.measured.describe()}"
        ]
        lines += [f"  {b}: {rate / 1e6:.2f} M records/s" for b, rate in self.records_per_s.items()]
        return "\n".join(lines)


def analytic_batch(
    packages: Sequence[Package], num_slots: int, num_sent: int, cache_bytes: int
) -> int:
    """Returns the largest power of two, 1 at least, that is of use.

    With it a ring takes no more than half of a cache, and a batch no more than `ENOUGH_CALLS`.
    """
    record_bytes = sum(package.num_bytes for package in packages)
    useful = min(cache_bytes // (2 * num_slots * record_bytes), ENOUGH_CALLS * num_sent)
    return 1 << max(0, useful.bit_length() - 1)


def measured_batch(
    producer: Device,
    consumer: Device,
    packages: Sequence[Package],
    num_slots: int,
    num_sent: int,
    options: TrialOptions | None = None,
) -> BatchChoice:
    """Returns the batch for a channel: the fastest of the powers of two near the analytic choice.

    Args:
        producer: Device of a GMI that sends.
        consumer: Device of one that receives.
        packages: Fields of a record.
        num_slots: Batches that a ring holds.
        num_sent: Records per call of `send`.
        options: How it is measured.

    Raises:
        ConfigError: If there is less than one record per call.
        CapacityError: If memory or shared memory do not suffice.
        WorkerDiedError, WorkerHungError: If a process of the trial fails.
    """
    if num_sent < 1:
        raise ConfigError(f"a call of send has at least one record, and it has {num_sent}")
    groups = group_packages(packages)
    analytic = analytic_batch(packages, num_slots, num_sent, cache_bytes(producer))
    batches = sorted({max(1, int(analytic * 2.0**power)) for power in NEAR})
    links = {
        str(batch): Channel(
            name=str(batch),
            producers=(0,),
            consumers=(1,),
            ring=RingLayout(BatchLayout(groups, batch), num_slots),
            when_full=WhenFull.block,
        )
        for batch in batches
    }
    num_received = num_sent * -(-batches[-1] // num_sent)  # whole calls of `send`
    num_records = MOVED_BATCHES * num_received
    settings = {
        "packages": BatchLayout(groups, 1).packages,
        "num_records": num_records,
        "num_sent": num_sent,
        "num_received": num_received,
    }
    measured = run_trial(
        MoveTrial, (producer, consumer), links, settings, lambda verdict: True, options
    )
    medians = measured.verdict.medians_ns
    rates = {b: num_records * 1e9 / ns for b, ns in zip(batches, medians, strict=True)}
    return BatchChoice(
        batch=choose_batch(batches, rates.__getitem__, TOLERANCE),
        analytic=analytic,
        records_per_s=rates,
        measured=measured,
        top_mov=float(top_mov(groups)),
    )


def cache_bytes(device: Device) -> int:
    """Returns the second-level cache of the first core of a device, or what is taken for it."""
    core = min(device.cores, default=0)
    file = Path(f"/sys/devices/system/cpu/cpu{core}/cache/index2/size")
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return CACHE_BYTES
    return int(text.removesuffix("K")) << 10 if text.endswith("K") else CACHE_BYTES
