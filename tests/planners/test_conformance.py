"""Every registered planner passes the conformance suite; the suite finds what is broken."""

import itertools
from dataclasses import replace

import pytest

from doppler.core.errors import CapacityError
from doppler.core.plan import make_plan
from doppler.planners import heft
from doppler.planners.conformance import ConformanceError, check_planner, conformance_cases
from doppler.planners.registry import planner_names
from simulator.scorer import CompiledScorer
from tests.planners.conformance import check_registered
from tests.planners.slow_scorer import SlowScorer

FRESH = itertools.count()
NAMES = planner_names()  # those that other installed packages register, too


# Planners that decode the policies take a minute each: the compiled scorer must do for them.
POLICIES = ("learned", "guided")


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(POLICIES)])
def test_planner_conforms(name):
    check_registered(name, SlowScorer)


# The ablations differ in their policies only: all cases with small ones in test_ablations.
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("learned_")])
def test_planner_conforms_with_the_compiled_scorer(name):
    check_registered(name, CompiledScorer)


def test_a_function_conforms_without_a_name_in_the_registry():
    check_planner(heft.plan, CompiledScorer)


def nameless(problem, scorer, budget, rng):
    return replace(heft.plan(problem, scorer, budget, rng), source="")


def deaf_to_pins(problem, scorer, budget, rng):
    plan = heft.plan(problem, scorer, budget, rng)
    return replace(plan, placement=(0,) * problem.graph.num_ops)


def restless(problem, scorer, budget, rng):
    plan = heft.plan(problem, scorer, budget, rng)
    return replace(plan, priority=(next(FRESH), *plan.priority[1:]))


def wasteful(problem, scorer, budget, rng):
    plan = heft.plan(problem, scorer, budget, rng)
    for _ in range(budget.calls + 1 - scorer.num_calls):
        scorer.score([plan.placement], [plan.priority])
    return plan


def faint(problem, scorer, budget, rng):
    if budget.calls == 1:
        raise CapacityError("no plan that was found fits in memory")
    return heft.plan(problem, scorer, budget, rng)


@pytest.mark.parametrize(
    ("planner", "rule"),
    [
        (nameless, "nameless on pins: a plan names its maker"),
        (
            deaf_to_pins,
            "deaf_to_pins on pins: a budget of 24 gives a plan that fits the problem: .*s1",
        ),
        (restless, "restless on pins: equal seeds give equal plans"),
        (wasteful, "wasteful on pins: a budget of 24 is kept, and 25 were scored"),
        (faint, "faint on pins: a budget of 1 gives a plan .*: no plan that was found"),
    ],
)
def test_a_broken_rule_is_named(planner, rule):
    with pytest.raises(ConformanceError, match=rule):
        check_planner(planner, SlowScorer)


def the_case(label):
    return next(case for case in conformance_cases() if case.label == label)


def all_on_one(problem, scorer, budget, rng):
    zeros = (0,) * problem.graph.num_ops
    return make_plan(problem, zeros, zeros, "all_on_one")


def test_a_plan_that_overflows_is_found():
    with pytest.raises(ConformanceError, match="memory for tensors: the plan fits in memory"):
        check_planner(all_on_one, SlowScorer, cases=[the_case("memory for tensors")])


def test_a_planner_may_say_that_nothing_fits_where_memory_is_scarce():
    def refusing(problem, scorer, budget, rng):
        raise CapacityError("no plan that was found fits in memory")

    check_planner(refusing, SlowScorer, cases=[the_case("memory for tensors")])
    with pytest.raises(ConformanceError, match="memory for state: a budget of 24 gives a plan"):
        check_planner(refusing, SlowScorer, cases=[the_case("memory for state")])
