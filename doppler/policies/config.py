"""The shape of the policies: sizes, feature set, priors."""

import enum
from dataclasses import dataclass

from doppler.core.errors import ConfigError


class FeatureSet(enum.Enum):
    """Which feature columns the policies see.

    `paper`: the five columns per op and five per device of the paper, z-scored. `full`: those and
    log-scale and ratio columns that survive a change of graph and hardware.
    """

    paper = "paper"
    full = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Sizes and switches of both policies.

    Attributes:
        feature_set: Which columns the policies see.
        hidden: Width of an op's embedding.
        rank: Rank of the edge-conditioned map of a message (the paper's map has full rank).
        rounds: Message-passing rounds.
        head_hidden: Width of the heads' hidden layer; sampling cost is linear in it.
        summary: Width of what PLC sees of the ops already placed on a device.
        select_prior: Initial weight of the critical-path prior in SEL's logit: trades imitation
            of the critical-path rule at the start against diversity.
        place_prior: Initial weight of the earliest-finish prior in PLC's logit.
    """

    feature_set: FeatureSet = FeatureSet.full
    hidden: int = 48
    rank: int = 16
    rounds: int = 3
    head_hidden: int = 32
    summary: int = 8
    select_prior: float = 8.0
    place_prior: float = 3.0

    def __post_init__(self) -> None:
        for label in ("hidden", "rank", "rounds", "head_hidden", "summary"):
            value = getattr(self, label)
            if not 1 <= value <= 1024:
                raise ConfigError(f"{label} lies in 1..1024, and the policy has {value}")
        for label in ("select_prior", "place_prior"):
            value = getattr(self, label)
            if not 0.0 < value <= 100.0:
                raise ConfigError(f"{label} lies in (0, 100], and the policy has {value}")
