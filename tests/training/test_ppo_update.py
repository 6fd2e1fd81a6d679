"""PPO: ratio 1 on fresh samples, REINFORCE's gradient there, and a clip that acts."""

import numpy as np
import pytest
import torch

from doppler.core.errors import ConfigError
from doppler.policies.config import PolicyConfig
from doppler.training.config import PPOConfig, ReinforceConfig, Schedule, Stage
from doppler.training.reinforce import Lesson, clipped_gain, ppo_loss, reinforce, study
from tests.policies.problems import layered, six_ops
from tests.training.test_training import BLANK, make_evaluate, make_learner, mean_value

FLAT = {"learning_rate": Schedule(1e-2, 1e-2), "temperature": Schedule(1.0, 1.0)}


def studied(config, seed=0):
    """A learner with random weights, and one batch of its own, elites among it."""
    pair = layered(seed)
    learner, evaluate = (
        make_learner(pair, PolicyConfig(hidden=8, head_hidden=8)),
        make_evaluate(pair),
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in learner.policy.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    lesson = Lesson(
        inputs=learner.inputs, evaluate=evaluate, elites=learner.elites, reference_ns=1000
    )
    study(learner.policy, lesson, config, 0.0, learner.rng)  # fills the elites
    return learner, study(learner.policy, lesson, config, 0.0, learner.rng)


def gradients(policy, loss):
    policy.zero_grad()
    loss.backward(retain_graph=True)
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


def test_on_fresh_samples_the_ratio_is_one_and_the_gradient_that_of_reinforce():
    config = PPOConfig(batch=6, **FLAT)
    learner, found = studied(config)
    policy = learner.policy
    now = policy.decide(learner.inputs, policy.encode(learner.inputs), found.batch.rollouts)
    for ours, theirs in ((now.select, found.decisions.select), (now.place, found.decisions.place)):
        ratio = clipped_gain(ours, theirs, torch.ones(ours.shape), config.clip)
        assert torch.allclose(ratio, torch.ones_like(ratio), atol=1e-6)
    plain = gradients(policy, found.loss)
    ppo = gradients(policy, ppo_loss(policy, learner.inputs, found.batch, found.decisions, config))
    assert plain.keys() == ppo.keys()
    assert sum(float(g.abs().sum()) for g in plain.values()) > 1.0
    for name, gradient in plain.items():
        assert torch.allclose(gradient, ppo[name], rtol=1e-3, atol=1e-5), name


def test_clipping_by_hand():
    # min(r A, clip(r) A) / A: r above 1.2 counts as 1.2 for A > 0 and as itself for A < 0; r below
    # 0.8 as itself for A > 0 and as 0.8 for A < 0. Where it is clipped there is no gradient.
    ratios = torch.tensor([[1.5, 1.1, 0.5], [1.5, 0.9, 0.5]], dtype=torch.float64)
    now = ratios.log().requires_grad_()
    advantages = torch.tensor([[2.0], [-3.0]], dtype=torch.float64)
    found = clipped_gain(now, torch.zeros(2, 3, dtype=torch.float64), advantages, 0.2)
    assert found.detach().numpy() == pytest.approx(np.array([[1.2, 1.1, 0.5], [1.5, 0.9, 0.8]]))
    literal = torch.minimum(ratios * advantages, ratios.clamp(0.8, 1.2) * advantages)
    assert torch.allclose(found.detach() * advantages, literal)
    found.sum().backward()
    assert now.grad.numpy() == pytest.approx(np.array([[0.0, 1.1, 0.5], [1.5, 0.9, 0.0]]))


def test_with_a_narrow_clip_further_epochs_stop_moving_the_policy():
    moved = []
    for clip in (0.01, 0.9):
        config = PPOConfig(
            batch=6, clip=clip, elite_batch=0, entropy_weight=Schedule(1e-12, 1e-12), **FLAT
        )
        learner, found = studied(config)
        policy, inputs = learner.policy, learner.inputs
        learner.set_learning_rate(1e-2)
        learner.step(found.loss, 1.0)
        for _ in range(12):
            learner.step(ppo_loss(policy, inputs, found.batch, found.decisions, config), 1.0)
        now = policy.decide(inputs, policy.encode(inputs), found.batch.rollouts)
        moved.append(float((now.place - found.decisions.place).abs().mean().detach()))
    assert moved[0] < 0.7 * moved[1]


def test_ppo_takes_its_epochs_and_beats_random_placement():
    pair = six_ops()
    learner, evaluate = make_learner(pair, BLANK), make_evaluate(pair)
    before = mean_value(learner, evaluate)
    config = PPOConfig(
        batch=16,
        epochs=3,
        learning_rate=Schedule(1e-2, 3e-3),
        temperature=Schedule(1.0, 1.0),
        elite_batch=0,
    )
    reinforce(learner, evaluate, config, 16 * 25, stage=Stage.simulation, reference_ns=int(before))
    steps = {int(state["step"]) for state in learner.optimizer.state.values()}
    assert steps == {3 * 25}
    assert mean_value(learner, evaluate) - 290 < 0.4 * (before - 290)


def test_settings_out_of_range_are_refused():
    with pytest.raises(ConfigError, match=r"clip lies between 0 and 1, and it is 1\.0"):
        PPOConfig(clip=1.0)
    with pytest.raises(ConfigError, match="epochs is at least 1, and it is 0"):
        PPOConfig(epochs=0)
    with pytest.raises(ConfigError, match="batch is at least 2"):
        PPOConfig(batch=1)
    assert isinstance(PPOConfig(), ReinforceConfig)
