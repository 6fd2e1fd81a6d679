import dataclasses

import numpy as np
import pytest

from doppler.core.costs import make_costs
from doppler.core.errors import CapacityError, ConfigError
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.problem import Objective, Problem
from doppler.core.runtime import INFEASIBLE_NS
from doppler.planners import guided as guided_planner
from doppler.planners import predicted_walk
from doppler.planners.base import Budget
from doppler.planners.guided import GuidedPlanner
from doppler.planners.list_schedule import make_list_scheduler
from doppler.planners.predicted import policy_timeline
from doppler.planners.predicted_walk import PredictedSearch, PredictedSettings
from doppler.policies.build import build_assignment
from doppler.policies.config import PolicyConfig
from doppler.policies.dual import DualPolicy, policy_inputs
from doppler.policies.sampling import SampleMode, plan_arrays
from simulator.scorer import CompiledScorer
from tests.policies.problems import cluster, layered

TINY = PolicyConfig(hidden=8, rank=4, rounds=1, head_hidden=8, summary=2)
QUICK = PredictedSettings(candidates=4, chains=4, fewest_steps=60, steps=60)


def predictor_of(pair):
    inputs = policy_inputs(build_assignment(*pair), TINY)
    return policy_timeline(inputs, make_list_scheduler(*pair))


def chain(num_ops, num_devices, seed):
    """Ops in a row: the timeline has no choice that the runtime could make otherwise."""
    rng = np.random.default_rng(seed)
    ops = tuple(
        Op(kind="k", name=f"o{i}", outputs=(int(rng.integers(1, 999)),)) for i in range(num_ops)
    )
    edges = tuple(Edge(i, 0, i + 1) for i in range(num_ops - 1))
    problem = Problem(
        graph=DataflowGraph(name="chain", ops=ops, edges=edges), cluster=cluster(num_devices)
    )
    times = rng.integers(20, 500, (num_ops, num_devices))
    return problem, make_costs(problem, tuple(tuple(map(int, row)) for row in times))


@pytest.mark.parametrize("seed", range(3))
def test_a_row_of_ops_is_predicted_as_it_is_simulated(seed):
    pair = chain(12, 3, seed)
    rng = np.random.default_rng(seed)
    placements, priorities = rng.integers(0, 3, (20, 12)), rng.integers(1, 99, (20, 12))
    simulated = CompiledScorer(*pair).score(placements, priorities)
    # Transfers of the simulator take whole nanoseconds, those of the timeline do not.
    assert np.abs(predictor_of(pair).score(placements, priorities) - simulated).max() <= 12


@pytest.mark.parametrize("seed", range(3))
def test_a_plan_of_an_episode_is_predicted_to_take_the_span_of_the_episode(seed):
    pair = layered(seed, num_layers=6, width=5)
    policy = DualPolicy(TINY, seed=seed)
    inputs = policy_inputs(build_assignment(*pair), TINY)
    rollouts = policy.sample(inputs, 8, np.random.default_rng(seed), mode=SampleMode.sample)
    predictor = policy_timeline(inputs, make_list_scheduler(*pair))
    found, starts = predictor.starts(*plan_arrays(inputs.assignment, rollouts))
    assert found.tolist() == np.rint(rollouts.spans * inputs.assignment.unit_ns).tolist()
    assert len(set(found.tolist())) > 1
    assert (starts.max(axis=1) < found).all()
    assert predictor.num_calls == 8


def test_priorities_by_predicted_start_are_a_legal_order_of_the_starts():
    pair = layered(3, num_layers=6, width=5)
    predictor = predictor_of(pair)
    rng = np.random.default_rng(0)
    placements = rng.integers(0, 3, (6, 30))
    priorities = np.array([rng.permutation(30) for _ in range(6)])
    _, starts = predictor.starts(placements, priorities)
    ordered = predictor.in_order_of_start(placements, priorities)
    for row in range(6):
        assert sorted(ordered[row].tolist()) == list(range(1, 31))
        by_priority = np.argsort(-ordered[row])
        assert (np.diff(starts[row, by_priority]) >= 0).all()
        for edge in pair[0].graph.edges:
            if edge.distance == 0:
                assert ordered[row, edge.src] > ordered[row, edge.dst]
    assert not (ordered == priorities).all()


def guided(pair, calls, predicted, seed=0, scorer=None):
    scorer = scorer or CompiledScorer(*pair)
    planner = GuidedPlanner(policy=DualPolicy(TINY, seed=0), predicted=predicted)
    plan = planner(pair[0], scorer, Budget(calls), np.random.default_rng(seed))
    assert scorer.num_calls <= calls
    return plan, int(CompiledScorer(*pair).score_plans([plan])[0])


def test_predictions_lead_to_shorter_plans_at_equal_simulations():
    pairs = [layered(seed, num_layers=8, width=6, num_devices=4) for seed in range(4)]
    simulated = sum(guided(pair, 40, None)[1] for pair in pairs)
    predicted = sum(guided(pair, 40, QUICK)[1] for pair in pairs)
    assert predicted < simulated


def test_more_candidates_alone_help():
    pairs = [layered(seed, num_layers=8, width=6, num_devices=4) for seed in range(4)]
    values = [
        sum(
            guided(
                pair,
                16,
                dataclasses.replace(QUICK, draw_share=1.0, polish_share=0.0, candidates=count),
            )[1]
            for pair in pairs
        )
        for count in (1, 16)
    ]
    assert values[1] < values[0]


