"""The critical-path rule: largest b-level first, earliest start, ties among the tied (trap 9)."""

import numpy as np

from doppler.core.costs import make_costs
from doppler.planners import critical_path
from doppler.planners.base import Budget
from doppler.planners.list_schedule import make_list_scheduler
from tests.planners.slow_scorer import SlowScorer
from tests.planners.test_heft import problem_of, scheduler


def test_takes_the_ready_op_with_the_largest_level():
    # levels: o0 1, o1 9, o2 5 (o2 feeds nothing)
    problem = problem_of(3, [])
    lists = scheduler(problem, ((1, 1), (9, 9), (5, 5)))
    for seed in range(5):
        run = lists.critical_path(np.random.default_rng(seed))
        assert np.argsort(-run.priority_V).tolist() == [1, 2, 0]


def test_ties_are_drawn_among_the_tied_only():
    # o0 and o1 tie at 9, o2 and o3 tie at 1: no draw may put a 1 before a 9
    problem = problem_of(4, [])
    lists = scheduler(problem, ((9, 9), (1, 1), (9, 9), (1, 1)))
    seen = set()
    for seed in range(40):
        run = lists.critical_path(np.random.default_rng(seed))
        order = tuple(np.argsort(-run.priority_V).tolist())
        assert set(order[:2]) == {0, 2}
        seen.add(order)
    assert len(seen) == 4


def test_device_with_the_earliest_start_wins():
    # o0 occupies one device; o1 starts at 0 on the other one whatever the times are
    problem = problem_of(2, [])
    lists = scheduler(problem, ((9, 9), (1, 8)))
    devices = set()
    for seed in range(20):
        run = lists.critical_path(np.random.default_rng(seed))
        assert run.devices_U[0] != run.devices_U[1]
        devices.add(tuple(run.devices_U.tolist()))
    assert devices == {(0, 1), (1, 0)}


def test_earliest_start_counts_the_transfer():
    # o1 needs o0: at once where o0 is, 50 later elsewhere; o2 is free to go to the other device
    problem = problem_of(3, [(0, 1)], latency=50)
    lists = make_list_scheduler(problem, make_costs(problem, ((5, 5), (5, 5), (60, 60))))
    run = lists.critical_path(np.random.default_rng(0))
    assert run.devices_U[0] == run.devices_U[1] != run.devices_U[2]


def test_fifty_runs_at_most():
    problem = problem_of(3, [])
    scorer = SlowScorer(problem, make_costs(problem, ((1, 1),) * 3))
    critical_path.plan(problem, scorer, Budget(1000), np.random.default_rng(0))
    assert scorer.num_calls == 50


def test_the_planner_keeps_what_each_of_its_runs_was_worth():
    # 9, 8, 7, 6, 5 on two devices: runs differ by which device is free first, none is below 18
    problem = problem_of(5, [])
    scorer = SlowScorer(problem, make_costs(problem, tuple((t, t + 1) for t in (9, 8, 7, 6, 5))))
    planner = critical_path.CriticalPathPlanner()
    plan = planner(problem, scorer, Budget(30), np.random.default_rng(0))
    assert len(planner.values_ns) == 30
    assert len(set(planner.values_ns)) > 1
    assert scorer.score([plan.placement], [plan.priority])[0] == min(planner.values_ns)
