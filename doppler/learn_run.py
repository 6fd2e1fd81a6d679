"""What one `doppler learn` finds out, for files, tables and the page."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from doppler.api import PlannerResult
from doppler.calibration import Calibration
from doppler.config import LearnConfig
from doppler.core.hardware import Hardware
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.trace import Trace
from doppler.measure import Comparison, Interval
from doppler.planners.learned import LearnedPlanner
from doppler.real_job import RealJob
from doppler.session import RewardRecord
from doppler.stage3 import SystemResult
from doppler.training.metrics import TrainingRecord
from executor.probe import ProbeResult

LEARNED = "learned"
WARMUP_ITERATIONS = 5


class Clock:
    """Wall-clock time per step.

    Attributes:
        seconds: Step -> seconds.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def mark(self, name: str) -> None:
        """Books the time since the last mark under a name."""
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One plan of the comparison.

    Attributes:
        name: Planner, with the layout where it is not the main one.
        layout: Name of the layout that the plan is for.
        result: What its planner made, simulated with the calibrated costs.
        measured_ns: Median period of its windows with its interval, None if not run.
        windows: Windows measured.
    """

    name: str
    layout: str
    result: PlannerResult
    measured_ns: Interval | None = None
    windows: int = 0


@dataclass(kw_only=True)
class LearnRun:
    """Everything that one `doppler learn` finds out, for files, tables and the page."""

    config: LearnConfig
    command: Sequence[str]
    found: ProbeResult
    hardware: Hardware
    calibration: Calibration
    from_cache: bool
    job: RealJob
    problem: Problem
    layout: str
    candidates: list[Candidate]
    planner: LearnedPlanner
    training_records: list[TrainingRecord]
    system_records: list[TrainingRecord] = field(default_factory=list)
    system: SystemResult | None = None
    comparison: Comparison | None = None
    best_baseline: str = ""
    learned_plan: Plan | None = None
    learned_trace: Trace | None = None
    rewards: list[RewardRecord] = field(default_factory=list)
    stage3_switches: int = 0
    stage3_switch_ns: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
