"""Typed records of training, one per update; names are explained in docs/metrics.md."""

from collections.abc import Callable
from dataclasses import dataclass

from doppler.training.config import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecord:
    """What one update did.

    Attributes:
        stage: Stage of training.
        update, num_updates: Update within the stage from 0, and how many it has; where its time is
            limited, how many it has at most.
        episodes: Episodes of the stage so far, this update included.
        best_ns: Best value ever seen, None before the first score.
        mean_ns: Mean value of this update's feasible episodes, None where none was scored.
        select_entropy, place_entropy: Mean per decision (PLC: per decision with a choice), nats.
        loss: The loss that was minimised.
        learning_rate: As the optimiser read it.
        temperature: Of this update's episodes.
        gradient_norm: Before clipping.
        simulations: Plans scored so far by this stage.
    """

    stage: Stage
    update: int
    num_updates: int
    episodes: int
    best_ns: int | None
    mean_ns: float | None
    select_entropy: float
    place_entropy: float
    loss: float
    learning_rate: float
    temperature: float
    gradient_norm: float
    simulations: int


OnRecord = Callable[[TrainingRecord], None]
