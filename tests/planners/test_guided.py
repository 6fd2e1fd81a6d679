import dataclasses

import numpy as np
import pytest
import torch

from doppler.core.errors import ConfigError
from doppler.planners.base import Budget
from doppler.planners.guided import GuidedPlanner
from doppler.planners.guides import GuideDecoder, GuidedSettings
from doppler.planners.learned import LearnedPlanner
from doppler.planners.list_schedule import make_list_scheduler
from doppler.planners.predicted_walk import PredictedSettings
from doppler.policies.build import build_assignment
from doppler.policies.config import PolicyConfig, PolicyKind
from doppler.policies.dual import DualPolicy, head_arrays, policy_inputs
from doppler.training.config import LearnedMode
from simulator.scorer import CompiledScorer
from tests.policies.problems import layered

TINY = PolicyConfig(hidden=8, rank=4, rounds=1, head_hidden=8, summary=2)


def value_of(pair, plan):
    return int(CompiledScorer(*pair).score_plans([plan])[0])


def run(pair, calls, seed=0, predicted=None, **settings):
    planner = GuidedPlanner(
        policy=DualPolicy(TINY, seed=0),
        settings=dataclasses.replace(GuidedSettings(), **settings),
        predicted=predicted,
    )
    scorer = CompiledScorer(*pair)
    plan = planner(pair[0], scorer, Budget(calls), np.random.default_rng(seed))
    assert scorer.num_calls <= calls
    return value_of(pair, plan)


@pytest.mark.parametrize("predicted", [None, PredictedSettings(fewest_steps=20, steps=20)])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_never_worse_than_the_policy_or_heft(seed, predicted):
    pair = layered(seed, num_layers=5, width=4)
    greedy = LearnedPlanner(mode=LearnedMode.greedy, policy=DualPolicy(TINY, seed=0))
    first = value_of(
        pair, greedy(pair[0], CompiledScorer(*pair), Budget(1), np.random.default_rng(0))
    )
    lists = make_list_scheduler(*pair)
    heft = lists.heft()
    (second,) = CompiledScorer(*pair).score(
        lists.mask.placement(heft.devices_U[None]), heft.priority_V[None]
    )
    assert run(pair, 1, seed, predicted) == first
    assert run(pair, 12, seed, predicted) <= min(first, second)


def test_policies_are_not_asked_where_all_guides_are_of_the_earliest_finish():
    pair = layered(2, num_layers=5, width=4)
    for predicted in (None, PredictedSettings(draw_share=1.0, polish_share=0.0)):
        values = [
            GuidedPlanner(
                policy=DualPolicy(TINY, seed=seed),
                settings=GuidedSettings(finish_share=1.0, draw_share=1.0, polish_share=0.0),
                predicted=predicted,
            )(pair[0], CompiledScorer(*pair), Budget(20), np.random.default_rng(0))
            for seed in (0, 1)
        ]
        assert values[0] == values[1]


def test_steps_find_what_draws_of_no_width_do_not():
    pair = layered(4, num_layers=6, width=5)
    still = {"order_noise": 0.0, "weight_noise": 0.0, "polish_share": 0.0, "finish_share": 0.0}
    drawn = run(pair, 60, draw_share=1.0, **still)
    walked = run(pair, 60, draw_share=0.1, **still)
    assert walked < drawn


def decoder_of(pair):
    policy = DualPolicy(TINY, seed=0)
    inputs = policy_inputs(build_assignment(*pair), TINY)
    with torch.no_grad():
        heads = head_arrays(policy.encode(inputs))
    return GuideDecoder(inputs, heads, make_list_scheduler(*pair)), inputs.assignment.meta


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_scores_of_shards_are_drawn_together_or_alone(share):
    decoder, meta = decoder_of(layered(3, num_layers=5, width=4))
    settings = GuidedSettings(shared_share=share)
    rng = np.random.default_rng(0)
    moved = decoder.drawn(decoder.policy, settings, rng).scores - decoder.policy.scores
    alone = moved[meta < 0]
    assert len(set(alone.round(9).tolist())) == len(alone) > 0
    for shards in (moved[meta == index] for index in range(meta.max() + 1)):
        assert len(shards) == 4
        assert len(set(shards.round(9).tolist())) == (1 if share else 4)


def test_deviations_of_scores_are_drawn_within_their_spread():
    decoder, _ = decoder_of(layered(3, num_layers=12, width=8))
    settings = GuidedSettings(order_noise=0.2, order_spread=1.5)
    rng = np.random.default_rng(0)
    spread = np.array(
        [
            (decoder.drawn(decoder.policy, settings, rng).scores - decoder.policy.scores).std()
            for _ in range(100)
        ]
    )
    assert 0.2 * np.exp(-1.8) < spread.min() < 0.2 * np.exp(-1.0)
    assert 0.2 * np.exp(1.0) < spread.max() < 0.2 * np.exp(1.8)


def test_free_wires_let_transfers_pass_each_other():
    decoder, _ = decoder_of(layered(0, num_layers=8, width=5))
    rng = np.random.default_rng(0)
    free = dataclasses.replace(decoder.policy, free_wires=True)
    plans = [decoder.decode(guide, rng) for guide in (decoder.policy, free, free)]
    assert (plans[0][0] != plans[1][0]).any()
    assert (plans[1][0] == plans[2][0]).all()
    settings = GuidedSettings(free_share=0.5)
    drawn = [decoder.drawn(decoder.policy, settings, rng).free_wires for _ in range(200)]
    assert 60 < sum(drawn) < 140


def test_policies_without_terms_are_guides_too():
    pair = layered(1, num_layers=4, width=3)
    policy = DualPolicy(dataclasses.replace(TINY, kind=PolicyKind.paper), seed=0)
    scorer = CompiledScorer(*pair)
    plan = GuidedPlanner(policy=policy)(pair[0], scorer, Budget(16), np.random.default_rng(0))
    assert value_of(pair, plan) > 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"finish_share": 1.5}, "finish_share lies in"),
        ({"free_share": -0.1}, "free_share lies in"),
        ({"draw_share": 0.8, "polish_share": 0.4}, "0.8 and 0.4"),
        ({"step_order": -1.0}, "step_order is at least 0"),
    ],
)
def test_settings_out_of_range_are_refused(change, said):
    with pytest.raises(ConfigError, match=said):
        GuidedSettings(**change)
