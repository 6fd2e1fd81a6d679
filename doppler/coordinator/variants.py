"""Mapping templates on a deep-RL job: who shares a GMI, as graph + layout + plan.

Every GPU (or host) has the same split; shards are dealt to GPUs in turns and inside a GPU in turns
to the GMIs of their role, so that a chain stays on its GPU.

Source: GMI-DRL, mapping templates.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from doppler.coordinator.resource_model import Template, templates_for
from doppler.coordinator.templates import shard_of
from doppler.core.cluster import Cluster
from doppler.core.costs import Costs
from doppler.core.errors import CapacityError, ClusterError, PlanError
from doppler.core.graph import DataflowGraph
from doppler.core.hardware import Hardware
from doppler.core.job_mode import JobMode
from doppler.core.layout import Layout
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Objective, Problem
from doppler.graphs.collective_ops import FORWARD_KIND, REDUCE_KIND
from doppler.graphs.levels import priorities_of, upward_ranks
from simulator.costs.source import UnknownTimeError

NOT_POSSIBLE = (PlanError, CapacityError, ClusterError, UnknownTimeError)
"""What makes one variant impossible; every other error is a fault and is raised."""

ENVIRONMENT, AGENT, TRAINER = "environment", "agent", "trainer"
ROLE = {
    "rollout": ENVIRONMENT,
    "env_step": ENVIRONMENT,
    "infer": AGENT,
    "advantage": AGENT,
    "collect": TRAINER,
    "grad": TRAINER,
    REDUCE_KIND: TRAINER,
    FORWARD_KIND: TRAINER,
    "reduce": TRAINER,
    "adam": TRAINER,
    "broadcast": TRAINER,
}


@dataclass(frozen=True, slots=True)
class Split:
    """GMIs per processor of each role; 0 = the role shares the GMIs that the template says.

    Attributes:
        environments: GMIs with environments.
        agents: GMIs with agents only (E-AT: with agents and trainers).
        trainers: GMIs with trainers only.
    """

    environments: int
    agents: int = 0
    trainers: int = 0

    @property
    def total(self) -> int:
        """GMIs per processor."""
        return self.environments + self.agents + self.trainers


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCut:
    """How a job is cut for one variant.

    Attributes:
        num_shards: Environment shards.
        num_trainers: Parts of each minibatch's gradient.
        fused: Environment and agent of a chunk are one op.
    """

    num_shards: int
    num_trainers: int
    fused: bool


@dataclass(frozen=True, kw_only=True)
class DRLJob:
    """A job that templates map: equal global batch whatever the cut.

    Attributes:
        name: Its name.
        mode: Serving has no trainer; the others differ in edges of the graph only.
        steps_per_iteration: Control steps of all environments in one iteration.
        build: Graph of a cut.
        num_shards, num_trainers: Cut into so many whatever the split; None = as the split wants.
    """

    name: str
    mode: JobMode
    steps_per_iteration: int
    build: Callable[[JobCut], DataflowGraph]
    num_shards: int | None = None
    num_trainers: int | None = None


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What one template gives for one job.

    Attributes:
        template, split, cut: How it came about.
        layout: How the hardware is cut.
        problem: Graph and cluster.
        plan: Placement and priorities.
    """

    template: Template
    split: Split
    cut: JobCut
    layout: Layout
    problem: Problem
    plan: Plan

    @property
    def graph(self) -> DataflowGraph:
        """The graph of the cut."""
        return self.problem.graph

    @property
    def name(self) -> str:
        """Template and GMIs of each role."""
        return variant_name(self.template, self.split)


