"""`place` with the learned planner's mode and time."""

import pytest

from doppler import api
from doppler.api import UNLIMITED, place
from doppler.core.errors import ConfigError
from doppler.training.config import LearnedMode, Start
from tests.policies.problems import six_ops


def test_mode_and_seconds_reach_the_learned_planner(monkeypatch):
    problem, costs = six_ops()
    made = []
    plan_problem = api.plan_problem

    def noted(problem, costs, planner, budget, seed, **named):
        made.append((planner, budget))
        return plan_problem(problem, costs, planner, min(budget, 40), seed, **named)

    monkeypatch.setattr(api, "plan_problem", noted)
    plan = place(problem.graph, problem.cluster, costs=costs, mode=LearnedMode.greedy)
    assert plan.source == "learned"
    place(problem.graph, problem.cluster, costs=costs, mode=LearnedMode.sample, seconds=2.0)
    place(problem.graph, problem.cluster, costs=costs, seconds=0.5, budget=30)
    (greedy, calls), (sample, endless), (polish, few) = made
    assert (greedy.mode, greedy.start, calls) == (LearnedMode.greedy, Start.pretrained, 3000)
    assert (sample.mode, sample.seconds, endless) == (LearnedMode.sample, 2.0, UNLIMITED)
    assert (polish.mode, polish.seconds, few) == (LearnedMode.polish, 0.5, 30)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"planner": "heft", "seconds": 1.0}, "settings of planner 'learned', and it is 'heft'"),
        ({"planner": "heft", "mode": LearnedMode.tune}, "settings of planner 'learned'"),
        ({"seconds": 0.0}, "seconds is finite and above 0, and it is 0"),
        ({"seconds": float("nan")}, "seconds is finite and above 0, and it is nan"),
    ],
)
def test_a_mode_or_a_time_that_nothing_reads_is_refused(settings, message):
    problem, costs = six_ops()
    with pytest.raises(ConfigError, match=message):
        place(problem.graph, problem.cluster, costs=costs, **settings)
