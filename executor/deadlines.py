"""How long an op may take before its worker counts as hung."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

KEPT_DURATIONS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlinePolicy:
    """The deadline of an op of a kind with known 99th percentile p: max(minimum, factor x p).

    Attributes:
        minimum_ns: No op has a shorter deadline.
        factor: Times the 99th percentile of the kind's durations.
        unknown_ns: Deadline of a kind that has never been measured (it may compile first).
        quiet_ns: How long a worker may be silent outside of ops, in a segment.
        answer_ns: How long a worker may take for a request between segments.
        known_p99_ns: Percentiles known beforehand, by op kind.
    """

    minimum_ns: int = 2_000_000_000
    factor: int = 20
    unknown_ns: int = 60_000_000_000
    quiet_ns: int = 10_000_000_000
    answer_ns: int = 120_000_000_000
    known_p99_ns: Mapping[str, int] = field(default_factory=dict)


class Deadlines:
    """Learns durations per op kind and gives deadlines.

    Attributes:
        policy: The rule.
    """

    def __init__(self, policy: DeadlinePolicy) -> None:
        self.policy = policy
        self._durations: dict[str, deque[int]] = {}
        self._p99_ns = dict(policy.known_p99_ns)

    def learn(self, durations_ns: Mapping[str, list[int]]) -> None:
        """Takes measured durations by op kind; the last `KEPT_DURATIONS` per kind count."""
        for kind, values in durations_ns.items():
            kept = self._durations.setdefault(kind, deque(maxlen=KEPT_DURATIONS))
            kept.extend(values)
            if kept:
                self._p99_ns[kind] = int(np.percentile(np.array(kept), 99))

    def of(self, kind: str) -> int:
        """Returns the deadline of an op of a kind in ns."""
        p99_ns = self._p99_ns.get(kind)
        if p99_ns is None:
            return self.policy.unknown_ns
        return max(self.policy.minimum_ns, self.policy.factor * p99_ns)
