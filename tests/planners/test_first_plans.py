"""Plans that the learned planner begins from: scored first, never lost, walked from, checked."""

import dataclasses

import numpy as np
import pytest

from doppler.core.errors import PlanError
from doppler.core.plan import make_plan
from doppler.planners import annealing, portfolio
from doppler.planners.base import Budget
from doppler.planners.learned import LearnedPlanner
from doppler.training.config import LearnedMode, Start
from simulator.scorer import CompiledScorer
from tests.policies.problems import layered


@pytest.fixture
def task():
    problem, costs = layered(7)
    return problem, CompiledScorer(problem, costs)


def good_plan(problem, scorer):
    return annealing.plan(problem, scorer, Budget(3000), np.random.default_rng(1))


def learned(task, budget, mode, *plans):
    planner = LearnedPlanner(mode=mode, start=Start.pretrained, first_plans=plans)
    return planner(*task, Budget(budget), np.random.default_rng(0))


@pytest.mark.parametrize("mode", list(LearnedMode))
def test_the_result_is_no_worse_than_what_it_began_from(task, mode):
    problem, scorer = task
    first = good_plan(problem, scorer)
    alone = int(scorer.score_plans([learned(task, 2, LearnedMode.greedy)])[0])
    value = int(scorer.score_plans([first])[0])
    assert value < alone  # or the test could not fail
    for budget in (2, 40):
        assert scorer.score_plans([learned(task, budget, mode, first)])[0] <= value


def test_one_simulation_is_the_policies_own(task):
    problem, scorer = task
    first = good_plan(problem, scorer)
    before = scorer.num_calls
    found = learned(task, 1, LearnedMode.greedy, first)
    assert scorer.num_calls == before + 1
    assert found == learned(task, 1, LearnedMode.greedy)


def test_the_search_walks_from_them(task, monkeypatch):
    seen = []
    search = portfolio.search

    def spy(*arguments, seeds=()):
        seen.extend(seeds)
        return search(*arguments, seeds=seeds)

    monkeypatch.setattr(portfolio, "search", spy)
    first = good_plan(*task)
    learned(task, 300, LearnedMode.polish, first)
    assert first in seen


def test_plans_of_other_problems_and_holds_are_refused(task):
    problem, scorer = task
    first = good_plan(problem, scorer)
    other = dataclasses.replace(first, graph_digest="another")
    with pytest.raises(PlanError):
        learned(task, 40, LearnedMode.sample, other)
    order = sorted(range(problem.graph.num_ops), key=lambda op: -first.priority[op])
    pair = next(
        (a, b)
        for i, a in enumerate(order)
        for b in order[i + 1 :]
        if first.placement[a] == first.placement[b]
    )
    held = make_plan(problem, first.placement, first.priority, "x", holds=(pair,))
    with pytest.raises(PlanError, match="has no holds, and that of 'x' has 1"):
        learned(task, 40, LearnedMode.sample, held)
