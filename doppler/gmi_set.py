"""GMIs on their devices, and what they say to each other: all that is known before they run.

Source: GMI-DRL, section 5 and listing 1.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from doppler.core.cluster import Cluster
from doppler.core.collective import AllReduceSchedule
from doppler.core.errors import ConfigError, nearest
from doppler.gmi_batch import BatchChoice, measured_batch
from doppler.gmi_choice import CompositionChoice, choose_composition
from doppler.gmi_description import describe_gmi, describe_link
from doppler.gmi_trial import TrialOptions
from doppler.graphs.collectives import direct
from executor.collectives.kernels import CollectiveKernel
from executor.collectives.members import check_members
from executor.collectives.shared import AllReduceLayout
from executor.experience.flow import WhenFull
from executor.experience.packages import BatchLayout, Package, group_packages
from executor.experience.ring import RingLayout
from executor.gmi.base import GMI
from executor.gmi.communication import Channel, Collective, Communication, GMISpec, Link, Weights
from executor.gmi.messages import Saved
from executor.host import read_host_cpu
from executor.launch.local import check_cores
from executor.process_needs import oversubscription

DEADLINE_S = 30.0
Auto = Literal["auto"]
AUTO: Auto = "auto"
"""Says that a composition or a batch is chosen by measuring, on the devices of the GMIs."""


@dataclass(kw_only=True)
class GMISet:
    """GMIs, each bound to a device, and the links between them.

    Attributes:
        cluster: The devices; `doppler.gmi.core_groups(n)`, or any layout applied to this host.
        seed: Decides every GMI's `rng`.
        deadline_s: A GMI that is silent for so long counts as hung.
        shm_dir: Mount for the shared memory.
        limit_memory: The process of a core group may take no more private memory than its device
            owns; an allocation beyond fails where it is made.
        gmis: GMIs added so far; after a run with `on_failure="drop"` those that are left.
        choices: Link -> what was measured to choose its composition or batch (see `AUTO`).
    """

    cluster: Cluster
    seed: int = 0
    deadline_s: float = DEADLINE_S
    shm_dir: str = "/dev/shm"
    limit_memory: bool = False
    gmis: list[GMISpec] = field(default_factory=list, init=False)
    choices: dict[str, CompositionChoice | BatchChoice] = field(default_factory=dict, init=False)
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
        schedule: AllReduceSchedule | Auto | None = None,
        kernel: CollectiveKernel = CollectiveKernel.shared_memory,
    ) -> None:
        """Adds an all-reduce over a group.

        Args:
            name: Its name.
            group: GMI ids.
            num_elements: Length of every member's array.
            dtype: numpy's name of the type.
            schedule: A composition of `doppler.graphs.collectives`; None = direct, where chunk c is
                added by member c and read by all; "auto" = the fastest here (`choices` tells why):
                all are simulated, and the best measured at once, in processes on the members'
                devices, for a few seconds. The order of a sum depends on it, and so do the last
                bits.
            kernel: What does it: shared memory, gloo, or one of those for arrays on GPUs.

        Raises:
            ConfigError: If the name is taken, the schedule is for another number of members, it
                is given beside a kernel that has its own, or the kernel does not reach the devices
                of all members.
            CapacityError, ExecutionError: If what "auto" measures cannot run.
        """
        members = self._known(group)
        check_members(kernel, [self.gmis[member].device for member in members], name)
        if schedule is not None and kernel is not CollectiveKernel.shared_memory:
            raise ConfigError(
                f"a schedule is for shared memory, and collective {name!r} has "
                f"{schedule if schedule == AUTO else schedule.name!r} beside kernel "
                f"{kernel.value!r}"
            )
        if schedule == AUTO:
            self._check_free(name)
            devices = [self.gmis[member].device for member in members]
            choice = choose_composition(devices, num_elements, dtype, self._trial_options)
            self.choices[name] = choice
            schedule = choice.schedule
        schedule = schedule or direct(len(group))
        if schedule.num_members != len(group):
            raise ConfigError(
                f"collective {name!r} has {len(group)} members, and schedule {schedule.name!r} is "
                f"for {schedule.num_members}"
            )
        layout = AllReduceLayout(schedule=schedule, num_elements=num_elements, dtype=dtype)
        self._add(Collective(name=name, members=members, layout=layout, kernel=kernel))

    def add_channel(
        self,
        name: str,
        producers: Sequence[int],
        consumers: Sequence[int],
        packages: Sequence[Package],
        batch: int | Auto,
        num_slots: int = 4,
        when_full: WhenFull = WhenFull.block,
        num_sent: int = 1,
    ) -> None:
        """Adds an experience channel: every producer feeds every consumer.

        Args:
            name: Its name.
            producers: Ids of the GMIs that send.
            consumers: Ids of those that receive.
            packages: Fields of a record.
            batch: Records per batch: more are moved faster, and arrive later; "auto" = the
                smallest of about the fastest here (`choices` tells why): measured at once, for a
                few seconds, in processes on the devices of the first producer and consumer.
                Records of a batch that is not full wait: a producer that waits for what comes of
                them (new weights) calls `flush` before.
            num_slots: Batches that a ring holds before its producer waits, two or more.
            when_full: What the producer does then.
            num_sent: Records per call of `send`, for "auto".

        Raises:
            ConfigError: If the name is taken, or a GMI is on both sides.
            CapacityError, ExecutionError: If what "auto" measures cannot run.
        """
        if both := set(producers) & set(consumers):
            raise ConfigError(
                f"a GMI is on one side of a channel, and GMI {min(both)} is on both of {name!r}"
            )
        producers, consumers = self._known(producers), self._known(consumers)
        if batch == AUTO:
            self._check_free(name)
            ends = self.gmis[producers[0]].device, self.gmis[consumers[0]].device
            choice = measured_batch(*ends, packages, num_slots, num_sent, self._trial_options)
            self.choices[name] = choice
            batch = choice.batch
        layout = BatchLayout(group_packages(packages), batch)
        self._add(
            Channel(
                name=name,
                producers=producers,
                consumers=consumers,
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
        lines += [f"  {describe_gmi(spec)}" for spec in self.gmis]
        used = Cluster(name="GMIs", devices=tuple(spec.device for spec in self.gmis))
        if crowd := oversubscription(used, len(read_host_cpu().core_ids)):
            lines.append(f"  {crowd}")
        total = self.communication.size_bytes
        lines.append(f"communication: {total / 2**20:.2f} MiB of {self.shm_dir}")
        for link in self._links:
            lines.append(f"  {describe_link(link)}")
            if link.name in self.choices:
                lines += [f"    {line}" for line in self.choices[link.name].describe().splitlines()]
        return "\n".join(lines)

    def _known(self, ids: Sequence[int]) -> tuple[int, ...]:
        for gmi_id in ids:
            if not 0 <= gmi_id < len(self.gmis):
                raise ConfigError(f"GMIs are 0 to {len(self.gmis) - 1}, and a link names {gmi_id}")
        if not ids or len(set(ids)) < len(ids):
            raise ConfigError(f"a group has GMIs, each once, and it is {list(ids)}")
        return tuple(ids)

    def _add(self, link: Link) -> None:
        self._check_free(link.name)
        self._links.append(link)

    def _check_free(self, name: str) -> None:
        if any(other.name == name for other in self._links):
            raise ConfigError(f"links have unique names, and {name!r} is taken")

    @property
    def _trial_options(self) -> TrialOptions:
        return TrialOptions(shm_dir=self.shm_dir, deadline_s=max(self.deadline_s, DEADLINE_S))


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
