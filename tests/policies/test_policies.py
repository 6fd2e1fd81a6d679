import dataclasses
import itertools

import numpy as np
import pytest
import torch

from doppler.core.errors import ConfigError
from doppler.policies import place_kernel
from doppler.policies.columns import DeviceColumn
from doppler.policies.config import Learned, PolicyConfig, PolicyKind
from doppler.policies.dual import DualPolicy, log_probs, policy_inputs
from doppler.policies.encoder import path_sums
from doppler.policies.features import graph_tensors
from doppler.policies.place import place_logits
from doppler.policies.place_kernel import compiled_logits
from doppler.policies.placed_means import placed_means
from doppler.policies.sampling import SampleMode, Temperature
from doppler.policies.sequence_softmax import sequence_softmax
from tests.policies.conformance import check_episodes, check_log_probs, check_policy
from tests.policies.problems import assignment_of, layered, six_ops

SMALL = PolicyConfig(hidden=8, rank=4, rounds=2, head_hidden=8, summary=3)


def randomised(config, seed=0):
    """A policy whose heads have something to say."""
    policy = DualPolicy(config, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return policy


@pytest.mark.parametrize("kind", list(PolicyKind))
def test_conformance(kind):
    config = PolicyConfig(kind=kind, hidden=8, rank=4, rounds=2, head_hidden=8, summary=3)
    check_policy(randomised(config))


@pytest.mark.parametrize("learned", [Learned.select_only, Learned.place_only])
def test_where_a_rule_takes_the_place_of_a_policy_the_other_one_learns_alone(learned):
    config = dataclasses.replace(SMALL, learned=learned)
    policy = randomised(config)
    inputs = policy_inputs(assignment_of(layered(3, num_devices=3)), config)
    rollouts = policy.sample(inputs, 5, np.random.default_rng(0))
    check_episodes(inputs.assignment, rollouts)
    check_log_probs(policy, inputs, rollouts)
    decisions = log_probs(policy.encode(inputs), rollouts)
    (decisions.select.sum() + decisions.place.sum()).backward()
    moved = {
        name.split(".")[0]
        for name, p in policy.named_parameters()
        if p.grad is not None and p.grad.abs().sum() > 0
    }
    if learned is Learned.select_only:
        assert moved == {"select"}
        assert (rollouts.place_log_probs == 0.0).all()
        assert (rollouts.masks.sum(axis=2) == 1).all()
    else:
        assert moved == {"place"}
        assert (rollouts.select_log_probs == 0.0).all()
        # The rule is the teacher's label at every step (here without ties).
        assert (rollouts.orders == rollouts.orders[0]).all()
        assert rollouts.teacher_select == pytest.approx(np.ones_like(rollouts.teacher_select))


def test_sampling_frequencies_are_the_softmax_probabilities():
    assignment = assignment_of(six_ops())
    policy = randomised(SMALL)
    inputs = policy_inputs(assignment, SMALL)
    count = 20_000
    rollouts = policy.sample(
        inputs, count, np.random.default_rng(0), temperature=Temperature(select=2.0, place=2.0)
    )
    seen = {}
    for row in range(count):
        key = (*rollouts.orders[row], *rollouts.devices[row])
        total = rollouts.select_log_probs[row].sum() + rollouts.place_log_probs[row].sum()
        number, _ = seen.get(key, (0, 0.0))
        seen[key] = (number + 1, np.exp(total))
    # 4 standard deviations of a binomial; rare episodes are left out.
    for number, probability in seen.values():
        expected = count * probability
        if expected > 20:
            assert abs(number - expected) < 4.5 * np.sqrt(expected)


def test_probabilities_of_all_episodes_sum_to_one():
    assignment = assignment_of(six_ops())
    policy = randomised(SMALL)
    inputs = policy_inputs(assignment, SMALL)
    orders = [
        order
        for order in itertools.permutations(range(6))
        if all(order.index(a) < order.index(b) for a, b in ((0, 2), (1, 3), (2, 4), (3, 4), (4, 5)))
    ]
    pairs = list(itertools.product(orders, itertools.product(range(2), repeat=6)))
    rollouts = policy.replay(
        inputs, np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])
    )
    totals = rollouts.select_log_probs.sum(axis=1) + rollouts.place_log_probs.sum(axis=1)
    assert np.exp(totals).sum() == pytest.approx(1.0, abs=1e-5)


