"""What if a number of the hardware were another: plans scored before and after, ranked anew."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import networkx

from doppler.api import DEFAULT_BUDGET, DEFAULT_PLANNERS, make_problem, plan_problem, score_plan
from doppler.core.costs import Costs
from doppler.core.errors import ConfigError, nearest
from doppler.core.graph import DataflowGraph
from doppler.core.plan import Plan
from doppler.core.problem import Objective
from doppler.machines import read_machine
from simulator.hardware.catalogue import Catalogue, load_catalogue
from simulator.hardware.changes import Change, change_catalogue
from simulator.hardware.machines import split_name


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfRow:
    """One planner before and after.

    Attributes:
        planner: Its name.
        plan: Its plan for the machine as it is.
        before_ns: Simulated objective of the plan on the machine as it is.
        after_ns: Of the same plan on the changed machine.
        replanned_ns: Of the plan that it makes for the changed machine; None = not asked for.
        rank_before, rank_after: Place of the plan among all, from 1; equal values share one.
    """

    planner: str
    plan: Plan
    before_ns: int
    after_ns: int
    replanned_ns: int | None
    rank_before: int
    rank_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The answer to a what-if question.

    Attributes:
        changes: What was changed.
        objective: What the times are.
        rows: One per planner, best plan after the change first.
    """

    changes: tuple[Change, ...]
    objective: Objective
    rows: tuple[WhatIfRow, ...]


def what_if(
    graph: DataflowGraph | networkx.DiGraph,
    machine: str,
    changes: Sequence[str],
    *,
    planners: Sequence[str] = DEFAULT_PLANNERS,
    budget: int = DEFAULT_BUDGET,
    costs: Costs | None = None,
    layout: str | None = None,
    pins: Mapping[str, str] | None = None,
    objective: Objective | None = None,
    replan: bool = True,
    seed: int = 0,
    catalogue: Catalogue | None = None,
) -> WhatIf:
    """Returns how plans for a named machine do if numbers of the catalogue change.

    Args:
        graph: What is placed.
        machine: Machine of the catalogue, such as "dgx_a100" or "dgx_a100@bf16".
        changes: Changes, one after the other, such as "nvlink.bytes_per_s*2".
        planners: Planners that make plans for the machine as it is.
        budget: Plans that each may simulate.
        costs: Times per op and device, the same before and after; None = the roofline of the
            machine before and of the machine after.
        layout: File with the layout that cuts the machine; None = whole GPUs.
        pins: Op name -> device name.
        objective: None = period where the graph is loop-carried, else makespan.
        replan: Each planner makes a plan for the changed machine, too.
        seed: Seed of every planner.
        catalogue: What is known by name; None = what ships with the project.

    Raises:
        ConfigError: If the machine, a planner or an entry is unknown, or a change is none.
        PlanError: If no placement obeys the rules.
    """
    known = load_catalogue() if catalogue is None else catalogue
    if not changes:
        raise ConfigError("what-if changes a number, and no change is given")
    if split_name(machine)[0] not in known.machine_names:
        raise ConfigError(
            f"what-if changes numbers of the catalogue, so the cluster is one of its machines, and "
            f"{machine!r} is none; {nearest(machine, known.machine_names)}"
        )
    changed, made = known, tuple[Change, ...]()
    for text in changes:
        changed, found = change_catalogue(changed, machine, text)
        made += found
    old, new = (read_machine(machine, layout, entries) for entries in (known, changed))
    before = make_problem(graph, old.cluster, pins=pins, objective=objective)
    after = replace(before, cluster=new.cluster)
    old_costs = old.roofline.costs(before) if costs is None else costs
    new_costs = new.roofline.costs(after) if costs is None else costs
    plans, values, replanned = [], [], []
    for name in planners:
        result = plan_problem(before, old_costs, name, budget, seed)
        moved = replace(result.plan, cluster_digest=after.cluster.digest)
        plans.append(result.plan)
        values.append((result.value_ns, score_plan(after, new_costs, moved)))
        anew = plan_problem(after, new_costs, name, budget, seed) if replan else None
        replanned.append(None if anew is None else anew.value_ns)
    rows = [
        WhatIfRow(
            planner=name,
            plan=plan,
            before_ns=value[0],
            after_ns=value[1],
            replanned_ns=anew,
            rank_before=1 + sum(other[0] < value[0] for other in values),
            rank_after=1 + sum(other[1] < value[1] for other in values),
        )
        for name, plan, value, anew in zip(planners, plans, values, replanned, strict=True)
    ]
    return WhatIf(
        changes=made,
        objective=before.objective,
        rows=tuple(sorted(rows, key=lambda row: row.rank_after)),
    )
