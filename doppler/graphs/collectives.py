"""All-reduce compositions as schedules (`doppler.core.collective`).

A composition gets `groups`: the members of one GPU (or host) together. N members, n groups.

| composition | what happens |
|---|---|
| direct | chunk c is added at one member from all parts; everybody reads it there |
| ring | chunks travel once around to be added and once more to be read |
| tree | sums go up a binary tree (one per chunk), the total comes down |
| through_host (the paper's IP) | every part goes to host memory, is added and read there |
| local_leader | a leader per group adds the parts of its group; leaders form a ring |
| multi_ring (the paper's RP) | one ring per position in the group, then rings across positions |
| hybrid(k) | k positions form rings, their sums and the rest meet in host memory |

Source: GMI-DRL, section 4 (communicator; table of compositions). Cross rings of `multi_ring` run in
parallel, one per group, ring j having the member at position i of group (i + j) mod n, so that
every member ends with the total and no broadcast follows.
"""

import math
import re
from collections.abc import Callable, Sequence

from doppler.core.collective import HOST, AllReduceSchedule, Step, StepKind
from doppler.core.errors import GraphError

Groups = Sequence[Sequence[int]]
_Rows = list[list[int]]  # tensor by [position in the ring][chunk]


class _Writer:
    """Collects steps; what is already where it is wanted makes no step."""

    def __init__(self, num_members: int, num_chunks: int) -> None:
        self.num_members = num_members
        self.num_chunks = num_chunks
        self._steps: list[Step] = []
        self._homes = [member for member in range(num_members) for _ in range(num_chunks)]

    def parts(self, member: int) -> list[int]:
        first = member * self.num_chunks
        return list(range(first, first + self.num_chunks))

    def reduce(self, home: int, inputs: Sequence[int]) -> int:
        if len(inputs) == 1:
            return self.forward(home, inputs[0])
        return self._add(Step(StepKind.reduce, home, tuple(inputs)))

    def forward(self, home: int, tensor: int) -> int:
        if self._homes[tensor] == home:
            return tensor
        return self._add(Step(StepKind.forward, home, (tensor,)))

    def schedule(self, name: str, results: Sequence[Sequence[int]]) -> AllReduceSchedule:
        return AllReduceSchedule(
            name=name,
            num_members=self.num_members,
            num_chunks=self.num_chunks,
            steps=tuple(self._steps),
            results=tuple(tuple(row) for row in results),
        )

    def _add(self, step: Step) -> int:
        self._steps.append(step)
        self._homes.append(step.home)
        return len(self._homes) - 1


def direct(num_members: int, num_chunks: int | None = None) -> AllReduceSchedule:
    """Returns the schedule in which chunk c is added at member c mod N and read by all."""
    writer = _Writer(num_members, num_chunks or num_members)
    sums = [
        writer.reduce(chunk % num_members, _column(writer, range(num_members), chunk))
        for chunk in range(writer.num_chunks)
    ]
    return writer.schedule("direct", [sums] * num_members)


def ring(num_members: int, num_chunks: int | None = None) -> AllReduceSchedule:
    """Returns the ring: reduce-scatter, then all-gather.

    Source: Patarasu, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
    JPDC 69(2), 2009.
    """
    writer = _Writer(num_members, num_chunks or num_members)
    members = list(range(num_members))
    rows = _ring(writer, members, [writer.parts(m) for m in members], [False] * num_members)
    return writer.schedule("ring", rows)


