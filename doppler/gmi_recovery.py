"""What is left of a set of GMIs when some have failed, and how it goes on."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from doppler.core.collective import AllReduceSchedule
from doppler.core.errors import ConfigError, GraphError, nearest
from doppler.graphs.collectives import compose, direct
from executor.collectives.shared import AllReduceLayout
from executor.gmi.communication import Channel, Collective, GMISpec, Link
from executor.gmi.messages import Saved

OnFailure = Literal["raise", "restart", "drop"]
ON_FAILURE: tuple[OnFailure, ...] = ("raise", "restart", "drop")


def check_on_failure(value: str) -> None:
    """Checks that a reaction to failures is known.

    Raises:
        ConfigError: If it is not; names the nearest.
    """
    if value not in ON_FAILURE:
        raise ConfigError(f"on_failure {value!r} is unknown; {nearest(value, ON_FAILURE)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A failure that a run has got over.

    Attributes:
        error: What was known of it.
        failed: The GMIs that died or hung, in words.
        detected_at: When it was noticed, seconds on the monotonic clock.
        steps: Role -> step that its GMIs go on from, the least of them.
        num_gmis: GMIs that go on.
    """

    error: str
    failed: tuple[str, ...]
    detected_at: float
    steps: Mapping[str, int]
    num_gmis: int


def resumed(
    gmis: Sequence[GMISpec], points: Mapping[int, Saved], leaving: Collection[int] = ()
) -> tuple[GMISpec, ...]:
    """Returns the GMIs that go on, from where, with new ids 0 to n - 1 in the old order."""
    found: list[GMISpec] = []
    for spec in gmis:
        if spec.gmi_id not in leaving:
            point = points.get(spec.gmi_id, Saved(0, {}))
            state = point.state if spec.gmi_id in points else None
            found.append(replace(spec, gmi_id=len(found), first_step=point.step, state=state))
    return tuple(found)


def links_without(links: Sequence[Link], num_gmis: int, leaving: Collection[int]) -> list[Link]:
    """Returns what is left of the links, by the new ids: re-planned for fewer members.

    A collective keeps its composition where that is possible for fewer members, and is direct
    where it is not; one without members is gone, as are readers of weights that left.

    Raises:
        ConfigError: Names a channel or weights whose other side would wait for nobody.
    """
    new_ids = {old: new for new, old in enumerate(g for g in range(num_gmis) if g not in leaving)}
    found: list[Link] = []
    for link in links:
        if isinstance(link, Collective):
            members = _left(link.members, new_ids)
            if members:
                found.append(replace(link, members=members, layout=_shrunk(link, len(members))))
            continue
        sides = (
            (link.producers, link.consumers)
            if isinstance(link, Channel)
            else ((link.publisher,), link.readers)
        )
        first, second = (_left(side, new_ids) for side in sides)
        if not first and not second:
            continue
        if not first or (not second and isinstance(link, Channel)):
            raise ConfigError(
                f"who is left goes on without the failed GMI, and {link.name!r} needs it: it has "
                f"nobody else on its side"
            )
        if isinstance(link, Channel):
            found.append(replace(link, producers=first, consumers=second))
        else:
            found.append(replace(link, publisher=first[0], readers=second))
    return found


def _left(members: Sequence[int], new_ids: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(new_ids[member] for member in members if member in new_ids)


def _shrunk(link: Collective, num_members: int) -> AllReduceLayout:
    schedule = link.layout.schedule
    if num_members == schedule.num_members:
        return link.layout
    return replace(link.layout, schedule=_recomposed(schedule, num_members))


def _recomposed(schedule: AllReduceSchedule, num_members: int) -> AllReduceSchedule:
    try:
        return compose(schedule.name, [list(range(num_members))])
    except GraphError:
        return direct(num_members)
