import numpy as np
import pytest

from doppler.core.costs import make_costs
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.problem import Problem
from doppler.planners.list_schedule import make_list_scheduler
from doppler.planners.predicted import policy_timeline
from doppler.planners.sent_timeline import Lanes, first_gap, occupy, sent_timeline
from doppler.policies.build import build_assignment
from doppler.policies.config import PolicyConfig
from doppler.policies.dual import policy_inputs
from simulator.machine_code import cached
from simulator.scorer import CompiledScorer
from tests.planners.test_predicted import chain
from tests.policies.problems import cluster, layered

TINY = PolicyConfig(hidden=8, rank=4, rounds=1, head_hidden=8, summary=2)


def timelines_of(pair):
    inputs, lists = policy_inputs(build_assignment(*pair), TINY), make_list_scheduler(*pair)
    return sent_timeline(inputs, lists), policy_timeline(inputs, lists)


@cached()
def gap_of(lanes, lane, ready, length):
    return first_gap(lanes, lane, ready, length)


@cached()
def hold(lanes, lane, start, end):
    occupy(lanes, lane, start, end)


def lanes_of(size, *intervals):
    lanes = Lanes(np.zeros((1, size)), np.zeros((1, size)), np.zeros(1, np.int64))
    for start, end in intervals:
        hold(lanes, 0, float(start), float(end))
    return lanes


def busy(lanes):
    count = lanes.num_busy[0]
    return list(zip(lanes.start[0, :count].tolist(), lanes.end[0, :count].tolist(), strict=True))


def test_a_gap_is_the_first_one_that_is_long_enough():
    lanes = lanes_of(8, (5, 8), (10, 12), (0, 2))
    assert busy(lanes) == [(0, 2), (5, 8), (10, 12)]
    assert gap_of(lanes, 0, 0.0, 3.0) == 2
    assert gap_of(lanes, 0, 3.0, 2.0) == 3
    assert gap_of(lanes, 0, 3.0, 2.5) == 12
    assert gap_of(lanes, 0, 6.0, 2.0) == 8
    assert gap_of(lanes, 0, 20.0, 2.0) == 20


def test_intervals_that_touch_are_one_and_the_earliest_is_forgotten():
    lanes = lanes_of(3, (0, 1), (2, 3), (1, 2))
    assert busy(lanes) == [(0, 2), (2, 3)]
    lanes = lanes_of(3, (4, 5), (3, 4), (5, 5))
    assert busy(lanes) == [(3, 5)]
    lanes = lanes_of(3, (0, 1), (2, 3), (6, 7), (4, 5))
    assert busy(lanes) == [(2, 3), (4, 5), (6, 7)]
    hold(lanes, 0, 0.0, 1.0)
    assert busy(lanes) == [(2, 3), (4, 5), (6, 7)]


@pytest.mark.parametrize("seed", range(3))
def test_a_row_of_ops_is_predicted_as_it_is_simulated(seed):
    pair = chain(12, 3, seed)
    rng = np.random.default_rng(seed)
    placements, priorities = rng.integers(0, 3, (20, 12)), rng.integers(1, 99, (20, 12))
    simulated = CompiledScorer(*pair).score(placements, priorities)
    sent, _ = timelines_of(pair)
    # Transfers of the simulator take whole nanoseconds, those of the timeline do not.
    assert np.abs(sent.score(placements, priorities) - simulated).max() <= 12


def late_reader():
    """Ops 0, 4 and 1 run on device 0; on device 1 op 2 reads 0 and 1, and op 3 reads 4."""
    ops = tuple(Op(kind="k", name=f"o{i}", outputs=(100,)) for i in range(5))
    edges = (Edge(0, 0, 2), Edge(1, 0, 2), Edge(4, 0, 3))
    problem = Problem(graph=DataflowGraph(name="late", ops=ops, edges=edges), cluster=cluster(2))
    times = ((100,) * 2, (900,) * 2, (50,) * 2, (50,) * 2, (100,) * 2)
    return problem, make_costs(problem, times)


def test_a_tensor_does_not_wait_for_one_that_is_made_later():
    # Op 2 goes before op 3, so the policies' timeline sends op 1's tensor, which is made at 1100,
    # before that of op 4, which is made at 200.
    pair = late_reader()
    placements = np.array([[0, 0, 1, 1, 0]])
    priorities = np.array([[9, 7, 6, 1, 8]])
    starts = [timeline.starts(placements, priorities)[1][0, 3] for timeline in timelines_of(pair)]
    assert 200 < starts[0] < 1100 < starts[1]


def test_it_orders_plans_as_the_simulator_does_more_often_than_the_policies_timeline():
    closer = 0
    for seed in range(4):
        pair = layered(seed, num_layers=8, width=6, num_devices=4)
        rng = np.random.default_rng(seed)
        num_ops = pair[0].graph.num_ops
        placements = rng.integers(0, 4, (60, num_ops))
        priorities = np.array([rng.permutation(num_ops) for _ in range(60)])
        simulated = np.log(CompiledScorer(*pair).score(placements, priorities))
        errors = [
            np.abs(np.log(t.score(placements, priorities)) - simulated).mean()
            for t in timelines_of(pair)
        ]
        closer += errors[0] < errors[1]
    assert closer == 4