def test_episodes_do_not_depend_on_threads_and_equal_seeds_give_equal_episodes():
    inputs = policy_inputs(assignment_of(layered(5)), SMALL)
    policy = randomised(SMALL)
    one, two, three = (
        policy.sample(inputs, 9, np.random.default_rng(3), threads=threads) for threads in (1, 2, 3)
    )
    assert (one.orders == two.orders).all()
    assert (two.orders == three.orders).all()
    assert (one.devices == three.devices).all()
    other = policy.sample(inputs, 9, np.random.default_rng(4))
    assert (one.devices != other.devices).any()


def test_greedy_takes_the_most_likely_choice_and_cold_samples_approach_it():
    inputs = policy_inputs(assignment_of(layered(6)), SMALL)
    policy = randomised(SMALL)
    greedy = policy.sample(inputs, 1, np.random.default_rng(0), mode=SampleMode.greedy)
    cold = Temperature(select=0.02, place=0.02)
    samples = policy.sample(inputs, 4, np.random.default_rng(0), temperature=cold)
    assert (samples.orders == greedy.orders).mean() > 0.8


@pytest.mark.parametrize("groups", [0, 2])
def test_a_greedy_episode_takes_the_largest_score_and_logit_of_every_step(groups):
    policy = randomised(SMALL)
    inputs = policy_inputs(assignment_of(layered(6, groups=groups)), SMALL)
    greedy = policy.sample(inputs, 2, np.random.default_rng(0), mode=SampleMode.greedy)
    assert not greedy.is_recorded
    replayed = policy.replay(inputs, greedy.orders, greedy.devices)
    encoded = policy.encode(inputs)
    scores = encoded.scores.detach().numpy()
    for step, op in enumerate(greedy.orders[0]):
        before = set(greedy.orders[0, :step].tolist())
        left = [v for v in np.flatnonzero(replayed.arrivals[0] <= step) if v not in before]
        assert scores[op] == max(scores[left])
    decisions = policy.decide(inputs, encoded, replayed)
    likeliest = decisions.place_logs.argmax(dim=1).numpy()
    assert (greedy.devices.ravel()[decisions.place_rows] == likeliest).all()
    assert (decisions.place_logs.exp().sum(dim=1) - 1.0).abs().max() < 1e-5
    with pytest.raises(ConfigError, match=r"recorded episodes, and these are greedy ones"):
        policy.decide(inputs, encoded, greedy)


def test_sequence_softmax_equals_the_plain_one_with_its_gradients():
    inputs = policy_inputs(assignment_of(layered(7)), SMALL)
    rollouts = randomised(SMALL).sample(inputs, 3, np.random.default_rng(0))
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(
        inputs.assignment.num_ops, dtype=torch.float64, generator=generator, requires_grad=True
    )
    weights = torch.rand(2, 3, inputs.assignment.num_ops, dtype=torch.float64, generator=generator)
    totals, entropies = sequence_softmax(scores, rollouts.orders, rollouts.arrivals, 0.7)
    (weights[0] * totals + weights[1] * entropies).sum().backward()
    fast, scores.grad = scores.grad, None
    plain_totals, plain_entropies = _plain_softmax(scores / 0.7, rollouts)
    (weights[0] * plain_totals + weights[1] * plain_entropies).sum().backward()
    assert torch.allclose(totals, plain_totals)
    assert torch.allclose(entropies, plain_entropies)
    assert torch.allclose(fast, scores.grad)


def _plain_softmax(logits, rollouts):
    batch, num_ops = rollouts.orders.shape
    totals, entropies = [], []
    for row in range(batch):
        left = set(range(num_ops))
        for step in range(num_ops):
            candidates = [op for op in sorted(left) if rollouts.arrivals[row, op] <= step]
            logs = torch.log_softmax(logits[candidates], dim=0)
            totals.append(torch.logsumexp(logits[candidates], dim=0))
            entropies.append(-(logs.exp() * logs).sum())
            left.remove(int(rollouts.orders[row, step]))
    return torch.stack(totals).view(batch, -1), torch.stack(entropies).view(batch, -1)