def tree(num_members: int, num_chunks: int = 1) -> AllReduceSchedule:
    """Returns a binary tree per chunk, that of chunk c rooted in member c mod N.

    Place p of a tree is member (p + c) mod N, so that several chunks have their inner places, which
    do the work, at different members.
    """
    writer = _Writer(num_members, num_chunks)
    results: _Rows = [[0] * num_chunks for _ in range(num_members)]
    for chunk in range(num_chunks):
        members = [(place + chunk) % num_members for place in range(num_members)]
        sums = _column(writer, members, chunk)  # by place
        for place in reversed(range(num_members)):
            children = [c for c in (2 * place + 1, 2 * place + 2) if c < num_members]
            if children:
                added = [sums[place], *(sums[c] for c in children)]
                sums[place] = writer.reduce(members[place], added)
        results[members[0]][chunk] = sums[0]
        for place in range(1, num_members):
            above = results[members[(place - 1) // 2]][chunk]
            is_inner = 2 * place + 1 < num_members
            member = members[place]
            results[member][chunk] = writer.forward(member, above) if is_inner else above
    return writer.schedule("tree", results)


def through_host(
    num_members: int, num_chunks: int | None = None, num_hosts: int = 1
) -> AllReduceSchedule:
    """Returns the schedule in which chunk c is added in the memory of host c mod `num_hosts`."""
    writer = _Writer(num_members, num_chunks or num_members)
    members = list(range(num_members))
    sums = _in_hosts(writer, [writer.parts(m) for m in members], num_hosts)
    return writer.schedule("through_host", [sums] * num_members)


def local_leader(groups: Groups, num_chunks: int | None = None) -> AllReduceSchedule:
    """Returns the local reduce at a leader per group, and a ring of leaders."""
    num_members = _check_groups(groups)
    writer = _Writer(num_members, num_chunks or len(groups))
    leaders = [group[0] for group in groups]
    sums: _Rows = [
        [
            writer.reduce(group[0], _column(writer, group, chunk))
            for chunk in range(writer.num_chunks)
        ]
        for group in groups
    ]
    rows = _ring(writer, leaders, sums, [len(group) > 1 for group in groups])
    results: _Rows = [[] for _ in range(num_members)]
    for group, row in zip(groups, rows, strict=True):
        for member in group:
            results[member] = row
    return writer.schedule("local_leader", results)


def multi_ring(groups: Groups, num_chunks: int | None = None) -> AllReduceSchedule:
    """Returns one ring per position in the group, then parallel rings across positions.

    Raises:
        GraphError: If groups differ in size.
    """
    num_members, size = _check_groups(groups), _equal_size(groups, "multi_ring")
    count = len(groups)
    writer = _Writer(num_members, num_chunks or math.lcm(count, size))
    rows: dict[int, list[int]] = {}
    for position in range(size):
        members = [group[position] for group in groups]
        found = _ring(writer, members, [writer.parts(m) for m in members], [size > 1] * count)
        rows.update(zip(members, found, strict=True))
    for shift in range(count):
        members = [groups[(position + shift) % count][position] for position in range(size)]
        found = _ring(writer, members, [rows[m] for m in members], [False] * size)
        rows.update(zip(members, found, strict=True))
    return writer.schedule("multi_ring", [rows[member] for member in range(num_members)])


def hybrid(
    groups: Groups, num_rings: int, num_chunks: int | None = None, num_hosts: int = 1
) -> AllReduceSchedule:
    """Returns `num_rings` rings over positions, and a meeting of their sums and the rest in hosts.

    Each ring scatters its sums, so that its members share the way to the host, and gathers the
    total. With no ring this is `through_host`, with groups of one member in a ring it is `ring`.

    Raises:
        GraphError: If groups differ in size or have fewer positions than rings.
    """
    num_members, size = _check_groups(groups), _equal_size(groups, "hybrid")
    if not 0 <= num_rings <= size:
        raise GraphError(
            f"a hybrid has 0 to {size} rings (the members of a group), and {num_rings} are asked"
        )
    writer = _Writer(num_members, num_chunks or (len(groups) if num_rings else num_members))
    rings = [[group[position] for group in groups] for position in range(num_rings)]
    rest = [member for group in groups for member in group[num_rings:]]
    entries = [_reduce_scatter(writer, r, [writer.parts(m) for m in r]) for r in rings]
    entries += [writer.parts(member) for member in rest]
    sums = _in_hosts(writer, entries, num_hosts)
    results: _Rows = [sums] * num_members
    for members in rings:
        gathered = _all_gather(writer, members, sums, [False] * len(members))
        for member, row in zip(members, gathered, strict=True):
            results[member] = row
    return writer.schedule(f"hybrid({num_rings})", results)


def candidates(
    groups: Groups, num_hosts: int = 0, pieces: Sequence[int] = (1,)
) -> tuple[AllReduceSchedule, ...]:
    """Returns every composition that the groups allow.

    Args:
        groups: Members of each group, numbered 0 to N - 1 over all groups.
        num_hosts: Hosts where parts can be added; 0 leaves out what needs one.
        pieces: Each composition is offered with its natural number of chunks times these.
    """
    num_members = _check_groups(groups)
    plain = [direct(num_members), ring(num_members), tree(num_members), local_leader(groups)]
    is_even = len({len(group) for group in groups}) == 1
    found: list[AllReduceSchedule] = []
    for factor in pieces:
        found += [_recut(schedule, groups, num_hosts, factor) for schedule in plain]
        if is_even and len(groups) < num_members:
            found.append(_recut(multi_ring(groups), groups, num_hosts, factor))
        if num_hosts:
            base = through_host(num_members, num_hosts=num_hosts)
            found.append(_recut(base, groups, num_hosts, factor))
        if num_hosts and is_even:
            for k in range(1, len(groups[0]) + 1):
                base = hybrid(groups, k, num_hosts=num_hosts)
                found.append(_recut(base, groups, num_hosts, factor))
    return tuple(found)


def _recut(
    schedule: AllReduceSchedule, groups: Groups, num_hosts: int, factor: int
) -> AllReduceSchedule:
    if factor == 1:
        return schedule
    return compose(schedule.name, groups, schedule.num_chunks * factor, num_hosts)


def compose(
    name: str, groups: Groups, num_chunks: int | None = None, num_hosts: int = 1
) -> AllReduceSchedule:
    """Returns the composition of a name ("ring", "hybrid(2)") over groups.

    Raises:
        GraphError: If the name is unknown, or the composition does not fit the groups.
    """
    num_members = _check_groups(groups)
    if found := re.fullmatch(r"hybrid\(([0-9]+)\)", name):
        return hybrid(groups, int(found[1]), num_chunks, num_hosts)
    makers: dict[str, Callable[[], AllReduceSchedule]] = {
        "direct": lambda: direct(num_members, num_chunks),
        "ring": lambda: ring(num_members, num_chunks),
        "tree": lambda: tree(num_members, num_chunks or 1),
        "through_host": lambda: through_host(num_members, num_chunks, num_hosts),
        "local_leader": lambda: local_leader(groups, num_chunks),
        "multi_ring": lambda: multi_ring(groups, num_chunks),
    }
    if name not in makers:
        raise GraphError(
            f"an all-reduce is one of {', '.join(makers)}, hybrid(k), and {name!r} is asked"
        )
    return makers[name]()


def _ring(writer: _Writer, members: Sequence[int], rows: _Rows, keep: Sequence[bool]) -> _Rows:
    return _all_gather(writer, members, _reduce_scatter(writer, members, rows), keep)


def _reduce_scatter(writer: _Writer, members: Sequence[int], rows: _Rows) -> list[int]:
    """Sends chunk c around the ring to its owner, member c mod n; returns the sums by chunk."""
    size = len(members)
    sums: list[int] = []
    for chunk in range(writer.num_chunks):
        passed = rows[(chunk + 1) % size][chunk]
        for hop in range(2, size + 1):
            at = (chunk + hop) % size
            passed = writer.reduce(members[at], [passed, rows[at][chunk]])
        sums.append(passed)
    return sums


def _all_gather(
    writer: _Writer, members: Sequence[int], sums: Sequence[int], keep: Sequence[bool]
) -> _Rows:
    """Sends the sums around from their owners; returns what each member reads.

    keep[i]: the sum is copied to member i even if it is the last of the ring.
    """
    size = len(members)
    results: _Rows = [[0] * writer.num_chunks for _ in members]
    for chunk, total in enumerate(sums):
        passed = total
        for hop in range(size):
            at = (chunk + hop) % size
            if hop < size - 1 or keep[at]:
                passed = writer.forward(members[at], passed)
            results[at][chunk] = passed
    return results


def _in_hosts(writer: _Writer, rows: _Rows, num_hosts: int) -> list[int]:
    if len(rows) == 1:
        return rows[0]
    return [
        writer.reduce(HOST - chunk % num_hosts, [row[chunk] for row in rows])
        for chunk in range(writer.num_chunks)
    ]


def _column(writer: _Writer, members: Sequence[int], chunk: int) -> list[int]:
    return [writer.parts(member)[chunk] for member in members]


def _check_groups(groups: Groups) -> int:
    members = sorted(member for group in groups for member in group)
    if not members or members != list(range(len(members))) or not all(groups):
        raise GraphError(
            f"groups hold members 0 to N - 1, each once and none empty, and they are "
            f"{[list(group) for group in groups]}"
        )
    return len(members)


def _equal_size(groups: Groups, name: str) -> int:
    sizes = {len(group) for group in groups}
    if len(sizes) > 1:
        raise GraphError(
            f"all-reduce {name!r} needs groups of one size, and they have {sorted(sizes)} members"
        )
    return sizes.pop()
