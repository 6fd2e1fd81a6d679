"""How many environments per GMI and GMIs per GPU: the paper's search and the exhaustive one.

Source: GMI-DRL, algorithm 1 and eq. 4. As printed, the first point of every row only seeds the
slope, the point that trips the threshold is dropped even if it is the best, and nothing may be
found. By default every measured point is a candidate, memory that does not grow counts as
unsaturated, the fit is renewed with each point, and a margin is kept.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from doppler.coordinator.reading import Reading
from doppler.core.errors import ConfigError

ENV_COUNTS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


@dataclass(frozen=True, slots=True)
class Sample:
    """A profile of one GPU with all its GMIs running at once.

    Attributes:
        gmis: GMIs per GPU.
        envs: Environments per GMI.
        steps_per_s: Of all GMIs together.
        memory_bytes: Of one GMI, at its peak.

    Raises:
        ConfigError: If the rate is no positive number, or the memory negative.
    """

    gmis: int
    envs: int
    steps_per_s: float
    memory_bytes: int

    def __post_init__(self) -> None:
        if not 0.0 < self.steps_per_s < float("inf") or self.memory_bytes < 0:
            raise ConfigError(
                f"a sample has a finite rate above 0 and memory of at least 0 bytes, and that of "
                f"{self.gmis} x {self.envs} has {self.steps_per_s} and {self.memory_bytes}"
            )


@dataclass(frozen=True, slots=True)
class NoSample:
    """A point that the job cannot be profiled at, whatever memory there is.

    Attributes:
        reason: Why, in a sentence.
    """

    reason: str


RAN_OUT = "memory ran out"
DOES_NOT_FIT = "projected memory does not fit"

Profile = Callable[[int, int], Sample | NoSample | None]
"""profile(gmis, envs) -> sample, None if memory ran out."""
Estimate = Callable[[Sample], float]
"""Steps per second of the whole system from the sample of one GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """What is searched.

    Attributes:
        gmis: GMIs per GPU, in the order of the search.
        envs: Environments per GMI, ascending.
        gpu_memory_bytes: Memory of a GPU.
        sat_threshold: Least relative gain in rate per relative gain in memory.
        margin: Part of a GMI's memory that a projection leaves free.
    """

    gmis: tuple[int, ...] = tuple(range(10, 0, -1))
    envs: tuple[int, ...] = ENV_COUNTS
    gpu_memory_bytes: int
    sat_threshold: float = 0.1
    margin: float = 0.05

    def __post_init__(self) -> None:
        if not self.gmis or not self.envs or list(self.envs) != sorted(set(self.envs)):
            raise ConfigError(
                f"a search has GMI counts and ascending environment counts, and it has "
                f"{self.gmis} and {self.envs}"
            )
        if min(self.gmis) < 1 or min(self.envs) < 1:
            raise ConfigError(f"counts are at least 1, and they are {self.gmis} and {self.envs}")
        if self.gpu_memory_bytes < 0 or not 0.0 <= self.margin < 1.0:
            raise ConfigError(
                f"gpu_memory_bytes is at least 0 and margin lies in [0, 1), and they are "
                f"{self.gpu_memory_bytes} and {self.margin}"
            )


