"""Discount, schedules and time of a stage do what they say."""

import numpy as np
import pytest
import torch

from doppler.core.errors import ConfigError
from doppler.policies.sampling import plan_arrays
from doppler.training.config import PAPER, LinearSchedule, ReinforceConfig, Schedule, Stage
from doppler.training.learner import run_stage
from doppler.training.reinforce import Lesson, reinforce, study
from tests.policies.problems import six_ops
from tests.training.test_training import make_evaluate, make_learner


def test_a_linear_schedule_is_half_way_in_the_middle():
    schedule = LinearSchedule(1e-4, 1e-7)
    assert schedule.at(0.0) == 1e-4
    assert schedule.at(0.5) == pytest.approx(0.5005e-4)
    assert schedule.at(1.0) == pytest.approx(1e-7)
    assert Schedule(1e-4, 1e-6).at(0.5) == pytest.approx(1e-5)


def test_a_discount_weighs_each_decision_by_how_many_follow_it():
    """The loss by hand: six decisions, the last one counts in full, the first gamma^5."""
    pair, gamma = six_ops(), 0.5
    losses = {}
    for value in (1.0, gamma):
        learner = make_learner(pair)
        lesson = Lesson(
            inputs=learner.inputs,
            evaluate=make_evaluate(pair),
            elites=learner.elites,
            reference_ns=400,
        )
        config = ReinforceConfig(batch=4, gamma=value, elite_batch=0)
        losses[value] = study(learner.policy, lesson, config, 0.0, learner.rng)
    found = losses[gamma]
    later = torch.tensor([gamma**k for k in (5, 4, 3, 2, 1, 0)], dtype=torch.float64)
    decisions, advantages = found.decisions, torch.from_numpy(found.batch.advantages_B)
    choices = (torch.from_numpy(found.batch.rollouts.masks).sum(dim=2) > 1).sum(dim=1)
    select = (later * decisions.select).sum(dim=1) / 6
    place = (later * decisions.place).sum(dim=1) / choices
    entropy = decisions.select_entropy.mean(dim=1) + decisions.place_entropy.sum(dim=1) / choices
    wanted = -(advantages * (select + place)).mean() - 1e-2 * entropy.mean()
    assert found.loss.item() == pytest.approx(wanted.item())
    assert found.loss.item() != pytest.approx(losses[1.0].loss.item())


def test_the_papers_settings_train():
    pair, records = six_ops(), []
    learner = make_learner(pair)
    reinforce(
        learner,
        make_evaluate(pair),
        PAPER,
        20,
        stage=Stage.simulation,
        reference_ns=400,
        on_record=records.append,
    )
    assert len(records) == 10
    assert records[0].learning_rate == 1e-4
    assert records[-1].learning_rate == pytest.approx(1e-7)
    rollouts = learner.policy.sample(learner.inputs, 1, np.random.default_rng(0))
    plan_arrays(learner.inputs.assignment, rollouts)


@pytest.mark.parametrize("gamma", [0.0, 1.01, float("nan")])
def test_a_discount_is_above_zero_and_at_most_one(gamma):
    with pytest.raises(ConfigError, match="gamma is above 0 and at most 1"):
        ReinforceConfig(gamma=gamma)


def test_time_ends_a_stage_and_moves_its_schedules():
    learner, seen = make_learner(six_ops()), []
    passed = iter((0.0, 0.25, 0.5, 1.0))

    def update():
        seen.append(learner.progress.fraction)
        learner.progress.update += 1

    run_stage(learner, Stage.simulation, 1000, update, spent=lambda: next(passed))
    assert seen == [0.0, 0.25, 0.5]
    assert learner.progress.is_finished
    run_stage(learner, Stage.simulation, 2, update)  # and the next stage begins anew
    assert seen[3:] == [0.0, 1.0]