def test_walks_by_prediction_help():
    pairs = [layered(seed, num_layers=8, width=6, num_devices=4) for seed in range(4)]
    few = dataclasses.replace(QUICK, draw_share=0.3, polish_share=0.0, candidates=1)
    values = [
        sum(
            guided(pair, 40, dataclasses.replace(few, fewest_steps=steps, steps=steps))[1]
            for pair in pairs
        )
        for steps in (1, 200)
    ]
    assert values[1] < values[0]


def test_of_a_period_nothing_is_predicted():
    problem, costs = layered(2, num_layers=4, width=3)
    pair = dataclasses.replace(problem, objective=Objective.period), costs
    assert guided(pair, 30, QUICK)[0] == guided(pair, 30, None)[0]
    assert guided((problem, costs), 30, QUICK)[0] != guided((problem, costs), 30, None)[0]


def test_it_ends_where_walks_lead_nowhere_new():
    pair = chain(2, 2, 0)
    best = min(
        int(value)
        for value in CompiledScorer(*pair).score(
            np.array([[a, b] for a in range(2) for b in range(2)]), np.tile([2, 1], (4, 1))
        )
    )
    assert guided(pair, 300, QUICK)[1] == best


@pytest.mark.parametrize(
    ("num_ops", "num_devices", "most"),
    [(2, 1, 64 * 2), (3, 2, 64 * (3 * 2 + 3)), (60, 4, PredictedSettings().steps)],
)
def test_a_walk_is_no_longer_than_its_choices_are_many(monkeypatch, num_ops, num_devices, most):
    taken, run = [], predicted_walk.Walk.run

    def recorded(self, steps, hot, cold):
        taken.append(steps)
        run(self, steps, hot, cold)

    monkeypatch.setattr(predicted_walk.Walk, "run", recorded)
    always = PredictedSettings(fewest_steps=PredictedSettings().steps, polish_share=0.0)
    guided(chain(num_ops, num_devices, 0), 20, always)
    assert taken
    assert max(taken) == most


class Misleading:
    """Predicts long plans to be short."""

    def __init__(self, lists):
        self.problem, self.costs, self.num_calls = lists.problem, lists.costs, 0
        self.scorer = CompiledScorer(lists.problem, lists.costs)

    def score(self, placements_BV, priorities_BV, bounds_B=None):
        return 10**12 // self.scorer.score(placements_BV, priorities_BV)

    def in_order_of_start(self, placements_BV, priorities_BV):
        return priorities_BV


def test_where_predictions_mislead_the_simulator_judges_steps(monkeypatch):
    for name in ("policy_timeline", "sent_timeline"):
        monkeypatch.setattr(guided_planner, name, lambda inputs, lists: Misleading(lists))
    pairs = [layered(seed, num_layers=8, width=6, num_devices=4) for seed in range(4)]
    settings = dataclasses.replace(QUICK, draw_share=0.1, polish_share=0.0)
    values = [
        sum(
            guided(pair, 120, dataclasses.replace(settings, patience=patience))[1] for pair in pairs
        )
        for patience in (1, 1000)
    ]
    assert values[0] < values[1]


def test_few_guides_and_plans_are_in_memory_at_once(monkeypatch):
    decoded, pools = [], []
    decode, take = PredictedSearch._decode, PredictedSearch._take

    def counted(self, guides):
        decoded.append(len(guides))
        return decode(self, guides)

    def kept(self, *plans):
        take(self, *plans)
        pools.append([value for value, *_ in self._pool])

    monkeypatch.setattr(PredictedSearch, "_decode", counted)
    monkeypatch.setattr(PredictedSearch, "_take", kept)
    monkeypatch.setattr(predicted_walk, "MOST_KEPT", 20)
    guided(layered(0, num_layers=5, width=4), 200, dataclasses.replace(QUICK, draw_share=0.5))
    assert decoded == [2, *[64] * 6, 8]
    assert max(map(len, pools)) == 20
    assert pools[-1] == sorted(pools[-1])
    assert pools[-1][0] == min(min(pool) for pool in pools)


class FullMemory(CompiledScorer):
    """No plan fits."""

    def score(self, placements_BV, priorities_BV, bounds_B=None):
        return np.full_like(super().score(placements_BV, priorities_BV, bounds_B), INFEASIBLE_NS)


def test_where_no_guide_fits_the_rest_of_the_budget_goes_on_with_guides():
    pair = layered(1, num_layers=4, width=3)
    scorer = FullMemory(*pair)
    with pytest.raises(CapacityError, match="guided"):
        guided(pair, 40, QUICK, scorer=scorer)
    assert scorer.num_calls == 36  # all but what annealing would have had


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fewest_steps": 0}, "fewest_steps is at least 1"),
        ({"patience": 0}, "patience is at least 1"),
        ({"fewest_steps": 20, "steps": 19}, "19 and 20"),
        ({"draw_share": 1.1}, "draw_share lies in"),
        ({"draw_share": 0.6, "polish_share": 0.5}, "0.6 and 0.5"),
        ({"hot": 0.1, "cold": 0.2}, "do not rise"),
        ({"spread": -1.0}, "spread is at least 0"),
    ],
)
def test_settings_out_of_range_are_refused(change, said):
    with pytest.raises(ConfigError, match=said):
        PredictedSettings(**change)