@dataclass(frozen=True, slots=True)
class Point:
    """One step of a search.

    Attributes:
        gmis, envs: What was looked at.
        sample: What was measured, None if there is none; then `note` says why.
        total: Estimated rate of the whole system, None if it was no candidate.
        note: Why there is no sample, or why the row ended here, else empty.
    """

    gmis: int
    envs: int
    sample: Sample | None
    total: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found.

    Attributes:
        points: All that was looked at, in order.
    """

    points: tuple[Point, ...]

    @property
    def best(self) -> Point | None:
        """The candidate with the highest total, the first of equals; None if there is none."""
        candidates = [point for point in self.points if point.total is not None]
        return max(candidates, key=lambda p: p.total or 0.0, default=None)

    @property
    def num_profiles(self) -> int:
        """Profile runs that the search took, those that ran out of memory included."""
        return sum(point.sample is not None or point.note == RAN_OUT for point in self.points)


def algorithm_1(
    profile: Profile,
    estimate: Estimate,
    space: SearchSpace,
    reading: Reading = Reading.corrected,
) -> SearchResult:
    """Returns what the paper's search finds (see the module for the corrections).

    A point without a profile (`NoSample`) is passed over; where memory ran out, the row ends.
    """
    is_printed = reading is Reading.printed
    points: list[Point] = []
    for gmis in space.gmis:
        row: list[Sample] = []
        for envs in space.envs:
            projected = project_memory(row, envs, reading)
            limit = space.gpu_memory_bytes / gmis
            if not is_printed:
                limit *= 1.0 - space.margin
            if projected is not None and projected > limit:
                points.append(Point(gmis, envs, None, None, DOES_NOT_FIT))
                break
            sample = profile(gmis, envs)
            if sample is None:
                points.append(Point(gmis, envs, None, None, RAN_OUT))
                break
            if isinstance(sample, NoSample):
                points.append(Point(gmis, envs, None, None, sample.reason))
                continue
            gain = saturation(row[-1], sample) if row else None
            is_saturated = gain is not None and gain < space.sat_threshold
            is_candidate = not is_printed or (gain is not None and not is_saturated)
            points.append(
                Point(
                    gmis,
                    envs,
                    sample,
                    estimate(sample) if is_candidate else None,
                    "saturated" if is_saturated else "",
                )
            )
            row.append(sample)
            if is_saturated:
                break
    return SearchResult(tuple(points))


def exhaustive(profile: Profile, estimate: Estimate, space: SearchSpace) -> SearchResult:
    """Returns the same for every point of the space."""
    points: list[Point] = []
    for gmis in space.gmis:
        for envs in space.envs:
            sample = profile(gmis, envs)
            if sample is None:
                points.append(Point(gmis, envs, None, None, RAN_OUT))
            elif isinstance(sample, NoSample):
                points.append(Point(gmis, envs, None, None, sample.reason))
            else:
                points.append(Point(gmis, envs, sample, estimate(sample)))
    return SearchResult(tuple(points))


def at_fixed_batch(
    profile: Profile, estimate: Estimate, space: SearchSpace, total_envs: int
) -> SearchResult:
    """Returns the same for one batch: every number of GMIs that divides it evenly.

    With the batch fixed, a number of GMIs has one number of environments per GMI, so there is no
    row to saturate, and algorithm 1 and the exhaustive search are one.
    """
    points: list[Point] = []
    for gmis in space.gmis:
        if total_envs % gmis:
            continue
        only = dataclasses.replace(space, gmis=(gmis,), envs=(total_envs // gmis,))
        points += exhaustive(profile, estimate, only).points
    return SearchResult(tuple(points))


def project_memory(
    row: list[Sample], envs: int, reading: Reading = Reading.corrected
) -> float | None:
    """Returns the memory of one GMI on the line through two points, None with fewer (eq. 4).

    As printed the line goes through the first two points, else through the last two.
    """
    if len(row) < 2:
        return None
    first, second = row[:2] if reading is Reading.printed else row[-2:]
    slope = (second.memory_bytes - first.memory_bytes) / (second.envs - first.envs)
    return second.memory_bytes + (envs - second.envs) * slope


def saturation(before: Sample, after: Sample) -> float:
    """Returns the relative gain in rate over the relative gain in memory.

    Memory that does not grow makes any growth in rate unsaturated, and its absence saturated.
    """
    rate = (after.steps_per_s - before.steps_per_s) / before.steps_per_s
    memory = (after.memory_bytes - before.memory_bytes) / max(1, before.memory_bytes)
    if memory <= 0:
        return float("inf") if rate > 0 else float("-inf")
    return rate / memory


def whole_system(
    steps_per_s: float, num_gpus: int, compute_ns: int, communication_ns: int
) -> float:
    """Returns the rate of all GPUs: the aggregate of one, slowed by communication (ours)."""
    return num_gpus * steps_per_s * compute_ns / (compute_ns + communication_ns)
