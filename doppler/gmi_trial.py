"""Ways to communicate, run and timed between processes on the devices that will use them.

The processes are ended before anything else starts. What they are told, and how blocks of calls
become a verdict, is `doppler.gmi_duel`'s.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from doppler.core.cluster import Device
from doppler.gmi_duel import Block, Verdict, duel
from doppler.graphs.collectives import direct
from doppler.measure import MIN_RATIOS
from executor.collectives.shared import AllReduceLayout
from executor.gmi.base import GMI
from executor.gmi.communication import Collective, Communication, GMISpec
from executor.gmi.communication import Link as GMILink
from executor.gmi.team import GMITeam
from executor.gmi.trials import CONTROL, Timed
from executor.host import cpu_times, foreign_cpu

MEASURE_S = 2.0
BLOCK_ROUNDS = 10
"""Rounds of a block, after one that does not count; every round has one call of each link."""
BLOCK_PART = 2 * MIN_RATIOS
"""In a block no round begins after such a part of the time: there are to be enough blocks."""
WARM_UP = 2
"""Rounds that are run first and not counted: memory is touched for the first time."""
GAP_S = 0.02
"""Between blocks, so that what disturbs one need not disturb the next."""
BUSY_CORES = 0.2
"""So many cores kept busy by other programs are told of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOptions:
    """How trials are run.

    Attributes:
        seconds: After so long no block of measurements begins.
        shm_dir: Mount for the shared memory.
        deadline_s: A process that is silent for so long counts as hung.
    """

    seconds: float = MEASURE_S
    shm_dir: str = "/dev/shm"
    deadline_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a trial has found.

    Attributes:
        verdict: Which link is the fastest, and its blocks.
        seconds: From before its processes were started to after their end.
        foreign_cores: Cores that other programs kept busy meanwhile.
    """

    verdict: Verdict
    seconds: float
    foreign_cores: float

    def describe(self) -> str:
        """Returns in words how it was measured, and what disturbed it."""
        blocks, quiet = self.verdict.num_blocks, self.verdict.num_quiet
        calls = f"{self.verdict.num_calls} calls in {quiet or blocks} blocks"
        text = f"medians of {calls}, {self.seconds:.1f} s"
        if quiet < blocks:
            left_out = "left out" if quiet else "all that there is"
            text += f"; disturbed: {blocks - quiet} of {blocks} blocks, {left_out}"
        if self.foreign_cores > BUSY_CORES:
            text += f"; other programs kept {self.foreign_cores:.1f} cores busy"
        return text


def run_trial(
    trial: type[GMI],
    devices: Sequence[Device],
    links: Mapping[str, GMILink],
    settings: Mapping[str, Any],
    is_enough: Callable[[Verdict], bool],
    options: TrialOptions | None = None,
) -> Measured:
    """Times links in turns, in blocks, until what is known suffices or the time is up.

    A time is from the last member's start to the last member's end.

    Args:
        trial: Class of `executor.gmi.trials`.
        devices: Device of each member.
        links: What is measured, the ones expected to be fast first.
        settings: Of the class, beside those of every trial.
        is_enough: Says whether what is known suffices.
        options: How it is run.

    Raises:
        CapacityError: If memory or shared memory do not suffice.
        WorkerDiedError, WorkerHungError: If a process fails.
    """
    options = options or TrialOptions()
    gmis = tuple(
        GMISpec(
            gmi_id=gmi_id,
            role="trial",
            device=device,
            source=trial.__module__,
            class_name=trial.__qualname__,
            settings={
                **settings,
                "links": tuple(links),
                "seconds": options.seconds / BLOCK_PART,
            },
        )
        for gmi_id, device in enumerate(devices)
    )
    meeting = Collective(
        name=CONTROL,
        members=tuple(range(len(gmis))),
        layout=AllReduceLayout(schedule=direct(len(gmis), 1), num_elements=1, dtype="float64"),
    )
    communication = Communication(num_gmis=len(gmis), links=(meeting, *links.values()))
    before = cpu_times()
    team = GMITeam(gmis, communication, 0, options.deadline_s, options.shm_dir)
    try:
        verdict = _run_blocks(team, is_enough, options.seconds, _num_cores(devices))
    finally:
        team.end()
    after = cpu_times()
    return Measured(
        verdict=verdict,
        seconds=(after[1] - before[1]) / 1e9,
        foreign_cores=foreign_cpu(before, after),
    )


def _num_cores(devices: Sequence[Device]) -> int:
    """Returns how many cores the members may use together."""
    usable = os.sched_getaffinity(0)
    return len(set().union(*(device.cores or usable for device in devices)))


def _run_blocks(
    team: GMITeam, is_enough: Callable[[Verdict], bool], seconds: float, num_cores: int
) -> Verdict:
    """Returns what the blocks say."""

    def run(rounds: int) -> list[Timed]:
        return [finished.result for finished in team.run(rounds, 0)]

    def measure() -> Block:
        time.sleep(GAP_S)
        return block_of(run(1 + BLOCK_ROUNDS), num_cores)

    run(WARM_UP)  # and waits until all processes are there
    until = time.monotonic() + seconds
    return duel(measure, is_enough, lambda: time.monotonic() > until)


def block_of(members: Sequence[Timed], num_cores: int) -> Block:
    """Returns what all members have measured in a block.

    Its first round does not count if there are others: members wake up, and caches are cold.

    Args:
        members: What each has measured, of equal rounds.
        num_cores: Cores that the members may use together.
    """
    spans = np.stack([timed.spans for timed in members])
    scheduled = np.stack([timed.scheduled for timed in members])
    first = min(1, spans.shape[1] - 1)
    times = (spans[..., 1].max(axis=0) - spans[..., 0].max(axis=0))[first:]
    took, ran, waited = scheduled[:, first:].sum(axis=(0, 1)) / len(members)
    wanted = min((ran + waited) * len(members), took * num_cores)
    return Block(
        medians_ns=tuple(float(median) for median in np.median(times, axis=0)),
        granted=float(ran * len(members) / wanted) if wanted else 1.0,
        num_calls=len(times),
    )
