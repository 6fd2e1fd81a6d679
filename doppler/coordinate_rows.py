"""What `doppler coordinate` compares: batches, rows, and what measuring them gave."""

import dataclasses

from doppler.coordinator.variants import Variant
from doppler.core.errors import ConfigError
from doppler.measure import Interval
from doppler.planners.learned import SOURCE


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Environments in all, and the shards that they are dealt out to, equally many to each.

    Raises:
        ConfigError: If they cannot be dealt out so.
    """

    num_envs: int
    num_shards: int

    def __post_init__(self) -> None:
        if min(self.num_envs, self.num_shards) < 1 or self.num_envs % self.num_shards:
            raise ConfigError(
                f"every shard of a batch has equally many environments, at least one, and "
                f"{self.num_envs} environments are in {self.num_shards} shards"
            )

    @property
    def envs_per_shard(self) -> int:
        """Environments of one shard."""
        return self.num_envs // self.num_shards


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One way to run the job, with what it yields.

    Attributes:
        variant: Layout, template and plan; of a learned row, the policy's plan on the layout and
            graph of that template.
        batch: Environments and shards.
        steps_per_s: Simulated control steps per second.
        simulations: Plans that were scored to find it.
        seconds: How long that took.
    """

    variant: Variant
    batch: Batch
    steps_per_s: float
    simulations: int
    seconds: float

    @property
    def is_learned(self) -> bool:
        """True if the policy made the plan."""
        return self.variant.plan.source == SOURCE

    @property
    def name(self) -> str:
        """The template, or that the plan is learned, and on what."""
        if not self.is_learned:
            return self.variant.name
        form = "fused" if self.variant.cut.fused else "split"
        return f"learned({self.variant.problem.cluster.num_devices} GMIs, {form})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verified:
    """Rows that were measured in turns.

    Attributes:
        rates: Steps per second by row, with intervals over the windows; None for a row that cannot
            be run here.
        failed: Index of such a row -> what ended it.
        chosen: Index of the row to run: the template's that was fastest, or a row that is surely
            faster than it (`keep_or_leave`). None if no row can be run.
    """

    rates: tuple[Interval | None, ...]
    failed: dict[int, str]
    chosen: int | None
