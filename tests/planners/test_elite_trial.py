"""Imitation on trial: policies whose episodes get worse by it go back; the budget holds."""

from dataclasses import replace

import numpy as np
import pytest

from doppler.planners import elite_trial
from doppler.planners.base import Budget
from doppler.planners.elite_trial import TRIAL_CALLS, spare_trial
from doppler.planners.learned import LearnedPlanner
from doppler.policies.ablations import new_policy
from doppler.policies.config import PolicyConfig
from doppler.training.config import ImitationConfig, ReinforceConfig, TrainingConfig
from tests.planners.slow_scorer import SlowScorer
from tests.policies.problems import layered

TINY = PolicyConfig(hidden=8, rank=4, rounds=1, head_hidden=8, summary=2)
QUICK = TrainingConfig(
    imitation=ImitationConfig(num_updates=2, num_elite_updates=5),
    reinforce=ReinforceConfig(batch=4),
    learn_share=0.1,
)


def weights(policy):
    return {name: value.tolist() for name, value in policy.state_dict().items()}


@pytest.mark.parametrize(("means", "stays"), [((300, 301), False), ((300, 300), True)])
def test_the_last_imitation_stays_only_if_episodes_are_no_worse(means, stays, monkeypatch):
    pair, left, before = layered(5), list(means), []
    learned = LearnedPlanner(policy=new_policy(TINY, seed=0), training=QUICK)

    def probe(run):
        before.append(weights(run.learner.policy))
        return left.pop(0)

    monkeypatch.setattr(elite_trial, "probe", probe)
    learned(pair[0], SlowScorer(*pair), Budget(250), np.random.default_rng(0))
    assert left == []
    assert before[0] != before[1]
    after = weights(learned.policy)
    assert after == (before[1] if stays else before[0])
    assert bool(learned.learner.optimizer.state) == stays  # nothing moves on by its momentum


def test_a_trial_is_paid_from_the_budget_and_only_where_there_is_enough(monkeypatch):
    pair, counts = layered(5), []
    probe = elite_trial.probe

    def counted(run):
        before = run.evaluator.simulations
        mean = probe(run)
        counts.append(run.evaluator.simulations - before)
        return mean

    monkeypatch.setattr(elite_trial, "probe", counted)
    for calls, share, wanted in ((250, 0.1, TRIAL_CALLS), (250, 0.0, 0), (60, 0.1, 0)):
        counts.clear()
        learned = LearnedPlanner(
            policy=new_policy(TINY, seed=0), training=replace(QUICK, learn_share=share)
        )
        scorer = SlowScorer(*pair)
        learned(pair[0], scorer, Budget(calls), np.random.default_rng(0))
        assert sum(counts) == wanted
        assert scorer.num_calls <= calls


def test_at_most_half_of_what_is_left_is_spared():
    assert spare_trial(2 * TRIAL_CALLS) == TRIAL_CALLS
    assert spare_trial(2 * TRIAL_CALLS - 1) == 0
