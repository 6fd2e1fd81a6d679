"""The oracle: best of everything, or a refusal."""

import itertools

import numpy as np
import pytest

from doppler.core.costs import make_costs
from doppler.core.errors import PlanError
from doppler.planners import exhaustive
from doppler.planners.base import Budget
from tests.planners.slow_scorer import SlowScorer
from tests.planners.test_heft import problem_of


def test_is_the_best_of_all_plans():
    problem = problem_of(4, [(0, 2), (1, 3)], latency=2)
    scorer = SlowScorer(problem, make_costs(problem, ((3, 4), (5, 2), (4, 4), (1, 6))))
    plan = exhaustive.plan(problem, scorer, Budget(400), np.random.default_rng(0))
    assert scorer.num_calls == 16 * 24
    values = [
        scorer.score([placement], [priority])[0]
        for placement in itertools.product(range(2), repeat=4)
        for priority in itertools.permutations(range(4))
    ]
    assert scorer.score([plan.placement], [plan.priority])[0] == min(values)


def test_refuses_what_it_cannot_enumerate():
    problem = problem_of(4, [])
    scorer = SlowScorer(problem, make_costs(problem, ((1, 1),) * 4))
    with pytest.raises(PlanError, match="all 384 plans of graph 'g' or none"):
        exhaustive.plan(problem, scorer, Budget(383), np.random.default_rng(0))
    assert scorer.num_calls == 0
