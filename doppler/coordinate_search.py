"""GMI-DRL's searches in `doppler coordinate`: what each finds, how good that is, what it costs."""

import functools
import time
from collections.abc import Callable, Mapping, Sequence

from rich.table import Table

from doppler.console import View
from doppler.coordinate_config import CoordinateConfig, ProfileSource
from doppler.coordination import Coordination
from doppler.coordinator.reading import Reading
from doppler.coordinator.search import (
    DOES_NOT_FIT,
    NoSample,
    Profile,
    Sample,
    SearchResult,
    SearchSpace,
    algorithm_1,
    at_fixed_batch,
    exhaustive,
)
from simulator.costs.source import UnknownTimeError


def show_searches(
    config: CoordinateConfig, coordination: Coordination, counts: Sequence[int], view: View
) -> None:
    """Shows what each search finds, at which global batch, and what it costs.

    GMI-DRL's searches choose the batch, too; how good what they find is, is told among all that was
    profiled at the same batch.
    """
    shards, processors = coordination.settings.num_shards, coordination.cut.num_processors
    is_simulated = config.profiles is ProfileSource.simulated

    @functools.cache  # all searches see one profile of a point
    def profile(gmis: int, envs: int) -> Sample | NoSample | None:
        if is_simulated:
            return coordination.profile(gmis, envs)
        return coordination.measured_profile(gmis, envs, config.iterations)

    searches: dict[str, Callable[[SearchSpace], SearchResult]] = {
        "algorithm 1": lambda space: algorithm_1(profile, _rate, space),
        "as printed": lambda space: algorithm_1(profile, _rate, space, Reading.printed),
        "exhaustive": lambda space: exhaustive(profile, _rate, space),
    }
    wanted = [count * shards for count in counts]
    envs = config.profile_envs or [
        count for count in wanted if not is_simulated or _is_known(coordination, profile, count)
    ]
    if not envs:
        searches = {}
        view.line(
            "GMI-DRL's search is left out: op times are not known for these environments on every "
            "number of GMIs (calibration.env_counts widens them, profiles=measured needs none)"
        )
    for total in wanted:
        if total % processors == 0:
            searches[f"{total:,} envs in all"] = functools.partial(
                at_fixed_batch, profile, _rate, total_envs=total // processors
            )
    space = SearchSpace(
        gmis=tuple(sorted(coordination.layouts, reverse=True)),
        envs=tuple(envs or wanted),
        gpu_memory_bytes=coordination.memory_bytes,
    )
    found: dict[str, tuple[SearchResult, float]] = {}
    with view.progress("GMI-DRL's search", len(searches)) as advance:
        for name, search in searches.items():
            start = time.perf_counter()
            try:
                found[name] = search(space), time.perf_counter() - start
            except UnknownTimeError as error:
                view.line(f"search {name!r} is left out: {error}")
            advance(1, name)
    best = best_by_batch([result for result, _ in found.values()])
    table = Table(title=f"GMI-DRL's search (DP-only, profiles {config.profiles.value})")
    for heading in ("search", "GMIs", "envs", "steps/s", "gap", "of all", "profiles", "s"):
        table.add_column(heading, justify="left" if heading == "search" else "right", no_wrap=True)
    for name, (result, seconds) in found.items():
        cells = _search_cells(result, best)
        table.add_row(name, *cells, str(result.num_profiles), f"{seconds:.2f}")
    view.show(table)
    for note, points in _not_profiled([result for result, _ in found.values()]).items():
        where = ", ".join(f"{envs} environments on each of {gmis}" for gmis, envs in points)
        view.line(f"no profile ({where}): {note}")
    view.line(
        "gap: below the best that was profiled at the same global batch; of all: below the "
        "best that was profiled at all; envs: on each GMI"
    )


def _not_profiled(results: Sequence[SearchResult]) -> dict[str, list[tuple[int, int]]]:
    """Returns why points have no profile -> (GMIs, environments on each) of those, in order."""
    found: dict[str, list[tuple[int, int]]] = {}
    for point in (point for result in results for point in result.points):
        if point.sample is None and point.note != DOES_NOT_FIT:
            points = found.setdefault(point.note, [])
            if (point.gmis, point.envs) not in points:
                points.append((point.gmis, point.envs))
    return found


def _is_known(coordination: Coordination, profile: Profile, envs: int) -> bool:
    """True if op times are known for so many environments on each GMI, however many there are."""
    try:
        for gmis in coordination.layouts:
            profile(gmis, envs)
    except UnknownTimeError:
        return False
    return True


def best_by_batch(results: Sequence[SearchResult]) -> dict[int, float]:
    """Returns the highest rate that any search has seen, by environments in all."""
    best: dict[int, float] = {}
    for point in (point for result in results for point in result.points):
        if point.sample is not None:
            num_envs = point.gmis * point.envs
            best[num_envs] = max(best.get(num_envs, 0.0), _rate(point.sample))
    return best


def _search_cells(found: SearchResult, best: Mapping[int, float]) -> tuple[str, ...]:
    top = found.best
    if top is None or top.total is None:
        return ("-", "-", "nothing found", "-", "-")
    num_envs = top.gmis * top.envs
    return (
        str(top.gmis),
        str(top.envs),
        f"{top.total:,.0f}",
        f"{1 - top.total / best[num_envs]:.1%}",
        f"{1 - top.total / max(best.values()):.1%}",
    )


def _rate(sample: Sample) -> float:
    return sample.steps_per_s
