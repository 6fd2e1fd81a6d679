"""The shape of the policies: which pair, its sizes, its priors."""

import enum
from dataclasses import dataclass

from doppler.core.errors import ConfigError

LEAKY_SLOPE = 0.1
"""Slope below 0 of the nonlinearity of every hidden layer."""


class PolicyKind(enum.Enum):
    """Which pair of policies.

    `paper`: the five columns per op and five per device of the paper, z-scored; messages without a
    direction; an append-only timeline; no priors. `improved`: those columns and log-scale and ratio
    columns that survive a change of graph and hardware; a message map per direction; a timeline
    whose idle gaps are filled, as the runtime fills them; priors of learned weight.
    """

    paper = "paper"
    improved = "improved"


class MessagePassing(enum.Enum):
    """When PLACETO makes embeddings: at every step (the original), or once per sweep."""

    per_step = "per_step"
    once = "once"


class Learned(enum.Enum):
    """What learns: both policies as they are meant to be used, or an ablation of them.

    `select_only`: SEL with the device of the earliest start. `place_only`: the candidate of the
    largest b-level with PLC. Ties go to the lower id. `joint`: one softmax over all (candidate,
    device) pairs (`doppler.policies.joint`). `per_step`: both policies, messages passed anew at
    every step over the graph as it is placed so far (`doppler.policies.step_policy`).
    Source: DOPPLER, dual-policy ablation and message passing once per episode.
    """

    both = "both"
    select_only = "select_only"
    place_only = "place_only"
    joint = "joint"
    per_step = "per_step"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Sizes and switches of both policies.

    Attributes:
        kind: Which pair.
        learned: Which of them learns, or which ablation.
        hidden: Width of an op's embedding.
        rank: Rank of the edge-conditioned map of a message (the paper's map has full rank).
        rounds: Message-passing rounds.
        head_hidden: Width of the heads' hidden layer; sampling cost is linear in it.
        summary: Width of what PLC sees of the ops already placed on a device.
        select_prior: Initial weight of the critical-path prior in SEL's logit: trades imitation
            of the critical-path rule at the start against diversity.
        place_prior: Initial weight of the earliest-finish priors in PLC's logit.
    """

    kind: PolicyKind = PolicyKind.improved
    learned: Learned = Learned.both
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


def policy_config(kind: PolicyKind) -> PolicyConfig:
    """Returns the sizes that a pair is used with: the paper's, or those of the improved pair.

    Source: DOPPLER section 4 (width 128, 6 rounds) for the paper's pair.
    """
    if kind is PolicyKind.paper:
        return PolicyConfig(kind=kind, hidden=128, rounds=6, head_hidden=64)
    return PolicyConfig(kind=kind)