def test_path_sums_equal_the_walk_along_the_path():
    assignment = assignment_of(layered(8))
    graph = graph_tensors(assignment, PolicyKind.improved)
    values = torch.arange(float(assignment.num_ops))[:, None]
    sums = path_sums(values, graph.down_jumps)[:, 0]
    for op in range(assignment.num_ops):
        total, walk = 0.0, op
        while walk >= 0:
            total += walk
            walk = int(assignment.levels.next_down[walk])
        assert sums[op] == total


def test_gradients_reach_every_parameter_of_both_policies():
    inputs = policy_inputs(assignment_of(layered(9, groups=1)), SMALL)
    policy = randomised(SMALL)
    rollouts = policy.sample(inputs, 4, np.random.default_rng(0))
    decisions = log_probs(policy.encode(inputs), rollouts)
    (decisions.select[0].sum() + decisions.place[0].sum()).backward()
    still = [
        name
        for name, parameter in policy.named_parameters()
        if parameter.grad is None or not parameter.grad.abs().sum() > 0
    ]
    assert still == []


def test_settings_out_of_range_are_refused():
    with pytest.raises(ConfigError, match=r"hidden lies in 1..1024, and the policy has 0"):
        PolicyConfig(hidden=0)
    with pytest.raises(ConfigError, match="place_prior lies in"):
        PolicyConfig(place_prior=0.0)
    with pytest.raises(ConfigError, match="a temperature lies in"):
        Temperature(select=0.0)


@pytest.mark.parametrize("block", [place_kernel.BLOCK_NUMBERS, 4 * 3 * 8, 1])
def test_compiled_logits_equal_the_plain_ones_with_all_gradients(block, monkeypatch):
    monkeypatch.setattr(place_kernel, "BLOCK_NUMBERS", block)
    inputs = policy_inputs(assignment_of(layered(4)), SMALL)
    policy = randomised(SMALL)
    generator = torch.Generator().manual_seed(1)
    columns = torch.randn(9, 3, len(DeviceColumn), generator=generator)
    ops = torch.arange(9) % 5
    weights = torch.randn(9, 3, generator=generator)
    results = []
    for plain in (True, False):
        means = torch.randn(9, 3, 3, generator=torch.Generator().manual_seed(2))
        means.requires_grad_()
        policy.zero_grad()
        head = policy.place(inputs.graph)
        logits = (place_logits if plain else compiled_logits)(head, ops, columns, means)
        (weights * logits).sum().backward()
        grads = [p.grad.clone() for p in policy.place.parameters() if p.grad is not None]
        results.append([logits.detach(), means.grad, *grads])
    assert len(results[0]) == len(results[1]) > 10
    for ours, theirs in zip(*results, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_placed_means_are_those_of_the_ops_before_with_gradients():
    generator = torch.Generator().manual_seed(3)
    num_ops, num_devices = 7, 3
    placed = torch.randn(num_ops, 4, generator=generator, requires_grad=True)
    orders = torch.stack([torch.randperm(num_ops, generator=generator) for _ in range(5)])
    devices = torch.randint(num_devices, orders.shape, generator=generator)
    weights = torch.randn(*orders.shape, num_devices, 4, generator=generator)
    expected = torch.zeros_like(weights)
    for row, step, device in itertools.product(range(5), range(num_ops), range(num_devices)):
        before = orders[row, :step][devices[row, :step] == device]
        if len(before):
            expected[row, step, device] = placed[before].mean(dim=0)
    means = placed_means(placed, orders, devices, num_devices)
    assert torch.allclose(means, expected, atol=1e-6)
    (ours,) = torch.autograd.grad((weights * means).sum(), placed)
    (theirs,) = torch.autograd.grad((weights * expected).sum(), placed)
    assert torch.allclose(ours, theirs, atol=1e-5)
