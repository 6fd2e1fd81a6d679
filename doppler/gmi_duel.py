"""Which of several ways is the fastest, by measurements that a disturbance must not decide.

All candidates are measured in turns, in blocks of calls that lie apart in time. A block counts with
one median per candidate, so calls that were interrupted do not move it, and another program that
runs for a while spoils few blocks. A block is disturbed, and left out, if the members did not get
the processors that they asked for (two members on one core take turns, and then all ways are about
as fast), or if every candidate was slow in it: both tell of the machine and not of the candidates.

The rest is the sign test over blocks (`ratio_interval`): the fastest is taken once it is surely no
more than `TOLERANCE` slower than any other.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from doppler.measure import MIN_RATIOS, Interval, ratio_interval

TOLERANCE = 0.03
"""Candidates that differ by no more are equal."""
SLOW = 1.5
"""A block is disturbed if all candidates took so many times as long as in the quiet ones."""
QUIET_PART = 4
"""Quiet are the fastest blocks of a candidate, one in so many."""
GRANTED = 0.8
"""A block is disturbed if members got less of the processor time that they could have had."""
DISTURBED_MARGIN = 0.25
"""Where too few blocks are quiet, candidates that differ by less are not told apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A few calls of each candidate.

    Attributes:
        medians_ns: Median time of each candidate's calls.
        granted: Processor time that the members got, over what they asked for and there are cores
            for: 1 if nobody else wanted any.
        num_calls: Calls of each candidate.
    """

    medians_ns: tuple[float, ...]
    granted: float = 1.0
    num_calls: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Which candidate to take, and how sure that is.

    Attributes:
        chosen: The fastest one; where that is not decided, the first that is not proven slower.
        is_decided: True if it is surely no more than `TOLERANCE` slower than any other.
        medians_ns: Median of each candidate over the quiet blocks; over all if none was quiet.
        num_blocks: Blocks measured.
        num_quiet: Those of them that were not disturbed.
        num_calls: Calls that each median is of, block by block.
    """

    chosen: int
    is_decided: bool
    medians_ns: tuple[float, ...]
    num_blocks: int
    num_quiet: int
    num_calls: int

    @property
    def has_enough(self) -> bool:
        """True if so many blocks were quiet that their interval excludes anything."""
        return self.num_quiet >= MIN_RATIOS


def judge(blocks: Sequence[Block]) -> Verdict:
    """Returns what blocks of measurements say.

    Args:
        blocks: At least one; the candidates in the order in which they are expected to be fast,
            which decides where times do not.
    """
    quiet = _quiet(blocks)
    counted = quiet or blocks
    indices = range(len(blocks[0].medians_ns))
    medians = [statistics.median(block.medians_ns[index] for block in counted) for index in indices]
    leader = min(indices, key=medians.__getitem__)
    over = [_interval([b.medians_ns[leader] / b.medians_ns[i] for b in counted]) for i in indices]
    is_decided = len(quiet) >= MIN_RATIOS and all(r.high <= 1 + TOLERANCE for r in over)
    margin = 0.0 if len(quiet) >= MIN_RATIOS else DISTURBED_MARGIN
    possible = (index for index in indices if over[index].high * (1 + margin) >= 1)
    return Verdict(
        chosen=leader if is_decided else next(possible),
        is_decided=is_decided,
        medians_ns=tuple(medians),
        num_blocks=len(blocks),
        num_quiet=len(quiet),
        num_calls=sum(block.num_calls for block in counted),
    )


def duel(
    measure: Callable[[], Block],
    is_enough: Callable[[Verdict], bool],
    is_over: Callable[[], bool],
) -> Verdict:
    """Measures blocks until they are enough or the time is up, one at least.

    Args:
        measure: Measures a block.
        is_enough: Says whether what is known suffices; asked once enough blocks were quiet.
        is_over: Says whether the time is up.
    """
    blocks: list[Block] = []
    while True:
        blocks.append(measure())
        verdict = judge(blocks)
        if (verdict.has_enough and is_enough(verdict)) or is_over():
            return verdict


def _quiet(blocks: Sequence[Block]) -> list[Block]:
    """The blocks that were not disturbed."""
    granted = [block for block in blocks if block.granted >= GRANTED]
    if not granted:
        return []
    rank = (len(granted) - 1) // QUIET_PART
    levels = [sorted(times)[rank] for times in zip(*(b.medians_ns for b in granted), strict=True)]
    return [
        block
        for block in granted
        if any(t <= SLOW * level for t, level in zip(block.medians_ns, levels, strict=True))
    ]


def _interval(ratios: Sequence[float]) -> Interval:
    """The interval of `ratio_interval`; of too few ratios for one, all that was seen."""
    if len(ratios) < MIN_RATIOS:
        return Interval(statistics.median(ratios), min(ratios), max(ratios))
    return ratio_interval(ratios)
