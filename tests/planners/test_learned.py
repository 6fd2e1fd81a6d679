from dataclasses import replace

import numpy as np
import pytest

from doppler.planners import portfolio
from doppler.planners.base import Budget
from doppler.planners.conformance import check_planner
from doppler.planners.learned import TUNED, LearnedPlanner
from doppler.planners.learned_run import AnytimeEvaluator
from doppler.planners.registry import get_planner
from doppler.policies.ablations import new_policy
from doppler.policies.config import Learned, PolicyConfig
from doppler.training.config import (
    ImitationConfig,
    LearnedMode,
    ReinforceConfig,
    Stage,
    Start,
    TrainingConfig,
)
from tests.planners.slow_scorer import SlowScorer
from tests.policies.problems import layered

QUICK = TrainingConfig(
    imitation=ImitationConfig(num_updates=2, num_elite_updates=2),
    reinforce=ReinforceConfig(batch=4),
)
TINY = PolicyConfig(hidden=8, rank=4, rounds=1, head_hidden=8, summary=2)


def planner(mode, start=Start.scratch):
    return LearnedPlanner(mode=mode, start=start, policy_config=TINY, training=QUICK)


@pytest.mark.parametrize("mode", [mode for mode in LearnedMode if mode is not LearnedMode.greedy])
def test_every_mode_passes_the_conformance_suite(mode):
    def fresh(problem, scorer, budget, rng):
        return planner(mode)(problem, scorer, budget, rng)

    check_planner(fresh, SlowScorer)


def test_greedy_scores_one_plan_and_the_pretrained_pair_is_deterministic():
    pair = layered(4, groups=1)
    plans = []
    for seed in (0, 1):
        scorer = SlowScorer(*pair)
        greedy = planner(LearnedMode.greedy, Start.pretrained)
        plans.append(greedy(pair[0], scorer, Budget(50), np.random.default_rng(seed)))
        assert scorer.num_calls == 1
    assert plans[0].placement == plans[1].placement
    assert plans[0].priority == plans[1].priority


def test_sampling_spends_the_budget_and_never_ends_worse_than_greedy():
    pair = layered(5)
    values = {}
    for mode, calls in ((LearnedMode.greedy, 1), (LearnedMode.sample, 70)):
        scorer = SlowScorer(*pair)
        plan = planner(mode, Start.pretrained)(
            pair[0], scorer, Budget(calls), np.random.default_rng(0)
        )
        assert scorer.num_calls == calls
        values[mode] = int(scorer.score([plan.placement], [plan.priority])[0])
    assert values[LearnedMode.sample] <= values[LearnedMode.greedy]


def test_progress_tells_falling_values_and_their_gap_to_the_bound():
    pair = layered(6)
    seen = []
    learned = planner(LearnedMode.polish)
    learned.on_progress = seen.append
    scorer = SlowScorer(*pair)
    plan = learned(pair[0], scorer, Budget(120), np.random.default_rng(2))
    values = [progress.best_ns for progress in seen]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == len(values)
    (best,) = scorer.score([plan.placement], [plan.priority])
    assert values[-1] == best
    bounds = {round(p.best_ns / (1.0 + p.gap)) for p in seen}
    assert len(bounds) == 1
    assert bounds.pop() <= best
    counts = [progress.simulations for progress in seen]
    assert counts == sorted(counts)
    assert counts[-1] <= 120


@pytest.mark.parametrize("mode", list(LearnedMode))
def test_a_deadline_in_the_past_still_gives_the_greedy_plan(mode):
    pair = layered(7)
    learned = planner(mode)
    learned.seconds = 0.0
    scorer = SlowScorer(*pair)
    plan = learned(pair[0], scorer, Budget(10**6), np.random.default_rng(0))
    assert plan.source == "learned"
    assert scorer.num_calls == 1


def test_a_share_of_the_time_left_is_worth_calls_at_the_rate_so_far():
    pair = layered(8)
    now = [100.0]
    scorer = SlowScorer(*pair)
    evaluator = AnytimeEvaluator(
        pair[0], scorer, Budget(1000), "x", seconds=10.0, clock=lambda: now[0]
    )
    scorer.num_calls, now[0] = 40, 102.0  # 20 plans a second; 8 seconds are left
    assert evaluator.calls_within(0.5) == 80
    assert not evaluator.is_over
    now[0] = 110.0
    assert evaluator.is_over
    scorer.num_calls, now[0] = 990, 104.0  # the budget of plans ends first
    assert evaluator.calls_within(1.0) == 10


