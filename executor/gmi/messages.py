"""What parent and GMI say to each other over the control socket."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.gmi.communication import Communication, GMISpec
from executor.workers.share import GpuShare


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """To a new GMI: who it is and whom it speaks with; answered by `Ready`.

    Attributes:
        gmis: All GMIs; their states are left out but for the addressee's.
        gmi_id: The addressee.
        communication: Links.
        seed: Of the whole set.
        deadline_ns: Whoever is awaited for longer counts as hung.
        share: What it owns of a GPU; None for a core group.
        store_fd: File through which members of a library's collectives meet, -1 if there is none.
        attempt: How often the set was started before, in the same run.
    """

    gmis: tuple[GMISpec, ...]
    gmi_id: int
    communication: Communication
    seed: int
    deadline_ns: int
    share: GpuShare | None = None
    store_fd: int = -1
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Ready:
    """From a GMI: it is set up and has met the others."""


@dataclass(frozen=True, slots=True)
class Run:
    """To a GMI: run; answered by `Finished`, after which it may be told so again."""

    num_episodes: int
    num_steps: int


@dataclass(frozen=True, slots=True)
class Reported:
    """From a GMI, at any time: values for the parent."""

    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Saved:
    """From a GMI, at any time: all that it needs to go on from a step."""

    step: int
    state: Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Finished:
    """From a GMI: what its `run` returned.

    Attributes:
        result: That.
        spans: What it did when (`executor.gmi.spans.SpanLog.array`).
        num_dropped: Spans that were too many to keep, the oldest.
    """

    result: Any
    spans: npt.NDArray[np.int64]
    num_dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """From a GMI: its code raised.

    Attributes:
        summary: Type and text of the error.
        text: Traceback.
        blames_other: True if the error says that another GMI has died or hangs.
    """

    summary: str
    text: str
    blames_other: bool
