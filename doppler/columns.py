"""Columns of planner tables: planners by name, and parts of the learned planner on their own.

policy_only    the pretrained policies' best of k episodes, no search at all
policy_drawn   the same, each episode decoded with scores, weights and timeline of its own (noise in
               the parameters instead of the choices); independent of each other, no search either
policy_tuned   the same policies trained on the target graph (stage II), no search
policy_polish  the learned planner: the policies' episodes and guides, then the portfolio's search
               from the best of them and the plans of the list rules
drawn_no_network  the same drawing round policies that have learned nothing: their networks add
               nothing, so orders by b-level and the priors of PLC decide
rules_polish   the same search from the plans of all list rules (HEFT among them), and from no
               policy; with equal calls it is the portfolio
heft_polish    the same search from HEFT's plan alone
gdp_stage1     GDP after stage I: it imitates the critical-path rule before it samples
placeto_stage1 PLACETO after stage I, with message passing once per sweep, not at every step
dual, joint .. the learned planner from nothing, and ablations of it: `doppler.planners.ablations`
anything else  the planner of that name in `doppler.planners.registry`
"""

import time
from dataclasses import dataclass, replace

import numpy as np

from doppler.api import make_scorer
from doppler.core.costs import Costs
from doppler.core.errors import ConfigError, nearest
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import Scorer
from doppler.graphs.families import generate
from doppler.planners import heft, portfolio
from doppler.planners.ablations import VARIANTS
from doppler.planners.base import Budget, Planner
from doppler.planners.gdp import GdpConfig, GdpPlanner
from doppler.planners.guided import GuidedPlanner
from doppler.planners.guides import GuidedSettings
from doppler.planners.learned import LearnedPlanner
from doppler.planners.placeto import PlacetoConfig, PlacetoPlanner
from doppler.planners.registry import get_planner, planner_names
from doppler.policies.ablations import new_policy
from doppler.policies.config import MessagePassing, PolicyConfig
from doppler.training.config import LearnedMode, Start

FIRST_PROBE = 128
MOST_CALLS = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One planner's run.

    Attributes:
        plan: Its plan.
        value_ns: The plan's simulated objective.
        calls: Plans that it had scored.
        cpu_seconds: Processor time of this process, all threads.
    """

    plan: Plan
    value_ns: int
    calls: int
    cpu_seconds: float


def _learned(mode: LearnedMode) -> Planner:
    def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
        planner = LearnedPlanner(mode=mode, start=Start.pretrained)
        return planner(problem, scorer, budget, rng)

    return plan


DRAWN = GuidedSettings(
    draw_share=1.0,
    polish_share=0.0,
    finish_share=0.0,
    order_noise=0.2,
    order_spread=1.5,
    shared_share=0.5,
    free_share=0.5,
)


def _policy_drawn(
    problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator
) -> Plan:
    return GuidedPlanner(settings=DRAWN, predicted=None)(problem, scorer, budget, rng)


def _drawn_no_network(
    problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator
) -> Plan:
    # Untrained policies of the improved pair are their priors: output layers begin at zero.
    untrained = new_policy(PolicyConfig(), seed=0)
    planner = GuidedPlanner(policy=untrained, settings=DRAWN, predicted=None)
    return replace(planner(problem, scorer, budget, rng), source="drawn_no_network")


def _rules_polish(
    problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator
) -> Plan:
    last_call = scorer.num_calls + budget.calls
    seeds = portfolio.rule_plans(problem, scorer, budget.calls // 2, rng)
    left = Budget(last_call - scorer.num_calls)
    found = portfolio.search(problem, scorer, left, rng, seeds=seeds)
    return replace(found, source="rules_polish")


def _heft_polish(
    problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator
) -> Plan:
    before = scorer.num_calls
    seed = heft.plan(problem, scorer, budget, rng)
    left = budget.calls - (scorer.num_calls - before)
    if left < 1:
        return seed
    found = portfolio.search(problem, scorer, Budget(left), rng, seeds=(seed,))
    return replace(found, source="heft_polish")


# Updates of stage I: a second or less of a run on graphs of 200 ops.
STAGE_ONE = 50

_OWN: dict[str, Planner] = {
    "policy_only": _learned(LearnedMode.sample),
    "policy_drawn": _policy_drawn,
    "policy_tuned": _learned(LearnedMode.tune),
    "policy_polish": _learned(LearnedMode.polish),
    "drawn_no_network": _drawn_no_network,
    "rules_polish": _rules_polish,
    "heft_polish": _heft_polish,
    "gdp_stage1": GdpPlanner(config=GdpConfig(imitation=STAGE_ONE)),
    "placeto_stage1": PlacetoPlanner(
        config=PlacetoConfig(imitation=STAGE_ONE, messages=MessagePassing.once)
    ),
    **VARIANTS,
}


def column(name: str) -> Planner:
    """Returns the planner of a column.

    Raises:
        ConfigError: If the name is unknown.
    """
    if name in _OWN:
        return _OWN[name]
    known = (*_OWN, *planner_names())
    if name not in known:
        raise ConfigError(f"column {name!r} is unknown; {nearest(name, known)}")
    return get_planner(name)


def measure(make: Planner, problem: Problem, costs: Costs, calls: int, seed: int) -> Measured:
    """Returns what a planner makes of a problem with a budget of `calls`, and its cost."""
    scorer = make_scorer(problem, costs)
    start = time.process_time()
    plan = make(problem, scorer, Budget(calls), np.random.default_rng(seed))
    spent = time.process_time() - start
    value = int(make_scorer(problem, costs).score_plans([plan])[0])
    return Measured(plan=plan, value_ns=value, calls=scorer.num_calls, cpu_seconds=spent)


def warm_up(make: Planner) -> None:
    """Runs a planner on a small problem, so that compilation and loading are not measured."""
    instance = generate("layered", 12, 2, ccr=1.0)
    measure(make, instance.problem, instance.costs, FIRST_PROBE, 0)


def calls_for(make: Planner, problem: Problem, costs: Costs, cpu_seconds: float) -> int:
    """Returns the budget in calls that takes about `cpu_seconds`, from runs of growing size.

    The last two short runs give a line, and a run at its end corrects it: parts of a planner that
    grow with the budget up to a limit bend the line. A planner that does not use half of its budget
    (HEFT) keeps what it was given; less may be left because a planner scores whole batches.
    """
    before: Measured | None = None
    calls = FIRST_PROBE
    while True:
        found = measure(make, problem, costs, calls, 0)
        if 2 * found.calls < calls or calls >= MOST_CALLS:
            return calls
        if found.cpu_seconds >= cpu_seconds / 3:
            break
        before = found
        calls = min(MOST_CALLS, calls * 2 if found.cpu_seconds > cpu_seconds / 12 else calls * 4)
    per_call = found.cpu_seconds / found.calls
    if before is not None and found.cpu_seconds > before.cpu_seconds:
        per_call = (found.cpu_seconds - before.cpu_seconds) / (found.calls - before.calls)
    calls = _limited(found.calls + (cpu_seconds - found.cpu_seconds) / per_call)
    found = measure(make, problem, costs, calls, 0)
    return _limited(
        calls + (cpu_seconds - found.cpu_seconds) * found.calls / max(1e-9, found.cpu_seconds)
    )


def _limited(calls: float) -> int:
    return int(min(max(1.0, calls), MOST_CALLS))
