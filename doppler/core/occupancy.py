"""When the streams of a device are all busy, and when one is idle."""

from collections.abc import Sequence


def first_excess(work: Sequence[tuple[int, int]], streams: int) -> int | None:
    """Returns the first time at which more than `streams` intervals are open, or None."""
    changes = sorted(
        change for start, end in work if end > start for change in ((start, 1), (end, -1))
    )
    running = 0
    for time_ns, step in changes:
        running += step
        if running > streams:
            return time_ns
    return None


def idle_gaps(work: Sequence[tuple[int, int]], streams: int) -> list[tuple[int, int]]:
    """Returns the maximal times, until the last end, at which fewer than `streams` are open."""
    changes = sorted(
        (time, step) for pair in work for time, step in zip(pair, (1, -1), strict=True)
    )
    gaps: list[tuple[int, int]] = []
    running, since = 0, 0
    for time_ns, step in changes:
        if running < streams and time_ns > since:
            if gaps and gaps[-1][1] == since:
                gaps[-1] = (gaps[-1][0], time_ns)
            else:
                gaps.append((since, time_ns))
        running += step
        since = max(since, time_ns)
    return gaps
