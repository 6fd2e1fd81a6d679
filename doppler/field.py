"""The field of stage III: plans that are worth a race on the running job.

On a machine with caches the order of a plan counts beyond what the simulator knows of it: an op
that runs right after the one that made its operands reads them from a cache, a later one from
memory. So plans that simulate alike run unlike, and every placement is in the field twice, with
its own order and with a depth-first one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from doppler.api import make_scorer
from doppler.core.costs import Costs
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Problem
from doppler.core.runtime import INFEASIBLE_NS, Scorer
from doppler.planners import portfolio
from doppler.planners.list_schedule import make_list_scheduler

RULE_SHARE = 0.5
"""Part of the simulations that the list rules may take; the rest compares plans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Plans to race.

    Attributes:
        plans: Distinct plans.
        simulations: Plans scored to choose them.
    """

    plans: tuple[Plan, ...]
    simulations: int


def make_field(
    problem: Problem,
    costs: Costs,
    own: Sequence[Plan],
    others: Sequence[Plan],
    size: int,
    calls: int,
    rng: np.random.Generator,
) -> Field:
    """Returns at most `size` plans: `own` first, the rest by simulated time.

    The rest comes from `others` and the list rules; half of it keeps its order, half is depth
    first, as far as both go.

    Args:
        problem: What is placed.
        costs: Times, corrected by what was measured so far.
        own: Plans that are raced before any other.
        others: More plans whose simulated time decides.
        size: Plans at most.
        calls: Plans that may be scored; what they do not pay for is left out of the rest.
        rng: Source of randomness of the rules.
    """
    first = distinct(own)[:size]
    places = size - len(first)
    if places == 0:
        return Field(plans=tuple(first), simulations=0)
    scorer = make_scorer(problem, costs)
    plans = [*portfolio.rule_plans(problem, scorer, round(RULE_SHARE * calls), rng), *others]
    deep = distinct(depth_first(problem, costs, [*first, *plans]), first)
    left = max(0, calls - scorer.num_calls)
    shares = [
        _fastest_first(scorer, deep[: left - left // 2]),
        _fastest_first(scorer, distinct(plans, first)[: left // 2]),
    ]
    rest: list[Plan] = []
    while len(rest) < places and any(shares):
        share = shares[len(rest) % 2] or shares[1 - len(rest) % 2]
        rest += distinct([share.pop(0)], rest)
    return Field(plans=(*first, *rest), simulations=scorer.num_calls)


def depth_first(problem: Problem, costs: Costs, plans: Sequence[Plan]) -> list[Plan]:
    """Returns the placements of `plans` in depth-first order, and HEFT's placement of that order.

    Plans that hold ops back keep their order, which the holds are for, and are left out.
    """
    lists = make_list_scheduler(problem, costs)
    priority = lists.depth_first()
    schedule = lists.heft(priority.astype(np.float64))
    heft = make_plan(
        problem,
        tuple(lists.mask.placement(schedule.devices_U).tolist()),
        tuple(schedule.priority_V.tolist()),
        "heft in depth-first order",
    )
    again = [
        replace(plan, priority=tuple(priority.tolist()), source=f"{plan.source}, depth first")
        for plan in plans
        if not plan.holds
    ]
    return distinct([heft, *again])


def distinct(plans: Sequence[Plan], known: Sequence[Plan] = ()) -> list[Plan]:
    """Returns plans that differ from each other and from `known`, the first of equals."""
    seen = {_key(plan) for plan in known}
    found: list[Plan] = []
    for plan in plans:
        if _key(plan) not in seen:
            seen.add(_key(plan))
            found.append(plan)
    return found


def is_same(first: Plan, second: Plan) -> bool:
    """True if two plans run alike, whoever made them."""
    return _key(first) == _key(second)


def _key(plan: Plan) -> tuple[object, ...]:
    return plan.cluster_digest, plan.placement, plan.ranks(), *sorted(plan.holds)


def _fastest_first(scorer: Scorer, plans: Sequence[Plan]) -> list[Plan]:
    """Plans that fit, by simulated time."""
    if not plans:
        return []
    values = scorer.score([plan.placement for plan in plans], [plan.priority for plan in plans])
    order = np.argsort(values, kind="stable").tolist()
    return [plans[row] for row in order if values[row] < INFEASIBLE_NS]
