"""Whole batches of episodes: sampled, greedy, or replayed from given choices.

Legend: B episodes, N placed ops (= decisions T), D devices, F device columns.
"""

import enum
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from doppler.core.errors import ConfigError
from doppler.policies.assignment import Assignment, Bools, Floats, Ints
from doppler.policies.episodes import GREEDY, REPLAY, SAMPLE, EpisodeArrays, run_episodes
from doppler.policies.tables import Heads, Singles, Tables

MIN_TEMPERATURE = 0.02


class SampleMode(enum.Enum):
    """How a choice is made: from the softmax, or its most likely entry.

    Greedy episodes are for plans and not for learning: they are not recorded.
    """

    sample = SAMPLE
    greedy = GREEDY


@dataclass(frozen=True, slots=True, kw_only=True)
class Temperature:
    """Divides the logits of both policies: below 1 sharpens, above 1 explores."""

    select: float = 1.0
    place: float = 1.0

    def __post_init__(self) -> None:
        for label, value in (("select", self.select), ("place", self.place)):
            if not MIN_TEMPERATURE <= value <= 100.0:
                raise ConfigError(
                    f"a temperature lies in [{MIN_TEMPERATURE}, 100], and {label} has {value}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """A batch of complete episodes, if recorded with all that a teacher-forced pass needs.

    Candidate lists are intervals: op v is a candidate from step `arrivals[b, v]` to the step that
    selects it.

    Episodes that are not recorded have orders, devices and spans only; the other arrays have no
    steps (N = 0). `replay_episodes` gives the rest.

    Attributes:
        orders: Op selected at each step, B x N.
        devices: Its device, B x N.
        arrivals: First step at which each op is a candidate, B x N.
        columns: Device columns per step, zeros where one device was allowed, B x N x D x F.
        masks: Devices allowed per step, B x N x D.
        teacher: Devices of the earliest finish, all ties, B x N x D.
        teacher_select: Per op, sum over steps of its share in the candidates of the largest
            b-level, B x N.
        select_log_probs, place_log_probs: The sampler's log-probabilities, B x N.
        spans: Length of the timeline in mean op times, B.
        temperature: What the choices were sampled with.
    """

    orders: Ints
    devices: Ints
    arrivals: Ints
    columns: Singles
    masks: Bools
    teacher: Bools
    teacher_select: Floats
    select_log_probs: Floats
    place_log_probs: Floats
    spans: Floats
    temperature: Temperature

    @property
    def num_episodes(self) -> int:
        """Episodes in the batch."""
        return len(self.orders)

    @property
    def is_recorded(self) -> bool:
        """True if log-probabilities can be had of the episodes."""
        return bool(self.columns.shape[1] == self.orders.shape[1])


def sample_episodes(
    tables: Tables,
    heads: Heads,
    num_episodes: int,
    rng: np.random.Generator,
    *,
    temperature: Temperature,
    mode: SampleMode = SampleMode.sample,
    threads: int = 1,
) -> Rollouts:
    """Returns `num_episodes` episodes; equal generators give equal episodes at any `threads`."""
    seeds = rng.integers(0, 2**63, size=num_episodes, dtype=np.uint64)
    out = _empty(tables, heads, num_episodes, recorded=mode is not SampleMode.greedy)
    _run(tables, heads, mode.value, temperature, seeds, out, threads)
    return Rollouts(**out._asdict(), temperature=temperature)


def replay_episodes(
    tables: Tables, heads: Heads, orders_BN: Ints, devices_BN: Ints, temperature: Temperature
) -> Rollouts:
    """Returns the episodes that make these choices, with their columns and log-probabilities.

    The orders must respect distance-0 edges and the devices the masks
    (`Assignment.episode_arrays` of a checked plan does).
    """
    out = _empty(tables, heads, len(orders_BN), recorded=True)
    out.orders[:] = orders_BN
    out.devices[:] = devices_BN
    seeds = np.zeros(len(orders_BN), dtype=np.uint64)
    _run(tables, heads, REPLAY, temperature, seeds, out, threads=1)
    return Rollouts(**out._asdict(), temperature=temperature)


def join_rollouts(first: Rollouts, second: Rollouts) -> Rollouts:
    """Returns the episodes of both in one batch, of one problem and temperature."""
    assert first.temperature == second.temperature
    arrays = {
        name: np.concatenate([getattr(first, name), getattr(second, name)])
        for name in EpisodeArrays._fields
    }
    return Rollouts(**arrays, temperature=first.temperature)


def plan_arrays(assignment: Assignment, rollouts: Rollouts) -> tuple[Ints, Ints]:
    """Returns (placements_BV, priorities_BV) of the episodes' plans."""
    return assignment.plan_arrays(rollouts.orders, rollouts.devices)


def _empty(tables: Tables, heads: Heads, batch: int, *, recorded: bool) -> EpisodeArrays:
    num_ops, num_devices = tables.work.shape
    shape = (batch, num_ops if recorded else 0)
    return EpisodeArrays(
        orders=np.full((batch, num_ops), -1, dtype=np.int64),
        devices=np.full((batch, num_ops), -1, dtype=np.int64),
        arrivals=np.zeros(shape, dtype=np.int64),
        columns=np.zeros((*shape, num_devices, len(heads.dynamic)), dtype=np.float32),
        masks=np.zeros((*shape, num_devices), dtype=np.bool_),
        teacher=np.zeros((*shape, num_devices), dtype=np.bool_),
        teacher_select=np.zeros(shape),
        select_log_probs=np.zeros(shape),
        place_log_probs=np.zeros(shape),
        spans=np.zeros(batch),
    )


def _run(
    tables: Tables,
    heads: Heads,
    mode: int,
    temperature: Temperature,
    seeds: np.ndarray,  # type: ignore[type-arg]
    out: EpisodeArrays,
    threads: int,
) -> None:
    batch = len(seeds)
    cuts = np.linspace(0, batch, max(1, min(threads, batch)) + 1).astype(int)

    def run(first: int, last: int) -> None:
        run_episodes(
            tables, heads, mode, temperature.select, temperature.place, seeds, first, last, out
        )

    if len(cuts) == 2:
        run(0, batch)
        return
    with ThreadPoolExecutor(len(cuts) - 1) as pool:
        for done in [pool.submit(run, cuts[i], cuts[i + 1]) for i in range(len(cuts) - 1)]:
            done.result()
