"""Everything that the page and the tables of one run show, as one value with a JSON form."""

import enum
import json
from dataclasses import dataclass
from pathlib import Path

from doppler.core.codecs.fields import decode, encode
from doppler.core.errors import FormatError
from doppler.core.serialize import read_json, write_atomic
from doppler.report.attribution import DeviceAttribution
from doppler.report.simulator_error import KindError, OpError
from doppler.report.timeline import Timeline

SCHEMA_VERSION = 1
REPORT_FILE = "report.json"


@dataclass(frozen=True, slots=True)
class Fact:
    """A named property, both texts: ("cores", "2")."""

    name: str
    value: str


class Role(enum.Enum):
    """What a planner's row is in the comparison."""

    learned = "learned"
    baseline = "baseline"
    single_device = "single_device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A measured time with its 95 % interval; low_ns <= value_ns <= high_ns.

    Attributes:
        value_ns: Median over windows.
        low_ns, high_ns: The interval's ends.
        num_windows: Windows measured.
    """

    value_ns: int
    low_ns: int
    high_ns: int
    num_windows: int

    def __post_init__(self) -> None:
        if not 0 < self.low_ns <= self.value_ns <= self.high_ns:
            raise FormatError(
                f"an interval holds its positive value, and [{self.low_ns}, {self.high_ns}] ns "
                f"does not hold {self.value_ns} ns"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerRow:
    """One planner's best plan.

    Attributes:
        name: Planner, unique within a report.
        role: Its part in the comparison.
        layout: Layout that its plan is for.
        simulated_ns: Objective in the simulator, positive.
        measured: The same on the machine; None if not measured.
        num_simulations: Plans scored while searching.
        seconds: Time that the search took.
        lower_bound_ns: No plan on this layout can be faster in the simulator; None if not known.
    """

    name: str
    role: Role
    layout: str
    simulated_ns: int
    measured: Interval | None
    num_simulations: int
    seconds: float
    lower_bound_ns: int | None

    def __post_init__(self) -> None:
        if self.simulated_ns <= 0:
            raise FormatError(
                f"a simulated time is positive, and planner {self.name!r} has "
                f"{self.simulated_ns} ns"
            )

    @property
    def gap(self) -> float | None:
        """(simulated - lower bound) / lower bound; None without a positive bound."""
        if not self.lower_bound_ns:
            return None
        return (self.simulated_ns - self.lower_bound_ns) / self.lower_bound_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio of measured periods with its 95 % interval, from interleaved blocks.

    Attributes:
        label: What over what, such as "learned over best baseline".
    """

    label: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of a chart; `xs` and `ys` have equal length."""

    name: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.xs) != len(self.ys):
            raise FormatError(
                f"a series has one y per x, and {self.name!r} has {len(self.xs)} x and "
                f"{len(self.ys)} y"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningCurve:
    """How one stage of training went.

    Attributes:
        title: "Stage II: reinforcement learning in the simulator".
        x_label, y_label: With units, such as "simulations" and "period (ms)".
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeTable:
    """Where the time of each device went in one trace.

    Attributes:
        title: "Measured, learned plan".
        iterations: Iterations that the window took.
    """

    title: str
    iterations: int
    devices: tuple[DeviceAttribution, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardPoint:
    """The RL job after one of its iterations.

    Attributes:
        env_steps: Environment steps so far.
        mean_return: Mean return of the episodes that ended lately; None if none has.
        reward_per_step: Mean reward per environment step.
    """

    iteration: int
    env_steps: int
    mean_return: float | None
    reward_per_step: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorationCost:
    """What stage III cost the running job.

    Attributes:
        iterations: Iterations run in stage III.
        worse_iterations: Of those, under other plans, slower than the plan that it began with.
        extra_ns: Time lost on them against that plan's median.
        learning_seconds: Time spent learning between measurement windows.
        plan_switches: Changes of plan in stage III.
    """

    iterations: int
    worse_iterations: int
    extra_ns: int
    learning_seconds: float
    plan_switches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What is needed to run it again.

    Attributes:
        command: The exact command line.
        created: Local date and time, ISO 8601.
        git_revision: Commit, "+dirty" with local changes; "unknown" outside a clone.
        hardware_fingerprint: Digest of the hardware that calibration and measurements belong to.
        hardware: What the machine has, named.
        versions: Package versions.
    """

    command: str
    seed: int
    created: str
    git_revision: str
    hardware_fingerprint: str
    hardware: tuple[Fact, ...]
    versions: tuple[Fact, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """One run, ready to show.

    Attributes:
        title: Heading.
        objective: What planners make small: "period" or "makespan".
        job, cluster: Their names; `job_facts` and `cluster_facts` describe them.
        planners: At least one row, names unique; none if the run made no plan and shows only what
            was measured.
        ratios: Measured ratios with intervals.
        curves: Learning curves of all stages.
        simulated, measured: The same iterations of one plan, as Gantt charts.
        time_tables: Where the time goes.
        kind_errors, op_errors: Simulator against measurement.
        reward: The RL job's reward curve.
        exploration: Cost of stage III; None without one.
        notes: Sentences that a reader must know.
    """

    title: str
    objective: str
    job: str
    job_facts: tuple[Fact, ...]
    cluster: str
    cluster_facts: tuple[Fact, ...]
    planners: tuple[PlannerRow, ...]
    ratios: tuple[Ratio, ...]
    curves: tuple[LearningCurve, ...]
    simulated: Timeline | None
    measured: Timeline | None
    time_tables: tuple[TimeTable, ...]
    kind_errors: tuple[KindError, ...]
    op_errors: tuple[OpError, ...]
    reward: tuple[RewardPoint, ...]
    exploration: ExplorationCost | None
    provenance: Provenance
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        names = [row.name for row in self.planners]
        if not names and self.measured is None:
            raise FormatError(
                "a report compares at least one planner or shows a measured run, and it has neither"
            )
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise FormatError(
                f"planner names of a report are unique, and {repeated!r} stands twice"
            )

    @property
    def lower_bound_ns(self) -> int | None:
        """The smallest lower bound of all layouts, if every row has one."""
        bounds = [row.lower_bound_ns for row in self.planners]
        known = [bound for bound in bounds if bound is not None]
        return min(known) if len(known) == len(bounds) else None


@dataclass(frozen=True, slots=True)
class _Document:
    schema_version: int
    report: RunReport


def save_report(directory: Path, report: RunReport) -> Path:
    """Writes `report.json` into a result folder and returns its path.

    Raises:
        FormatError: If a number is not finite.
    """
    path = directory / REPORT_FILE
    try:
        text = json.dumps(encode(_Document(SCHEMA_VERSION, report)), allow_nan=False, indent=1)
    except ValueError as error:
        raise FormatError(f"numbers of a report are finite, and one is not: {error}") from error
    write_atomic(path, text + "\n")
    return path


def load_report(directory: Path) -> RunReport:
    """Returns the report of a result folder.

    Raises:
        FormatError: If the file is missing, damaged, of another version, or breaks a rule.
    """
    path = directory / REPORT_FILE
    if not path.exists():
        raise FormatError(f"a result folder holds {REPORT_FILE}, and {str(directory)!r} does not")
    document = read_json(path)
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != SCHEMA_VERSION:
        raise FormatError(
            f"{REPORT_FILE} has schema_version {version!r}, and this version reads {SCHEMA_VERSION}"
        )
    report: RunReport = decode(_Document, document, REPORT_FILE).report
    return report