def variant_name(template: Template, split: Split) -> str:
    """Returns a template with its GMIs of each role in words."""
    return f"{template.value}({split.environments}+{split.agents}+{split.trainers})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A variant that cannot be.

    Attributes:
        template, split, layout: Which one; the layout by its name.
        reason: Why, in a sentence.
    """

    template: Template
    split: Split
    layout: str
    reason: str


def splits(template: Template, gmis: int, mode: JobMode) -> Iterator[Split]:
    """Yields every way to give `gmis` GMIs of a processor to the roles of a template."""
    if template not in templates_for(mode):
        return
    if template is Template.dp_only:
        yield Split(gmis)
        return
    for environments in range(1, gmis):
        rest = gmis - environments
        if template is Template.ea_t:
            yield Split(environments, 0, rest)
        elif template is Template.e_at or (template is Template.dp_mp and mode is JobMode.serving):
            yield Split(environments, rest)
        elif template is Template.mp_dp:
            if rest == 1 < environments:
                yield Split(environments, 1)
        else:
            for agents in range(1, rest):
                yield Split(environments, agents, rest - agents)


def role_pools(template: Template, split: Split, cluster: Cluster) -> dict[str, list[list[int]]]:
    """Returns the device ids of each role, per processor.

    Raises:
        PlanError: If a processor has another number of devices than the split has GMIs.
    """
    by_parent: dict[str, list[int]] = {}
    for index, device in enumerate(cluster.devices):
        by_parent.setdefault(device.parent, []).append(index)
    pools: dict[str, list[list[int]]] = {ENVIRONMENT: [], AGENT: [], TRAINER: []}
    for parent, devices in by_parent.items():
        if len(devices) != split.total:
            raise PlanError(
                f"template {template.value!r} maps {split.total} GMIs per processor, and "
                f"{parent!r} of cluster {cluster.name!r} has {len(devices)}"
            )
        first = devices[: split.environments]
        second = devices[split.environments : split.environments + split.agents]
        third = devices[split.environments + split.agents :]
        pools[ENVIRONMENT].append(first)
        pools[AGENT].append(second or first)
        pools[TRAINER].append(third or second or first)
    return pools


def place_roles(graph: DataflowGraph, pools: dict[str, list[list[int]]]) -> tuple[int, ...]:
    """Returns the device of every op: shard s on processor s mod P, there in turns.

    Raises:
        PlanError: If an op has no role in the templates.
    """
    placement: list[int] = []
    for op in graph.ops:
        if op.is_input:
            placement.append(0)
            continue
        shard = shard_of(op)
        pool = pools[ROLE[op.kind]]
        devices = pool[shard % len(pool)]
        placement.append(devices[shard // len(pool) % len(devices)])
    return tuple(placement)


def make_variant(
    template: Template,
    split: Split,
    job: DRLJob,
    hardware: Hardware,
    layout: Layout,
    costs_of: Callable[[Problem], Costs],
    shards_per_gmi: int = 1,
) -> Variant:
    """Returns a template's variant of a job on a layout.

    Environments and agents that share a GMI are fused. Shards are as many as give every environment
    GMI, and every agent GMI, equally many: `shards_per_gmi` times the least such number. Every
    trainer GMI gets one part of the gradient.

    Raises:
        PlanError: If the layout does not fit the split, or a link is missing.
        CapacityError: If the state does not fit.
    """
    cluster = layout.apply(hardware)
    pools = role_pools(template, split, cluster)
    chains = math.lcm(len(pools[ENVIRONMENT][0]), len(pools[AGENT][0]))
    cut = JobCut(
        num_shards=job.num_shards or shards_per_gmi * chains * len(pools[ENVIRONMENT]),
        num_trainers=job.num_trainers or sum(map(len, pools[TRAINER])),
        fused=pools[AGENT] == pools[ENVIRONMENT],
    )
    graph = job.build(cut)
    objective = Objective.period if graph.is_cyclic else Objective.makespan
    problem = Problem(graph=graph, cluster=cluster, objective=objective)
    priority = priorities_of(upward_ranks(problem, costs_of(problem)), graph)
    plan = make_plan(problem, place_roles(graph, pools), tuple(priority.tolist()), template.value)
    return Variant(
        template=template, split=split, cut=cut, layout=layout, problem=problem, plan=plan
    )


def all_variants(
    job: DRLJob,
    hardware: Hardware,
    layouts: dict[int, Layout],
    costs_of: Callable[[Problem], Costs],
    shards_per_gmi: int = 1,
) -> tuple[list[Variant], list[Refusal]]:
    """Returns every variant, and why each one that cannot be is not possible.

    Args:
        job: The job.
        hardware: The hardware.
        layouts: GMIs per processor -> layout.
        costs_of: Costs of a problem.
        shards_per_gmi: See `make_variant`.
    """
    found: list[Variant] = []
    refused: list[Refusal] = []
    for gmis, layout in layouts.items():
        for template in templates_for(job.mode):
            for split in splits(template, gmis, job.mode):
                try:
                    found.append(
                        make_variant(
                            template, split, job, hardware, layout, costs_of, shards_per_gmi
                        )
                    )
                except NOT_POSSIBLE as error:
                    refused.append(
                        Refusal(
                            template=template,
                            split=split,
                            layout=layout.name,
                            reason=str(error),
                        )
                    )
    return found, refused
