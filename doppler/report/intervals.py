"""Sets of time as sorted, disjoint, half-open intervals of integers."""

from collections.abc import Iterable, Sequence

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Returns the time covered by at least one interval; empty intervals vanish."""
    merged: list[Interval] = []
    for begin, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def subtract(left: Sequence[Interval], right: Sequence[Interval]) -> list[Interval]:
    """Returns the time of `left` that is not in `right`; both sorted and disjoint."""
    rest: list[Interval] = []
    first = 0
    for begin, end in left:
        while first < len(right) and right[first][1] <= begin:
            first += 1
        position = begin
        index = first
        while index < len(right) and right[index][0] < end:
            if right[index][0] > position:
                rest.append((position, right[index][0]))
            position = max(position, right[index][1])
            index += 1
        if position < end:
            rest.append((position, end))
    return rest


def intersect(left: Sequence[Interval], right: Sequence[Interval]) -> list[Interval]:
    """Returns the time that is in both; both sorted and disjoint."""
    return subtract(left, subtract(left, right))


def length(intervals: Iterable[Interval]) -> int:
    """Returns the total length."""
    return sum(end - begin for begin, end in intervals)
