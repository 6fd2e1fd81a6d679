"""An all-reduce as a schedule: which member adds or copies which chunk, in which order.

The schedule is data, so that one and the same can be expanded into a dataflow graph, be simulated,
and be run in shared memory. Members are positions 0 to N - 1; hosts (places without a part of their
own, where members may meet) are -1, -2, ... A tensor is an integer: `member * C + chunk` is
a member's own part, `N * C + s` is what step s makes.
"""

import enum
from dataclasses import dataclass
from functools import cached_property

from doppler.core.errors import GraphError

HOST = -1


class StepKind(enum.Enum):
    """What a step does: adds its inputs, or copies its only input to its home."""

    reduce = "reduce"
    forward = "forward"


@dataclass(frozen=True, slots=True)
class Step:
    """One operation on one chunk.

    Attributes:
        kind: What is done.
        home: Member (or host) that does it and keeps the outcome.
        inputs: Tensors read; the sum is formed in this order.
    """

    kind: StepKind
    home: int
    inputs: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class AllReduceSchedule:
    """Steps after which every member can read the sum of all parts, chunk by chunk.

    Attributes:
        name: Composition ("ring", "hybrid(2)").
        num_members: N.
        num_chunks: C, the pieces that every part is cut into.
        steps: In an order in which inputs come before their readers.
        results: results[member][chunk], the tensor that the member reads in the end.

    Raises:
        GraphError: If some result is not the sum of every member's part exactly once, or a step
            mixes chunks or reads what comes later.
    """

    name: str
    num_members: int
    num_chunks: int
    steps: tuple[Step, ...]
    results: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if self.num_members < 1 or self.num_chunks < 1:
            raise GraphError(
                f"an all-reduce has at least one member and one chunk, and {self.name!r} has "
                f"{self.num_members} and {self.num_chunks}"
            )
        _check_sums(self)

    @property
    def num_parts(self) -> int:
        """Tensors that exist before the first step: N * C."""
        return self.num_members * self.num_chunks

    def part(self, member: int, chunk: int) -> int:
        """Returns the tensor of a member's own part."""
        return member * self.num_chunks + chunk

    def home(self, tensor: int) -> int:
        """Returns the member or host where a tensor lies."""
        if tensor < self.num_parts:
            return tensor // self.num_chunks
        return self.steps[tensor - self.num_parts].home

    def chunk(self, tensor: int) -> int:
        """Returns the chunk that a tensor is a (partial) sum of."""
        return self._chunks[tensor]

    @cached_property
    def readers(self) -> tuple[frozenset[int], ...]:
        """Per tensor, the members and hosts that read it: in a step, or as a result."""
        found: list[set[int]] = [set() for _ in range(self.num_parts + len(self.steps))]
        for step in self.steps:
            for tensor in step.inputs:
                found[tensor].add(step.home)
        for member, row in enumerate(self.results):
            for tensor in row:
                found[tensor].add(member)
        return tuple(frozenset(homes) for homes in found)

    @cached_property
    def transfers(self) -> tuple[tuple[int, int], ...]:
        """(tensor, destination) of everything that leaves its home, once per destination."""
        return tuple(
            (tensor, reader)
            for tensor, homes in enumerate(self.readers)
            for reader in sorted(homes)
            if reader != self.home(tensor)
        )

    @property
    def num_hosts(self) -> int:
        """Hosts that take part."""
        return max([-step.home for step in self.steps if step.home < 0], default=0)

    @cached_property
    def _chunks(self) -> tuple[int, ...]:
        chunks = [tensor % self.num_chunks for tensor in range(self.num_parts)]
        for step in self.steps:
            chunks.append(chunks[step.inputs[0]])
        return tuple(chunks)


def chunk_bounds(length: int, num_chunks: int) -> tuple[int, ...]:
    """Returns the C + 1 ends of chunks whose lengths differ by one at most."""
    return tuple(length * chunk // num_chunks for chunk in range(num_chunks + 1))


def _check_sums(schedule: AllReduceSchedule) -> None:
    """Follows each step with a bit per member: sums are of disjoint members, results of all."""
    masks = [1 << (tensor // schedule.num_chunks) for tensor in range(schedule.num_parts)]
    chunks = [tensor % schedule.num_chunks for tensor in range(schedule.num_parts)]
    for index, step in enumerate(schedule.steps):
        where = f"step {index} of all-reduce {schedule.name!r}"
        if not step.inputs or (step.kind is StepKind.forward and len(step.inputs) != 1):
            raise GraphError(
                f"a reduce has inputs and a forward has one, and {where} ({step.kind.value}) has "
                f"{len(step.inputs)}"
            )
        mask = 0
        for tensor in step.inputs:
            if not 0 <= tensor < len(masks):
                raise GraphError(f"a step reads what was made before, and {where} reads {tensor}")
            if chunks[tensor] != chunks[step.inputs[0]]:
                raise GraphError(f"a step keeps to one chunk, and {where} reads several")
            if mask & masks[tensor]:
                raise GraphError(f"a part is added once, and {where} adds one twice")
            mask |= masks[tensor]
        if not -len(schedule.steps) <= step.home < schedule.num_members:
            raise GraphError(f"{where} is at member {step.home} of {schedule.num_members}")
        masks.append(mask)
        chunks.append(chunks[step.inputs[0]])
    everyone = (1 << schedule.num_members) - 1
    if len(schedule.results) != schedule.num_members:
        raise GraphError(f"every member has results, and all-reduce {schedule.name!r} lacks some")
    for member, row in enumerate(schedule.results):
        if len(row) > schedule.num_chunks:
            raise GraphError(
                f"a member has one result per chunk ({schedule.num_chunks}), and member {member} "
                f"of all-reduce {schedule.name!r} has {len(row)}"
            )
        for chunk in range(schedule.num_chunks):
            tensor = row[chunk] if chunk < len(row) else -1
            if not 0 <= tensor < len(masks) or masks[tensor] != everyone or chunks[tensor] != chunk:
                raise GraphError(
                    f"every member ends with the sum of all parts, and member {member} of "
                    f"all-reduce {schedule.name!r} does not in chunk {chunk}"
                )
