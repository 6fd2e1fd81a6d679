"""The field of stage III: plans that are worth a race on the running job.

On a machine with caches the order of a plan counts beyond what the simulator knows of it: an op
that runs right after the one that made its operands reads them from a cache, a later one from
memory. So plans that simulate alike run unlike, and placements are in the field twice, with their
own order and with a depth-first one.

What every cheap planner makes (`doppler.planners.cheap`) is in the field, too, whatever it
simulates at: a plan that costs nothing to find must not be what the job turns out to run fastest
under, unseen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from doppler.api import make_scorer
from doppler.core.costs import Costs
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Problem
from doppler.core.runtime import INFEASIBLE_NS, Scorer
from doppler.planners.cheap import cheap_plans
from doppler.planners.list_schedule import make_list_scheduler

CHEAP_SHARE, AGAIN_SHARE = 0.75, 0.5
"""Part of the simulations that the cheap planners may take, and part of what they leave that they
may take once more, on the costs of now; the rest compares plans."""


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
    planned: Costs,
    measured: Costs,
    own: Sequence[Plan],
    others: Sequence[Plan],
    *,
    size: int,
    calls: int,
    seed: int,
) -> Field:
    """Returns `own` and what the cheap planners make, then more by simulated time up to `size`.

    The cheap planners are asked with the costs that all plans were made with, so that theirs are
    those of a comparison. The rest comes from `others`, and from the cheap planners on the costs of
    now; half of it keeps its order, half is depth first, as far as both go.

    Args:
        problem: What is placed.
        planned: Times that plans were made with before the job ran.
        measured: The same, corrected by what was measured so far.
        own: Plans that are raced in any case.
        others: More plans whose simulated time decides.
        size: Plans at most, unless there are more that are raced in any case.
        calls: Plans that may be scored; what they do not pay for is left out.
        seed: Seed of cheap planners that draw numbers.
    """
    scorer = make_scorer(problem, planned)
    cheap = cheap_plans(problem, scorer, round(CHEAP_SHARE * calls), seed)
    first = distinct([*own, *cheap])
    places, left = size - len(first), calls - scorer.num_calls
    if places <= 0:
        return Field(plans=tuple(first), simulations=scorer.num_calls)
    scorer = make_scorer(problem, measured)
    again = cheap_plans(problem, scorer, round(AGAIN_SHARE * left), seed)
    plans = distinct([*again, *others], first)
    deep = distinct(depth_first(problem, measured, [*first, *plans]), [*first, *plans])
    to_rank = left - scorer.num_calls
    shares = [
        _fastest_first(scorer, deep[: to_rank - to_rank // 2]),
        _fastest_first(scorer, plans[: to_rank // 2]),
    ]
    rest: list[Plan] = []
    while len(rest) < places and any(shares):
        share = shares[len(rest) % 2] or shares[1 - len(rest) % 2]
        rest += distinct([share.pop(0)], rest)
    return Field(plans=(*first, *rest), simulations=calls - left + scorer.num_calls)


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
