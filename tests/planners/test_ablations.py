"""Ablations of the learned planner conform; what is left out is left out."""

from functools import partial

import numpy as np
import pytest

from doppler.planners import ablations
from doppler.planners.ablations import VARIANTS
from doppler.planners.base import Budget
from doppler.planners.conformance import check_planner
from doppler.planners.learned import LearnedPlanner
from doppler.planners.registry import get_planner
from doppler.policies.ablations import new_policy
from doppler.policies.config import Learned, PolicyConfig
from doppler.policies.storage import load_policy, save_policy
from doppler.training.checkpoint import load_checkpoint, save_checkpoint
from doppler.training.config import (
    ImitationConfig,
    LearnedMode,
    ReinforceConfig,
    Stage,
    TrainingConfig,
)
from doppler.training.imitation import imitate
from simulator.scorer import CompiledScorer
from tests.planners.slow_scorer import SlowScorer
from tests.policies.problems import layered, six_ops

ABLATIONS = [learned for learned in Learned if learned is not Learned.both]
QUICK = TrainingConfig(
    imitation=ImitationConfig(num_updates=1, batch=2), reinforce=ReinforceConfig(batch=8)
)


def tiny(learned):
    return PolicyConfig(
        learned=learned, hidden=8, rank=4, rounds=1, head_hidden=8, summary=2, select_prior=1.0
    )


@pytest.mark.parametrize("learned", ABLATIONS)
def test_ablations_pass_the_conformance_suite(learned):
    def fresh(problem, scorer, budget, rng):
        planner = LearnedPlanner(mode=LearnedMode.tune, policy_config=tiny(learned), training=QUICK)
        return planner(problem, scorer, budget, rng)

    check_planner(fresh, SlowScorer)


@pytest.mark.parametrize("learned", ABLATIONS)
def test_registered_ablations_keep_to_the_budget_and_name_themselves(learned):
    pair = six_ops()
    scorer = CompiledScorer(*pair)
    name = f"learned_{learned.value}"
    plan = get_planner(name)(pair[0], scorer, Budget(60), np.random.default_rng(0))
    assert plan.source == name
    assert 1 < scorer.num_calls <= 60


@pytest.mark.parametrize("name", VARIANTS)
def test_columns_run_the_stages_that_they_name_and_search_only_if_they_say_so(name, monkeypatch):
    records, searches = [], []
    planner = partial(LearnedPlanner, on_record=records.append)
    monkeypatch.setattr(ablations, "LearnedPlanner", planner)
    monkeypatch.setattr(ablations, "ImitationConfig", partial(ImitationConfig, batch=2))
    search = "doppler.planners.learned_run.LearnedRun.search"
    monkeypatch.setattr(search, lambda *_: searches.append(name))
    pair = six_ops()
    scorer = CompiledScorer(*pair)
    VARIANTS[name](pair[0], scorer, Budget(160), np.random.default_rng(0))
    stages = {record.stage for record in records}
    assert (Stage.imitation in stages) == (not name.rpartition("stage_")[2].startswith("two"))
    assert (Stage.simulation in stages) == ("stage_one" not in name)
    assert bool(searches) == (name == "dual_search")
    assert scorer.num_calls <= 160


def orders_and_devices(learned):
    """Distinct (orders, placements) of 30 episodes of untrained policies on equal devices."""
    pair = layered(3, equal_devices=True)
    learner = LearnedPlanner(mode=LearnedMode.greedy, policy_config=tiny(learned), training=QUICK)
    learner(pair[0], CompiledScorer(*pair), Budget(1), np.random.default_rng(0))
    found = learner.policy.sample(learner.learner.inputs, 30, np.random.default_rng(1))
    orders = {tuple(row) for row in found.orders.tolist()}
    return len(orders), found.select_log_probs, found.place_log_probs


def test_only_what_learns_is_drawn():
    orders, select, place = orders_and_devices(Learned.select_only)
    assert orders > 1
    assert (place == 0.0).all()
    orders, select, place = orders_and_devices(Learned.place_only)
    assert orders == 1
    assert (select == 0.0).all()
    assert (place < 0.0).any()
    for learned in (Learned.joint, Learned.per_step):
        orders, select, place = orders_and_devices(learned)
        assert orders > 1
        assert (select < 0.0).any()
        assert (place < 0.0).any()


@pytest.mark.parametrize("learned", [Learned.joint, Learned.per_step])
def test_stored_ablations_come_back_as_what_they_are(learned, tmp_path):
    save_policy(new_policy(tiny(learned), seed=3), tmp_path / "policy")
    policy = load_policy(tmp_path / "policy")
    assert type(policy) is type(new_policy(tiny(learned), seed=0))
    pair = six_ops()
    planner = LearnedPlanner(mode=LearnedMode.tune, policy_config=tiny(learned), training=QUICK)
    planner(pair[0], CompiledScorer(*pair), Budget(20), np.random.default_rng(0))
    save_checkpoint(planner.learner, tmp_path / "checkpoint")
    again = load_checkpoint(tmp_path / "checkpoint", planner.learner.inputs.assignment, capacity=16)
    records = ([], [])
    for learner, seen in zip((planner.learner, again), records, strict=True):
        imitate(learner, ImitationConfig(num_updates=2, batch=2), seen.append)
    assert records[0] == records[1]
