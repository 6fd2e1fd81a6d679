import dataclasses

import numpy as np
import pytest
import torch

from doppler.core.errors import ConfigError, FormatError
from doppler.policies.build import build_assignment
from doppler.policies.config import PolicyConfig
from doppler.policies.dual import policy_inputs
from doppler.training.config import Schedule
from doppler.training.elites import Elite, EliteBuffer
from doppler.training.pretraining import (
    PretrainingConfig,
    load_pretraining,
    new_pretraining,
    pretraining_reinforce,
    save_pretraining,
)
from doppler.training.reinforce import Lesson, elite_gains
from tests.planners.slow_scorer import SlowScorer
from tests.policies.problems import layered

TINY = PolicyConfig(
    hidden=8, rank=4, rounds=1, head_hidden=8, summary=2, select_prior=0.01, place_prior=0.01
)


def settings(**changes):
    reinforce = dataclasses.replace(
        pretraining_reinforce(), batch=8, learning_rate=Schedule(2e-2, 5e-3)
    )
    values = {"epochs": 4, "updates": 6, "lessons_per_update": 2, "reinforce": reinforce}
    return PretrainingConfig(**{**values, **changes})


def lesson(policy, seed):
    pair = layered(seed, num_layers=3, width=3)
    assignment = build_assignment(*pair)
    scorer = SlowScorer(*pair)
    return Lesson(
        inputs=policy_inputs(assignment, policy.config),
        evaluate=lambda *plans: np.asarray(scorer.score(*plans), dtype=np.int64),
        elites=EliteBuffer(assignment, 4),
        reference_ns=int(scorer.score([[0] * 9], [list(range(9, 0, -1))])[0]),
    )


def curriculum(policy, epoch, fraction, rng):
    """Two problems that every epoch has again; elites start empty."""
    return [lesson(policy, seed) for seed in (0, 1)]


def test_one_policy_gets_better_on_all_problems_of_the_curriculum():
    state = new_pretraining(TINY, settings(epochs=8))
    records = [state.run_epoch(curriculum) for _ in range(8)]
    assert state.is_finished
    assert records[-1].mean_ratio < records[0].mean_ratio - 0.03
    assert records[-1].learning_rate < records[0].learning_rate
    assert records[-1].episodes == 8 * 6 * 2 * 8


def test_stopped_between_epochs_and_resumed_gives_the_same_weights(tmp_path):
    whole = new_pretraining(TINY, settings())
    for _ in range(4):
        whole.run_epoch(curriculum)
    first = new_pretraining(TINY, settings())
    for _ in range(2):
        first.run_epoch(curriculum)
    save_pretraining(first, tmp_path / "state", {"note": 1})
    second, extra = load_pretraining(tmp_path / "state", settings())
    for _ in range(2):
        second.run_epoch(curriculum)
    assert extra == {"note": 1}
    assert second.history == whole.history
    for ours, theirs in ((second.policy, whole.policy), (second.average, whole.average)):
        for name, value in theirs.state_dict().items():
            assert torch.equal(ours.state_dict()[name], value), name


def test_the_average_follows_the_weights_by_one_part_in_a_hundred_per_step():
    state = new_pretraining(TINY, settings(updates=1))
    before = state.policy.place.output.weight.detach().clone()
    state.run_epoch(curriculum)
    after = state.policy.place.output.weight.detach()
    assert not torch.equal(before, after)
    mean = state.average.place.output.weight
    assert torch.allclose(mean, before + 0.01 * (after - before))


def test_a_training_does_not_go_on_with_other_settings(tmp_path):
    state = new_pretraining(TINY, settings())
    save_pretraining(state, tmp_path / "state", {})
    with pytest.raises(FormatError, match="goes on with the settings that it began with"):
        load_pretraining(tmp_path / "state", settings(updates=7))
    with pytest.raises(ConfigError, match="epochs is at least 1, and it is 0"):
        settings(epochs=0)


def test_an_elite_teaches_as_much_as_it_is_better_than_the_samples():
    elites = [
        Elite(value_ns=value, order=np.zeros(1, np.int64), devices=np.zeros(1, np.int64))
        for value in (50, 95, 100, 120)
    ]
    # Samples 90 and 130: mean 110 of reference 100, that is 1.1; distances 0.6, 0.15, 0.1, -0.1.
    gains = elite_gains(np.array([90, 130]), elites, 100, 0.2)
    assert gains == pytest.approx([1.0, 0.75, 0.5, 0.0])
    assert elite_gains(np.array([90]), elites, 100, 0.0).tolist() == [1.0] * 4
