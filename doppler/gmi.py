"""GMIs as a user writes them: a class per role, a manager that launches one process per GMI.

The vocabulary is the paper's: role, GMI id, device, group; `run`, `train`, `collective` are the
user's. The manager's `describe` prints the layout and all communication before anything starts.

Source: GMI-DRL, section 5 and listing 1.
"""

import logging
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from doppler.coordinator.layouts import even_layout
from doppler.core.cluster import Cluster
from doppler.core.errors import ConfigError, ExecutionError, WorkerDiedError, WorkerHungError
from doppler.core.layout import Backend
from doppler.core.whole import check_whole
from doppler.gmi_checkpoints import CheckpointStore, files_of, read_history, resume_points
from doppler.gmi_recovery import (
    OnFailure,
    Recovery,
    check_on_failure,
    links_without,
    resumed,
)
from doppler.gmi_set import AUTO, GMISet
from doppler.gmi_trace import GMITrace
from executor.collectives.kernels import CollectiveKernel
from executor.experience.flow import WhenFull
from executor.experience.packages import Package
from executor.gmi.base import GMI
from executor.gmi.communication import Collective
from executor.gmi.messages import Saved
from executor.gmi.team import GMITeam, Report
from executor.probe import probe

__all__ = [
    "AUTO",
    "GMI",
    "CollectiveKernel",
    "GMIManager",
    "Package",
    "Recovery",
    "Saved",
    "WhenFull",
    "core_groups",
]

logger = logging.getLogger(__name__)


def core_groups(num_gmis: int) -> Cluster:
    """Returns this machine's cores, cut into equal GMIs.

    Raises:
        ClusterError: If there are fewer cores.
    """
    hardware = probe().hardware
    return even_layout(hardware, Backend.core_group, num_gmis).apply(hardware)


