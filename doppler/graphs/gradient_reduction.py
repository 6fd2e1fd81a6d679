"""How a job's gradients are added: an all-reduce schedule, with an optimizer where a sum is whole.

Members are the trainers, chunks the segments of the parameter vector. A schedule first adds up
gradients until some member holds the sum of all, then hands that sum on. In a job the segment's
optimizer stands between the two: what is handed on is the new segment of the weights, which is as
large, so that the schedule's traffic stays what it was and every trainer gets its weights on the
way that the schedule has for sums. A schedule that forms a sum in several places (`multi_ring`, one
per group) gets an optimizer in each, and all of them compute the same bits.

Source: GMI-DRL, section 4 (compositions); Rajbhandari et al., "ZeRO", SC 2020 (an optimizer per
segment between reduce-scatter and all-gather).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from doppler.core.collective import AllReduceSchedule, StepKind
from doppler.core.errors import GraphError
from doppler.graphs.collectives import compose

DIRECT = "direct"


@dataclass(frozen=True, slots=True)
class Part:
    """A gradient as one trainer computed it."""

    trainer: int


@dataclass(frozen=True, slots=True)
class Move:
    """What one step of a schedule makes of a segment: a partial sum, or a copy.

    Attributes:
        segment: Segment of the parameter vector.
        step: Position in the schedule.
        home: Trainer where the schedule wants it.
        inputs: What is added or copied, in this order.
    """

    segment: int
    step: int
    home: int
    inputs: "tuple[Part | Move | Total, ...]"

    @property
    def is_copy(self) -> bool:
        """True if it copies its only input."""
        return len(self.inputs) == 1


@dataclass(frozen=True, slots=True)
class Total:
    """Where the gradient of a segment is whole, and its optimizer steps.

    Attributes:
        segment: Segment of the parameter vector.
        replica: 0, 1, ... where the schedule forms the sum in several places.
        home: Trainer where the schedule wants it; segments added by the host are dealt out.
        in_host: The schedule wants it in the memory of the host.
        inputs: What is added last, in this order.
    """

    segment: int
    replica: int
    home: int
    in_host: bool
    inputs: tuple[Part | Move, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientReduction:
    """The reduction of one gradient step.

    Attributes:
        sums: Moves of gradients: what comes before the optimizers, inputs before readers.
        totals: By segment, then replica.
        copies: Moves of weights, what comes after the optimizers, inputs before readers.
        weights: weights[trainer][segment]: where the trainer reads its weights.
    """

    sums: tuple[Move, ...]
    totals: tuple[Total, ...]
    copies: tuple[Move, ...]
    weights: tuple[tuple[Move | Total, ...], ...]


def reduction(all_reduce: str, trainers: int, groups: int, segments: int) -> GradientReduction:
    """Returns how gradients are added under an all-reduce of a name (`collectives.compose`).

    Args:
        all_reduce: Composition, `ring` or `hybrid(1)`.
        trainers: Members.
        groups: Groups that they are dealt out to in turns.
        segments: Chunks.

    Raises:
        GraphError: If the composition is unknown or does not fit the groups.
    """
    if not 1 <= groups <= trainers:
        raise GraphError(f"trainer_groups lies in 1 to {trainers} (trainers), and it is {groups}")
    return _split(compose(all_reduce, trainer_groups(trainers, groups), segments))


def trainer_groups(trainers: int, groups: int) -> list[list[int]]:
    """Returns the trainers of each group: m mod `groups`, as templates deal shards to GPUs."""
    return [list(range(group, trainers, groups)) for group in range(groups)]


def _split(schedule: AllReduceSchedule) -> GradientReduction:
    everyone = (1 << schedule.num_members) - 1
    masks = [1 << (tensor // schedule.num_chunks) for tensor in range(schedule.num_parts)]
    made: list[Part | Move | Total] = [
        Part(tensor // schedule.num_chunks) for tensor in range(schedule.num_parts)
    ]
    sums: list[Move] = []
    copies: list[Move] = []
    totals: list[list[Total]] = [[] for _ in range(schedule.num_chunks)]

    def total(chunk: int, home: int, inputs: Sequence[Part | Move | Total]) -> Total:
        parts = tuple(part for part in inputs if not isinstance(part, Total))
        at = home if home >= 0 else chunk % schedule.num_members
        found = Total(chunk, len(totals[chunk]), at, home < 0, parts)
        totals[chunk].append(found)
        return found

    if everyone == 1:  # one trainer: its part is the sum
        for tensor in range(schedule.num_parts):
            made[tensor] = total(schedule.chunk(tensor), 0, [made[tensor]])
    for index, step in enumerate(schedule.steps):
        chunk = schedule.chunk(step.inputs[0])
        inputs = tuple(made[tensor] for tensor in step.inputs)
        mask = 0
        for tensor in step.inputs:
            mask |= masks[tensor]
        masks.append(mask)
        if step.kind is StepKind.reduce and mask == everyone:
            made.append(total(chunk, step.home, inputs))
            continue
        move = Move(chunk, index, step.home, inputs)
        made.append(move)
        (copies if mask == everyone else sums).append(move)
    return GradientReduction(
        sums=tuple(sums),
        totals=tuple(found for row in totals for found in row),
        copies=tuple(copies),
        weights=tuple(
            tuple(found for tensor in row if not isinstance(found := made[tensor], Part))
            for row in schedule.results
        ),
    )
