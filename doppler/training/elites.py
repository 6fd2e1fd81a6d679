"""The best distinct plans so far, as targets of imitation and seeds of search."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from doppler.core.runtime import INFEASIBLE_NS
from doppler.policies.assignment import Assignment, Ints
from doppler.training.symmetry import align, device_classes

SPREAD = 0.01


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Elite:
    """One plan as an episode.

    Attributes:
        value_ns: Its value.
        order: Ops by step, N.
        devices: Device by op (not by step), N.
    """

    value_ns: int
    order: Ints
    devices: Ints


class EliteBuffer:
    """At most `capacity` plans with distinct placements, best first.

    Labels of interchangeable devices are aligned to the best plan, so two placements that differ
    only in those names count as one.
    """

    def __init__(self, assignment: Assignment, capacity: int) -> None:
        self._assignment = assignment
        self._classes = device_classes(assignment)
        self._capacity = capacity
        self.elites: list[Elite] = []

    def __len__(self) -> int:
        return len(self.elites)

    @property
    def best_ns(self) -> int | None:
        """Value of the best plan."""
        return self.elites[0].value_ns if self.elites else None

    def add_episodes(self, orders_BN: Ints, devices_BN: Ints, values_B: Ints) -> None:
        """Offers episodes (devices by step) with their values; infeasible ones are left out."""
        for row in np.argsort(values_B, kind="stable"):
            value = int(values_B[row])
            full = len(self.elites) == self._capacity
            if value >= (self.elites[-1].value_ns if full else INFEASIBLE_NS):
                break
            devices = np.empty_like(devices_BN[row])
            devices[orders_BN[row]] = devices_BN[row]
            self._add(Elite(value_ns=value, order=orders_BN[row].copy(), devices=devices))

    def add_plans(self, placements_BV: Ints, priorities_BV: Ints, values_B: Ints) -> None:
        """Offers plans with their values."""
        orders_BN, devices_BN = self._assignment.episode_arrays(placements_BV, priorities_BV)
        self.add_episodes(orders_BN, devices_BN, np.asarray(values_B))

    def offer(self, elites: Sequence[Elite]) -> None:
        """Offers elites of other buffers of the problem."""
        for elite in sorted(elites, key=lambda entry: entry.value_ns):
            self._add(elite)

    def draw(self, count: int, rng: np.random.Generator) -> list[Elite]:
        """Returns `count` plans drawn with a probability that falls by e per 1 % of value."""
        if not self.elites or count == 0:
            return []
        values = np.array([elite.value_ns for elite in self.elites], dtype=np.float64)
        weights = np.exp(-(values / max(1.0, values[0]) - 1.0) / SPREAD)
        rows = rng.choice(len(values), size=count, p=weights / weights.sum())
        return [self.elites[row] for row in rows]

    def episodes(self, elites: list[Elite]) -> tuple[Ints, Ints]:
        """Returns (orders_BN, devices_BN by step)."""
        orders = np.stack([elite.order for elite in elites])
        devices = np.stack([elite.devices[elite.order] for elite in elites])
        return orders, devices

    def _add(self, elite: Elite) -> None:
        if self.elites:
            elite = self._aligned(elite, self.elites[0])
        for index, known in enumerate(self.elites):
            if np.array_equal(known.devices, elite.devices):
                if known.value_ns <= elite.value_ns:
                    return
                del self.elites[index]
                break
        self.elites.append(elite)
        self.elites.sort(key=lambda entry: entry.value_ns)
        del self.elites[self._capacity :]
        if self.elites[0] is elite:
            self.elites = [elite, *(self._aligned(other, elite) for other in self.elites[1:])]

    def _aligned(self, elite: Elite, reference: Elite) -> Elite:
        return replace(elite, devices=align(elite.devices, reference.devices, self._classes))