@dataclass(kw_only=True)
class GMIManager(GMISet):
    """Launches GMIs and watches them: one process per GMI, bound to its device before it starts.

    A GMI that dies is noticed at once, by the kernel; one that neither communicates nor reports for
    `deadline_s`, or lets others wait for so long, counts as hung. Either is told of by id, role,
    device and the last that is known of it; what follows is up to `on_failure`.

    Attributes:
        on_failure: What happens when a GMI dies or hangs: "raise" = the run ends with the error;
            "restart" = all are started again and go on from their checkpoints; "drop" = the same
            without the failed ones, their links re-planned for who is left, ids counted anew. An
            error of a GMI's own code ends the run: it would come again.
        max_recoveries: How often per run; the next failure ends it.
        checkpoint_dir: Folder for checkpoints, so that `resume_from` finds them in another process;
            None = they are kept in memory only.
        failed: GMIs that died or hung in the last run, or in its last attempt.
        recoveries: Failures that the last run has got over.
        trace: What the GMIs of the last run did when, in its last attempt; None before it and if it
            failed.
    """

    on_failure: OnFailure = "raise"
    max_recoveries: int = 3
    checkpoint_dir: Path | None = None
    failed: tuple[int, ...] = field(default=(), init=False)
    recoveries: list[Recovery] = field(default_factory=list, init=False)
    trace: GMITrace | None = field(default=None, init=False)
    _store: CheckpointStore = field(default_factory=CheckpointStore, init=False)
    _read: frozenset[Path] = field(default=frozenset(), init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_on_failure(self.on_failure)
        check_whole(self.max_recoveries, 0, "the recoveries of a run", "this set of GMIs")

    def run(
        self, num_episodes: int, num_steps: int, on_report: Report | None = None
    ) -> tuple[Any, ...]:
        """Runs all GMIs once, from their start to the end of all, and returns their results by id.

        Args:
            num_episodes: Handed to every GMI's `run`.
            num_steps: Likewise.
            on_report: Called with what GMIs report, while they run; after a recovery they report
                again what they do again.

        Raises:
            ConfigError: If there is no GMI, or `checkpoint_dir` holds checkpoints other than those
                that `resume_from` has read since the last run.
            CapacityError: If memory, shared memory or file descriptors do not suffice.
            WorkerDiedError, WorkerHungError: Name the GMI; `failed` and `checkpoints` stay.
            KernelError: If the code of a GMI raises; carries its traceback.
        """
        if not self.gmis:
            raise ConfigError("a run has at least one GMI, and none was added")
        self.recoveries = []
        self._store = CheckpointStore(self.checkpoint_dir)
        self._store.check_free(self._read)
        self._read = frozenset()
        self._store.start_from(self.gmis)
        begun = {spec.device.name: spec for spec in self.gmis}
        try:
            while True:
                try:
                    return self._attempt(num_episodes, num_steps, on_report)
                except (WorkerDiedError, WorkerHungError) as error:
                    if self.on_failure == "raise" or len(self.recoveries) >= self.max_recoveries:
                        raise
                    self._recover(error, time.monotonic())
        finally:  # another run begins where this one has begun
            self.gmis = [replace(begun[spec.device.name], gmi_id=spec.gmi_id) for spec in self.gmis]

    def resume_from(self, folder: Path) -> None:
        """Lets all GMIs added so far go on from the checkpoints of a folder (`checkpoint_dir`).

        Raises:
            FormatError: If a file is no checkpoint, or one of another role or class.
            ConfigError: If members of a collective have saved no step in common.
        """
        read = files_of(folder, self.gmis)
        history = read_history(folder, self.gmis)
        points = resume_points(self.gmis, self._links, history)
        if lost := sorted(history.keys() - points.keys()):
            newest = ", ".join(f"GMI {gmi_id} has {history[gmi_id][-1].step}" for gmi_id in lost)
            raise ConfigError(
                f"members of a collective go on from one step, and in {str(folder)!r} they have "
                f"no step in common: {newest}"
            )
        self.gmis = list(resumed(self.gmis, points))
        self._read = read

    @property
    def checkpoints(self) -> dict[int, Saved]:
        """The last checkpoint of each GMI of the present or last run."""
        return {gmi_id: kept[-1] for gmi_id, kept in self._store.history.items()}

    def _attempt(
        self, num_episodes: int, num_steps: int, on_report: Report | None
    ) -> tuple[Any, ...]:
        """Runs all GMIs once."""
        self.failed, self.trace = (), None
        gmis = tuple(self.gmis)
        team = GMITeam(
            gmis,
            self.communication,
            self.seed,
            self.deadline_s,
            self.shm_dir,
            attempt=len(self.recoveries),
            limit_memory=self.limit_memory,
        )
        try:
            ended = team.run(
                num_episodes,
                num_steps,
                on_report,
                lambda gmi_id, saved: self._store.put(gmis[gmi_id], saved),
            )
            self.trace = GMITrace(
                cluster=self.cluster,
                gmis=tuple(replace(spec, state=None) for spec in self.gmis),
                communication=self.communication,
                spans=tuple(finished.spans for finished in ended),
                num_dropped=tuple(finished.num_dropped for finished in ended),
            )
            return tuple(finished.result for finished in ended)
        finally:
            self.failed = tuple(sorted(team.failed))
            team.end()

    def _recover(self, error: ExecutionError, detected_at: float) -> None:
        """Prepares the next attempt.

        Raises:
            ExecutionError: The given one, if who is left cannot go on.
        """
        leaving = self.failed if self.on_failure == "drop" else ()
        points = resume_points(self.gmis, self._links, self._store.history, leaving)
        titles = tuple(self.gmis[gmi_id].title for gmi_id in self.failed)
        try:
            links = links_without(self._links, len(self.gmis), leaving)
        except ConfigError as reason:
            error.add_note(str(reason))
            raise error from reason
        gmis = resumed(self.gmis, points, leaving)
        if not gmis:
            raise error
        sizes = {link.name: len(link.participants) for link in self._links}
        for link in links:
            if isinstance(link, Collective) and len(link.members) < sizes[link.name]:
                self.choices.pop(link.name, None)  # it was measured for more members
        self.gmis, self._links = list(gmis), links
        self._store.start_from(gmis)
        recovery = Recovery(
            error=str(error),
            failed=titles,
            detected_at=detected_at,
            steps={g.role: min(o.first_step for o in gmis if o.role == g.role) for g in gmis},
            num_gmis=len(gmis),
        )
        self.recoveries.append(recovery)
        logger.warning("%s: %s", self.on_failure, recovery)

    def survivors(self) -> tuple[int, ...]:
        """Returns the ids of the GMIs that neither died nor hung in the last run."""
        return tuple(spec.gmi_id for spec in self.gmis if spec.gmi_id not in self.failed)

    def last_checkpoint(self, role: str | None = None) -> Saved | None:
        """Returns the newest checkpoint of any GMI (of a role), None if there is none."""
        saved = [s for gmi_id, s in self.checkpoints.items() if gmi_id in self.group(role)]
        return max(saved, key=lambda s: s.step, default=None)