def test_by_name_it_starts_from_the_pretrained_pair():
    pair = layered(4)
    plans = [
        make(pair[0], SlowScorer(*pair), Budget(30), np.random.default_rng(0))
        for make in (get_planner("learned"), LearnedPlanner(start=Start.pretrained))
    ]
    assert plans[0] == plans[1]
    scratch = LearnedPlanner(mode=LearnedMode.greedy)
    pretrained = LearnedPlanner(mode=LearnedMode.greedy, start=Start.pretrained)
    for planner_ in (scratch, pretrained):
        planner_(pair[0], SlowScorer(*pair), Budget(1), np.random.default_rng(0))
    states = [planner_.policy.state_dict() for planner_ in (scratch, pretrained)]
    assert any((states[0][name] != states[1][name]).any() for name in states[0])


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_polish_takes_no_more_episodes_than_its_settings_allow(share):
    # 160 episodes of a large budget where stage II has a share, none where it has not
    pair = layered(5)
    updates = []
    learned = LearnedPlanner(start=Start.pretrained, training=replace(TUNED, learn_share=share))
    learned.on_record = updates.append
    learned(pair[0], SlowScorer(*pair), Budget(900), np.random.default_rng(0))
    learned_from = [record for record in updates if record.stage is Stage.simulation]
    assert len(learned_from) == (160 // 16 if share else 0)
    assert len(updates) == len(learned_from) + (ImitationConfig().num_elite_updates if share else 0)


def test_the_search_of_polish_starts_from_every_plan_of_the_rules(monkeypatch):
    # the policies' elites may be better than all of them, and never take their places
    searches, rules = [], []
    search, rule_plans = portfolio.search, portfolio.rule_plans

    def note_search(problem, scorer, budget, rng, **settings):
        searches.append(settings["seeds"])
        return search(problem, scorer, budget, rng, **settings)

    def note_rules(*arguments):
        rules.extend(rule_plans(*arguments))
        return tuple(rules)

    monkeypatch.setattr(portfolio, "search", note_search)
    monkeypatch.setattr(portfolio, "rule_plans", note_rules)
    pair = layered(5)
    learned = LearnedPlanner(start=Start.pretrained)
    learned(pair[0], SlowScorer(*pair), Budget(400), np.random.default_rng(0))
    (seeds,) = searches
    assert len(rules) == len(portfolio.RULES)
    assert set(rules) <= set(seeds)
    assert len(seeds) == len(rules) + TUNED.num_seeds


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_guides_spend_their_share_and_their_best_plan_is_kept(share):
    # `before guide` is the greedy episode: search_share and learn_share are 0, 100 calls
    pair = layered(5)
    training = TrainingConfig(search_share=0.0, learn_share=0.0, guide_share=share)
    learned = LearnedPlanner(start=Start.pretrained, training=training)
    scorer = SlowScorer(*pair)
    learned(pair[0], scorer, Budget(100), np.random.default_rng(0))
    values = learned.values_ns
    assert scorer.num_calls <= 100
    guided = learned.learner.elites.elites[0].value_ns
    assert values["before learn"] <= values["before guide"]
    if share:
        assert values["before learn"] < values["before guide"]
        assert guided <= values["before learn"]
    else:
        assert values["before learn"] == values["before guide"]


def test_ablations_have_no_guides(monkeypatch):
    def refuse(*_):
        raise AssertionError("an ablation keeps to what it has learned")

    monkeypatch.setattr("doppler.planners.learned.explore", refuse)
    pair = layered(5)
    config = replace(TINY, learned=Learned.place_only)
    training = replace(QUICK, guide_share=0.5)
    policy = new_policy(config, seed=0)
    learned = LearnedPlanner(policy=policy, training=training)
    learned(pair[0], SlowScorer(*pair), Budget(60), np.random.default_rng(0))


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_what_the_last_search_finds_returns_to_policies_that_learn(monkeypatch, share):
    pair = layered(5)
    ends = []
    polish = LearnedPlanner._polish

    def noted(planner_, run):
        polish(planner_, run)
        policy = planner_.policy.state_dict()
        ends.append({name: value.clone() for name, value in policy.items()})

    monkeypatch.setattr(LearnedPlanner, "_polish", noted)
    learned = LearnedPlanner(
        policy=new_policy(TINY, seed=0),
        training=replace(QUICK, learn_share=share, imitation=ImitationConfig(num_elite_updates=9)),
    )
    scorer = SlowScorer(*pair)
    plan = learned(pair[0], scorer, Budget(150), np.random.default_rng(0))
    (value,) = scorer.score([plan.placement], [plan.priority])
    learner = learned.learner
    assert learner.elites.best_ns == value  # the search's plan is the best elite
    (before,) = ends
    after = {name: value.clone() for name, value in learner.policy.state_dict().items()}
    same = all((before[name] == after[name]).all() for name in before)
    assert same == (share == 0.0)
    if share:  # and more likely than it was
        orders, devices = learner.elites.episodes(learner.elites.elites[:1])
        likely = []
        for weights in (before, after):
            learner.policy.load_state_dict(weights)
            rows = learner.policy.replay(learner.inputs, orders, devices)
            decisions = learner.policy.decide(
                learner.inputs, learner.policy.encode(learner.inputs), rows
            )
            likely.append((decisions.place.sum() + decisions.select.sum()).item())
        assert likely[1] > likely[0]
