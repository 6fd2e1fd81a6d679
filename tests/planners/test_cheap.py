"""Cheap planners: every built-in planner is one or a search, and none spends much."""

import random

import pytest

from doppler.api import make_scorer, plan_problem
from doppler.core.problem import Problem
from doppler.planners import portfolio
from doppler.planners.cheap import CHEAP, cheap_plans
from doppler.planners.registry import BUILT_IN, get_planner
from tests.random_problems import random_cluster, random_costs, random_graph

SEARCHES = {
    "annealing", "annealing_keys", "annealing_placement", "brkga", "exact", "exact_no_holds",
    "exhaustive", "gdp", "guided", "learned", "learned_joint", "learned_per_step",
    "learned_place_only", "learned_select_only", "perturbed_heft", "placeto", "portfolio",
    "random_best",
}  # fmt: skip
MOST_CALLS = 50


@pytest.fixture
def problem():
    rng = random.Random(3)
    graph = random_graph(rng, num_ops=40)
    return Problem(graph=graph, cluster=random_cluster(rng, num_devices=3))


@pytest.fixture
def costs(problem):
    return random_costs(random.Random(4), problem)


def test_every_built_in_planner_is_cheap_or_a_search():
    assert len(set(CHEAP)) == len(CHEAP)
    assert set(CHEAP) | SEARCHES == set(BUILT_IN)
    assert not set(CHEAP) & SEARCHES
    assert set(portfolio.RULES) <= {get_planner(name) for name in CHEAP}


def test_with_calls_enough_the_plans_are_those_of_a_comparison(problem, costs):
    scorer = make_scorer(problem, costs)
    plans = cheap_plans(problem, scorer, 10_000, 101)
    assert {plan.source for plan in plans} == set(CHEAP) - {"dp_only"}  # no deep-RL job
    for plan in plans:
        result = plan_problem(problem, costs, plan.source, 10_000, 101)
        assert plan == result.plan
        assert result.num_calls <= MOST_CALLS
    assert scorer.num_calls <= 150


@pytest.mark.parametrize("calls", [0, 1, 5, 13, 29])
def test_few_calls_pay_for_as_many_planners_as_they_can(problem, costs, calls):
    scorer = make_scorer(problem, costs)
    plans = cheap_plans(problem, scorer, calls, 0)
    assert len(plans) >= min(calls, len(CHEAP) - 1) - 1
    assert scorer.num_calls <= calls


def test_the_generator_of_the_caller_does_not_matter(problem, costs):
    first, second = (cheap_plans(problem, make_scorer(problem, costs), 200, 7) for _ in range(2))
    other = cheap_plans(problem, make_scorer(problem, costs), 200, 8)
    assert first == second
    assert first != other
