"""GMIs as a user writes them: a class per role, a manager that launches one process per GMI.

The vocabulary is the paper's: role, GMI id, device, group; `run`, `train`, `collective` are the
user's. The manager's `describe` prints the layout and all communication before anything starts.

Source: GMI-DRL, section 5 and listing 1.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from doppler.coordinator.layouts import even_layout
from doppler.core.cluster import Cluster
from doppler.core.collective import AllReduceSchedule
from doppler.core.errors import ConfigError, nearest
from doppler.core.layout import Backend
from doppler.gmi_trace import GMITrace
from doppler.graphs.collectives import direct
from executor.collectives.kernels import CollectiveKernel
from executor.collectives.shared import AllReduceLayout
from executor.experience.flow import WhenFull
from executor.experience.packages import BatchLayout, Package, group_packages
from executor.experience.ring import RingLayout
from executor.gmi.base import GMI
from executor.gmi.communication import Channel, Collective, Communication, GMISpec, Link, Weights
from executor.gmi.messages import Saved
from executor.gmi.team import GMITeam
from executor.launch.local import check_cores, num_threads
from executor.probe import probe

__all__ = ["GMI", "CollectiveKernel", "GMIManager", "Package", "Saved", "core_groups"]

DEADLINE_S = 30.0
Report = Callable[[int, Mapping[str, Any]], None]
"""on_report(gmi_id, values)."""


def core_groups(num_gmis: int) -> Cluster:
    """Returns this machine's cores, cut into equal GMIs.

    Raises:
        ClusterError: If there are fewer cores.
    """
    hardware = probe().hardware
    return even_layout(hardware, Backend.core_group, num_gmis).apply(hardware)


@dataclass(kw_only=True)
class GMIManager:
    """Launches GMIs and watches them: one process per GMI, bound to its device before it starts.

    A GMI that dies is noticed at once, by the kernel; one that neither communicates nor reports for
    `deadline_s`, or lets others wait for so long, counts as hung. Either ends the run with an error
    that names id, role, device and the last that is known of it.

    Attributes:
        cluster: The devices; `core_groups(n)`, or any layout applied to this host's cores.
        seed: Decides every GMI's `rng`.
        deadline_s: See above.
        shm_dir: Mount for the shared memory.
        gmis: GMIs added so far.
        checkpoints: The last checkpoint of each GMI of the present or last run.
        failed: GMIs that died or hung in the last run.
        trace: What the GMIs of the last run did when; None before it and if it failed.
    """

    cluster: Cluster
    seed: int = 0
    deadline_s: float = DEADLINE_S
    shm_dir: str = "/dev/shm"
    gmis: list[GMISpec] = field(default_factory=list, init=False)
    checkpoints: dict[int, Saved] = field(default_factory=dict, init=False)
    failed: tuple[int, ...] = field(default=(), init=False)
    trace: GMITrace | None = field(default=None, init=False)
    _links: list[Link] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        check_cores(self.cluster)

    # -- layout ----------------------------------------------------------------------------------

    def add_gmi(
        self,
        gmi_class: type[GMI],
        role: str,
        device: str | int,
        settings: Mapping[str, Any] | None = None,
        resume: Saved | None = None,
    ) -> int:
        """Adds a GMI and returns its id.

        Args:
            gmi_class: The user's class, importable by name or from the script that runs.
            role: What it does; GMIs of one role are a group.
            device: Name or position; every device has one GMI at most.
            settings: What the class reads as `self.settings`.
            resume: Checkpoint that it goes on from, of this GMI or another.

        Raises:
            ConfigError: If the device is unknown or taken, or the class cannot be imported.
        """
        names = [d.name for d in self.cluster.devices]
        name = names[device] if isinstance(device, int) and device < len(names) else str(device)
        if name not in names:
            raise ConfigError(f"device {name!r} of a GMI is unknown; {nearest(name, names)}")
        taken = {spec.device.name: spec for spec in self.gmis}
        if name in taken:
            raise ConfigError(
                f"a device has one GMI, and {name!r} is that of {taken[name].title} already"
            )
        spec = GMISpec(
            gmi_id=len(self.gmis),
            role=role,
            device=self.cluster.devices[names.index(name)],
            source=_source(gmi_class),
            class_name=gmi_class.__qualname__,
            settings=dict(settings or {}),
            first_step=0 if resume is None else resume.step,
            state=None if resume is None else resume.state,
        )
        self.gmis.append(spec)
        return spec.gmi_id

    def group(self, role: str | None = None, parent: str | None = None) -> tuple[int, ...]:
        """Returns the ids of all GMIs with a role, on a processor, or both.

        Raises:
            ConfigError: If there is none.
        """
        found = tuple(
            spec.gmi_id
            for spec in self.gmis
            if role in (None, spec.role) and parent in (None, spec.device.parent)
        )
        if not found:
            roles = sorted({spec.role for spec in self.gmis})
            raise ConfigError(
                f"no GMI has role {role!r} on processor {parent!r}; roles so far: {roles}"
            )
        return found

    # -- communication ---------------------------------------------------------------------------

    def add_collective(
        self,
        name: str,
        group: Sequence[int],
        num_elements: int,
        dtype: str = "float32",
        schedule: AllReduceSchedule | None = None,
        kernel: CollectiveKernel = CollectiveKernel.shared_memory,
    ) -> None:
        """Adds an all-reduce over a group.

        Args:
            name: Its name.
            group: GMI ids.
            num_elements: Length of every member's array.
            dtype: numpy's name of the type.
            schedule: A composition of `doppler.graphs.collectives`; None = direct, where chunk c is
                added by member c and read by all.
            kernel: What does it: shared memory, gloo, or one of those for arrays on GPUs.

        Raises:
            ConfigError: If the name is taken, the schedule is for another number of members, or it
                is given beside a kernel that has its own.
        """
        if schedule is not None and kernel is not CollectiveKernel.shared_memory:
            raise ConfigError(
                f"a schedule is for shared memory, and collective {name!r} has {schedule.name!r} "
                f"beside kernel {kernel.value!r}"
            )
        schedule = schedule or direct(len(group))
        if schedule.num_members != len(group):
            raise ConfigError(
                f"collective {name!r} has {len(group)} members, and schedule {schedule.name!r} is "
                f"for {schedule.num_members}"
            )
        layout = AllReduceLayout(schedule=schedule, num_elements=num_elements, dtype=dtype)
        members = self._known(group)
        self._add(Collective(name=name, members=members, layout=layout, kernel=kernel))

    def add_channel(
        self,
        name: str,
        producers: Sequence[int],
        consumers: Sequence[int],
        packages: Sequence[Package],
        batch: int,
        num_slots: int = 4,
        when_full: WhenFull = WhenFull.block,
    ) -> None:
        """Adds an experience channel: every producer feeds every consumer.

        Args:
            name: Its name.
            producers: Ids of the GMIs that send.
            consumers: Ids of those that receive.
            packages: Fields of a record.
            batch: Records per batch.
            num_slots: Batches that a ring holds before its producer waits.
            when_full: What the producer does then.

        Raises:
            ConfigError: If the name is taken, or a GMI is on both sides.
        """
        if both := set(producers) & set(consumers):
            raise ConfigError(
                f"a GMI is on one side of a channel, and GMI {min(both)} is on both of {name!r}"
            )
        layout = BatchLayout(group_packages(packages), batch)
        self._add(
            Channel(
                name=name,
                producers=self._known(producers),
                consumers=self._known(consumers),
                ring=RingLayout(layout, num_slots),
                when_full=when_full,
            )
        )

    def add_weights(
        self, name: str, publisher: int, readers: Sequence[int], num_bytes: int
    ) -> None:
        """Adds weights that one GMI publishes and others read, always the newest.

        Raises:
            ConfigError: If the name is taken.
        """
        (publisher,) = self._known([publisher])
        self._add(
            Weights(
                name=name, publisher=publisher, readers=self._known(readers), num_bytes=num_bytes
            )
        )

    @property
    def communication(self) -> Communication:
        """All links, and where they lie."""
        return Communication(num_gmis=len(self.gmis), links=tuple(self._links))

    def describe(self) -> str:
        """Returns layout and communication as text, one line each."""
        lines = [f"layout {self.cluster.name}: {len(self.gmis)} GMIs, seed {self.seed}"]
        for spec in self.gmis:
            device = spec.device
            lines.append(
                f"  GMI {spec.gmi_id}  role {spec.role}  device {device.name} "
                f"(cores {','.join(map(str, device.cores))}; {num_threads(device)} threads; "
                f"{device.share:.0%} of {device.parent}; {device.memory_bytes / 2**30:.1f} GiB)"
            )
        total = self.communication.size_bytes
        lines.append(f"communication: {total / 2**20:.2f} MiB of {self.shm_dir}")
        lines += [f"  {_describe(link)}" for link in self._links]
        return "\n".join(lines)

    # -- running ---------------------------------------------------------------------------------

    def run(
        self, num_episodes: int, num_steps: int, on_report: Report | None = None
    ) -> tuple[Any, ...]:
        """Runs all GMIs once, from their start to the end of all, and returns their results by id.

        Args:
            num_episodes: Handed to every GMI's `run`.
            num_steps: Likewise.
            on_report: Called with what GMIs report, while they run.

        Raises:
            ConfigError: If there is no GMI.
            CapacityError: If memory, shared memory or file descriptors do not suffice.
            WorkerDiedError, WorkerHungError: Name the GMI; `failed` and `checkpoints` stay.
            KernelError: If the code of a GMI raises; carries its traceback.
        """
        if not self.gmis:
            raise ConfigError("a run has at least one GMI, and none was added")
        self.checkpoints, self.failed, self.trace = {}, (), None
        team = GMITeam(
            tuple(self.gmis), self.communication, self.seed, self.deadline_s, self.shm_dir
        )
        try:
            ended = team.run(num_episodes, num_steps, on_report, self.checkpoints)
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

    def survivors(self) -> tuple[int, ...]:
        """Returns the ids of the GMIs that neither died nor hung in the last run."""
        return tuple(spec.gmi_id for spec in self.gmis if spec.gmi_id not in self.failed)

    def last_checkpoint(self, role: str | None = None) -> Saved | None:
        """Returns the newest checkpoint of any GMI (of a role), None if there is none."""
        saved = [s for gmi_id, s in self.checkpoints.items() if gmi_id in self.group(role)]
        return max(saved, key=lambda s: s.step, default=None)

    def _known(self, ids: Sequence[int]) -> tuple[int, ...]:
        for gmi_id in ids:
            if not 0 <= gmi_id < len(self.gmis):
                raise ConfigError(f"GMIs are 0 to {len(self.gmis) - 1}, and a link names {gmi_id}")
        if not ids or len(set(ids)) < len(ids):
            raise ConfigError(f"a group has GMIs, each once, and it is {list(ids)}")
        return tuple(ids)

    def _add(self, link: Link) -> None:
        if any(other.name == link.name for other in self._links):
            raise ConfigError(f"links have unique names, and {link.name!r} is taken")
        self._links.append(link)


def _source(gmi_class: type[GMI]) -> str:
    """Module by name, or the file of the script that runs."""
    if "<locals>" in gmi_class.__qualname__:
        raise ConfigError(
            f"the class of a GMI stands at the top of its module, and {gmi_class.__qualname__!r} "
            f"stands in a function"
        )
    if gmi_class.__module__ != "__main__":
        return gmi_class.__module__
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None:
        raise ConfigError(
            f"the class of a GMI lies in a file, and {gmi_class.__qualname__!r} was typed in"
        )
    return str(Path(file).resolve())


def _describe(link: Link) -> str:
    if isinstance(link, Collective):
        layout = link.layout
        item = np.dtype(layout.dtype).itemsize
        shared = link.kernel is CollectiveKernel.shared_memory
        how = layout.schedule.name if shared else f"by {link.kernel.value}"
        return (
            f"all-reduce {link.name}: GMIs {_ids(link.members)}, {how}, "
            f"{layout.num_elements} x {layout.dtype} ({layout.num_elements * item / 1024:.1f} KiB)"
        )
    if isinstance(link, Channel):
        batch = link.ring.batch
        return (
            f"channel {link.name}: GMIs {_ids(link.producers)} -> {_ids(link.consumers)}, "
            f"{len(batch.channels)} packed channels, {batch.batch} records "
            f"({batch.size_bytes / 1024:.1f} KiB) per batch, {link.ring.num_slots} batches per "
            f"ring, full: {link.when_full.value}"
        )
    return (
        f"weights {link.name}: GMI {link.publisher} -> {_ids(link.readers)}, "
        f"{link.num_bytes / 1024:.1f} KiB"
    )


def _ids(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids))
