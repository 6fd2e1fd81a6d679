"""Importance weights: by hand, equal to GAE where policies are equal, the same on tensors."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import Interpreter

from doppler.core.errors import ConfigError
from doppler.core.job_mode import JobMode
from executor.drl import device_math
from executor.drl.config import PPOJobConfig
from executor.drl.importance import (
    Experience,
    Importance,
    importance_estimates,
    truncated_weights,
    weighted_advantages,
)
from executor.drl.importance import vtrace as vtrace_estimates
from executor.drl.policy import aligned_zeros
from executor.drl.ppo import generalized_advantages

KINDS = (Importance.truncated, Importance.vtrace)
SMALL = PPOJobConfig(
    environment="pendulum",
    num_shards=2,
    envs_per_shard=6,
    horizon=8,
    chunk=4,
    hidden=(32, 16),
    epochs=2,
    num_trainers=2,
    mode=JobMode.asynchronous,
    staleness=1,
)


def by_hand(terminated=(0, 0, 0), truncated=(0, 0, 0)):
    """Three steps of one environment: r = 1, V = (2, 4, 2), V_3 = 8, pi / mu = (2, 1/2, 1)."""

    def column(*values, dtype=np.float32):
        return np.array(values, dtype)[:, None]

    return Experience(
        rewards=column(1, 1, 1),
        values=column(2, 4, 2),
        last_value=np.array([8], np.float32),
        terminated=column(*terminated, dtype=bool),
        truncated=column(*truncated, dtype=bool),
        log_ratios=np.log(column(2, 0.5, 1)),
    )


def close(array, *expected):
    np.testing.assert_allclose(array[:, 0], expected, rtol=1e-6, atol=1e-6)


def test_vtrace_by_hand():
    # gamma = 1/2, so delta = r + V'/2 - V = (1, -2, 3); rho = min(1, ratio) = (1, 1/2, 1) = c.
    # v2 - V2 = 3;  v1 - V1 = -2/2 + 1/2 * 1/2 * 3 = -1/4;  v0 - V0 = 1 + 1/2 * 1 * -1/4 = 7/8
    # A2 = 3;  A1 = 1/2 (-2 + 1/2 * 3) = -1/4;  A0 = 1 + 1/2 * -1/4 = 7/8
    advantages, targets = vtrace_estimates(by_hand(), 0.5, 1.0, 1.0, 1.0)
    close(targets, 2 + 7 / 8, 4 - 1 / 4, 5)
    close(advantages, 7 / 8, -1 / 4, 3)


def test_the_two_bounds_of_vtrace_are_two():
    # rho = (2, 1/2, 1) and c = min(1/4, ratio) = 1/4 everywhere.
    # v2 - V2 = 3;  v1 - V1 = -1 + 1/2 * 1/4 * 3 = -5/8;  v0 - V0 = 2 + 1/2 * 1/4 * -5/8 = 2 - 5/64
    # A1 = 1/2 (-2 + 3/2) = -1/4;  A0 = 2 (1 + 1/2 * -5/8) = 11/8
    advantages, targets = vtrace_estimates(by_hand(), 0.5, 1.0, 4.0, 0.25)
    close(targets, 4 - 5 / 64, 4 - 5 / 8, 5)
    close(advantages, 11 / 8, -1 / 4, 3)


def test_an_end_stops_the_corrections():
    # Step 1 ends for good: delta1 = 1 - 4 = -3, v1 - V1 = -3/2; A0 = 1 + 1/2 * -3/2 = 1/4
    advantages, targets = vtrace_estimates(by_hand(terminated=(0, 1, 0)), 0.5, 1.0, 1.0, 1.0)
    close(advantages, 1 / 4, -3 / 2, 3)
    close(targets, 2 + 1 / 4, 4 - 3 / 2, 5)
    # Step 1 is cut: V' = V1, delta1 = 1 + 2 - 4 = -1, v1 - V1 = -1/2; A0 = 1 + 1/2 * -1/2 = 3/4
    advantages, _ = vtrace_estimates(by_hand(truncated=(0, 1, 0)), 0.5, 1.0, 1.0, 1.0)
    close(advantages, 3 / 4, -1 / 2, 3)


def test_truncated_weights_by_hand():
    # gamma = lam = 1/2: A = (0.6875, -1.25, 3) as `test_ppo` has it; rho = min(1.5, ratio)
    advantages, targets = weighted_advantages(by_hand(), 0.5, 0.5, 1.5)
    close(advantages, 1.5 * 0.6875, -1.25 / 2, 3)
    close(targets, 2 + 0.6875, 4 - 1.25, 2 + 3)


def test_a_ratio_beyond_every_number_is_the_bound():
    weights = truncated_weights(np.array([1e4, -1e4], np.float32), 2.0)
    np.testing.assert_allclose(weights, [2.0, 0.0], rtol=1e-6)


def experience_of(steps, envs, seed, spread):
    random = np.random.default_rng(seed)
    wide = (steps, envs)

    def normal(*shape):
        return random.normal(size=shape).astype(np.float32)

    terminated = random.random(wide) < 0.2
    truncated = ~terminated & (random.random(wide) < 0.2)
    return Experience(
        normal(*wide), normal(*wide), normal(envs), terminated, truncated, spread * normal(*wide)
    )


SHAPES = (st.integers(1, 9), st.integers(1, 4), st.integers(0, 10**6))


@settings(max_examples=50, deadline=None)
@given(*SHAPES, st.floats(0, 1), st.floats(0, 1), st.sampled_from(KINDS))
def test_equal_policies_give_gae_whatever_lambda(steps, envs, seed, gamma, lam, kind):
    experience = experience_of(steps, envs, seed, 0.0)
    advantages, targets = importance_estimates(kind, experience, gamma, lam, (1.0, 1.0))
    expected = generalized_advantages(*experience[:5], gamma, lam)
    np.testing.assert_allclose(advantages, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(targets, experience.values + expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(*SHAPES, st.floats(0, 1), st.floats(0.5, 4))
def test_vtrace_targets_are_the_sum_of_equation_1(steps, envs, seed, gamma, rho_bar):
    experience = experience_of(steps, envs, seed, 1.0)._replace(
        terminated=np.zeros((steps, envs), bool), truncated=np.zeros((steps, envs), bool)
    )
    _, targets = vtrace_estimates(experience, gamma, 1.0, rho_bar, 0.5)
    ratios = np.exp(experience.log_ratios.astype(np.float64))
    rho, c = np.minimum(rho_bar, ratios), np.minimum(0.5, ratios)
    values = np.vstack([experience.values, experience.last_value[None]]).astype(np.float64)
    for s in range(steps):
        total = values[s].copy()
        for t in range(s, steps):
            delta = rho[t] * (experience.rewards[t] + gamma * values[t + 1] - values[t])
            total += gamma ** (t - s) * np.prod(c[s:t], axis=0) * delta
        np.testing.assert_allclose(targets[s], total, rtol=1e-4, atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(*SHAPES, st.sampled_from(KINDS))
def test_tensors_give_what_arrays_give(steps, envs, seed, kind):
    experience = experience_of(steps, envs, seed, 1.0)
    arrays = importance_estimates(kind, experience, 0.97, 0.9, (2.0, 1.0))
    parts = [torch.from_numpy(part) for part in experience]
    tensors = device_math.importance_estimates(kind, parts, 0.97, 0.9, (2.0, 1.0))
    for array, tensor in zip(arrays, tensors, strict=True):
        np.testing.assert_allclose(tensor.numpy(), array, rtol=1e-5, atol=1e-5)


def advantage_rows(run, vector):
    """Returns what `advantage[0]` writes when it reads another policy vector than rollouts did."""
    op = next(op for op in run.ops if op.name == "advantage[0]")
    inputs = [run.now[source.op, source.output] for source in op.inputs[1:]]
    outputs = [aligned_zeros(size // 4).view(np.uint8) for size in run.job.output_bytes(op.name)]
    run.kernels[op.name](0, [vector, *inputs], outputs)
    columns = run.job._context.layouts.rows
    return outputs[0].view(np.float32).reshape(-1, columns.width), columns


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_measures_experience_under_the_policy_that_it_trains(kind):
    plain, run = Interpreter(SMALL).run(1), Interpreter(replace(SMALL, importance=kind)).run(1)
    acted = plain.job.initial("broadcast", 0, -1)
    before, columns = advantage_rows(plain, acted)
    same, _ = advantage_rows(run, acted)
    np.testing.assert_allclose(same, before, rtol=1e-3, atol=1e-4)
    newer = run.tensor("broadcast").copy()
    moments = len(acted) - 4 * run.job.sizes.num_parameters
    newer[-moments:] = acted[-moments:]  # the weights alone differ
    other, _ = advantage_rows(run, newer)
    ratios = np.exp(other[:, columns.log_prob] - before[:, columns.log_prob])
    assert ratios.max() > 1.01
    assert ratios.min() < 0.99
    assert not np.allclose(other[:, columns.value], before[:, columns.value])
    assert not np.allclose(other[:, columns.advantage], before[:, columns.advantage])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"importance": "v-trace"}, "importance 'v-trace' is unknown; did you mean 'vtrace'"),
        ({"importance": "vtrace", "mode": "synchronous", "staleness": 0}, "none in synchronous"),
        ({"importance": "vtrace", "c_bar": 2.0}, "c_bar must be at most rho_bar 1, but is 2"),
        ({"rho_bar": 0.0}, r"rho_bar must lie in \[1e-06"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(ConfigError, match=message):
        SMALL.with_settings(changes)


def test_the_word_survives_json():
    config = SMALL.with_settings({"importance": "vtrace"})
    assert PPOJobConfig.from_dict(config.to_dict()) == config


def test_truncated_weights_read_no_c_bar():
    config = SMALL.with_settings({"importance": "truncated", "rho_bar": 0.5})
    assert config.rho_bar < config.c_bar
