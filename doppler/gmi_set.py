"""GMIs on their devices, and what they say to each other: all that is known before they run.

Source: GMI-DRL, section 5 and listing 1.
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

from doppler.core.cluster import Cluster
from doppler.core.collective import AllReduceSchedule
from doppler.core.errors import ConfigError
from doppler.core.whole import check_whole
from doppler.gmi_batch import BatchChoice, measured_batch
from doppler.gmi_checks import check_deadline, chosen, composition, device_of
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

    Raises:
        ClusterError: If a device owns cores that this process may not use.
        ConfigError: If the seed is below 0 or the deadline is no time.
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
        check_deadline(self.deadline_s)
        check_whole(self.seed, 0, "seeds", "this set of GMIs")

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
            device: Name, or position from 0; every device has one GMI at most.
            settings: What the class reads as `self.settings`.
            resume: Checkpoint that it goes on from, of this GMI or another.

        Raises:
            ConfigError: If the device is unknown or taken, or the class cannot be imported.
        """
        own = device_of(self.cluster, device)
        taken = {spec.device.name: spec for spec in self.gmis}
        if own.name in taken:
            raise ConfigError(
                f"a device has one GMI, and {own.name!r} is that of {taken[own.name].title} already"
            )
        spec = GMISpec(
            gmi_id=len(self.gmis),
            role=role,
            device=own,
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
        schedule: AllReduceSchedule | str | None = None,
        kernel: CollectiveKernel | str = CollectiveKernel.shared_memory,
    ) -> None:
        """Adds an all-reduce over a group.

        Args:
            name: Its name.
            group: GMI ids.
            num_elements: Length of every member's array.
            dtype: numpy's name of the type, one of numbers.
            schedule: A composition of `doppler.graphs.collectives`, or its name ("ring", "tree",
                "hybrid(1)"), with the members of one processor as a group; None = direct, where
                chunk c is added by member c and read by all; "auto" = the fastest here (`choices`
                tells why): all are simulated, and the best measured at once, in processes on the
                members' devices, for a few seconds. The order of a sum depends on it, and so do the
                last bits.
            kernel: What does it: shared memory, gloo, or one of those for arrays on GPUs.

        Raises:
            ConfigError: If the name is taken, length or type are none, the schedule is unknown or
                for another number of members, it is given beside a kernel that has its own, or the
                kernel does not reach the devices of all members.
            CapacityError, ExecutionError: If what "auto" measures cannot run.
        """
        where = f"collective {name!r}"
        members = self._known(group)
        devices = [self.gmis[member].device for member in members]
        kernel = chosen(CollectiveKernel, kernel, f"the kernel of {where}")
        check_members(kernel, devices, name)
        if schedule is not None and kernel is not CollectiveKernel.shared_memory:
            given = schedule.name if isinstance(schedule, AllReduceSchedule) else schedule
            raise ConfigError(
                f"a schedule is for shared memory, and {where} has {given!r} beside kernel "
                f"{kernel.value!r}"
            )
        layout = AllReduceLayout(
            schedule=direct(len(members)), num_elements=num_elements, dtype=dtype
        )
        link = Collective(name=name, members=members, layout=layout, kernel=kernel)
        if schedule == AUTO:
            self._check_free(name)
            choice = choose_composition(devices, num_elements, dtype, self._trial_options)
            self.choices[name] = choice
            schedule = choice.schedule
        if schedule is not None:
            schedule = composition(schedule, devices, where)
            link = replace(link, layout=replace(layout, schedule=schedule))
        self._add(link)

    def add_channel(
        self,
        name: str,
        producers: Sequence[int],
        consumers: Sequence[int],
        packages: Sequence[Package],
        batch: int | Auto,
        num_slots: int = 4,
        when_full: WhenFull | str = WhenFull.block,
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
            ConfigError: If the name is taken, a GMI is on both sides, or a count is none.
            CapacityError, ExecutionError: If what "auto" measures cannot run.
        """
        where = f"channel {name!r}"
        if isinstance(batch, str) and batch != AUTO:
            raise ConfigError(
                f"a batch is a number of records or {AUTO!r}, and that of {where} is {batch!r}"
            )
        groups = group_packages(packages)
        records = 1 if batch == AUTO else check_whole(batch, 1, "the records of a batch", where)
        slots = check_whole(num_slots, 2, "the batches of a ring", where)
        sent = check_whole(num_sent, 1, "the records per call of send", where)
        link = Channel(
            name=name,
            producers=self._known(producers),
            consumers=self._known(consumers),
            ring=RingLayout(BatchLayout(groups, records), slots),
            when_full=chosen(WhenFull, when_full, f"when_full of {where}"),
        )
        if batch == AUTO:
            self._check_free(name)
            ends = self.gmis[link.producers[0]].device, self.gmis[link.consumers[0]].device
            choice = measured_batch(*ends, packages, slots, sent, self._trial_options)
            self.choices[name] = choice
            link = replace(link, ring=RingLayout(BatchLayout(groups, choice.batch), slots))
        self._add(link)

    def add_weights(
        self, name: str, publisher: int, readers: Sequence[int], num_bytes: int
    ) -> None:
        """Adds weights that one GMI publishes and others read, always the newest.

        Args:
            name: Their name.
            publisher: Id of the GMI that publishes them.
            readers: Ids of the others that read them.
            num_bytes: Bytes of the weights.

        Raises:
            ConfigError: If the name is taken, there are no bytes, or the publisher reads, too.
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
        if self.limit_memory:
            lines[0] += ", private memory limited to the share of each"
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
        if not isinstance(ids, Collection) or not all(isinstance(i, Integral) for i in ids):
            raise ConfigError(f"a group is a list of GMI ids (see `group`), and it is {ids!r}")
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
    if not isinstance(gmi_class, type):
        raise ConfigError(f"a GMI is given by its class, and it is {gmi_class!r}")
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
