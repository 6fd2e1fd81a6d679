"""Flat parameter vectors: views, alignment, segments, and what a network must look like."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from doppler.core.errors import ConfigError
from executor.drl.policy import (
    ALIGN,
    ActorCritic,
    FlatPolicy,
    aligned_zeros,
    check_policy,
    multiply_adds,
    parameter_layout,
    seeded_module,
    segment_bounds,
)


def make():
    return ActorCritic(5, 2, (7, 3), -1.0)


def init_params(factory, seed):
    return FlatPolicy(seeded_module(factory, seed)).read()


def test_binding_reads_the_vector_without_a_copy():
    policy = FlatPolicy(make())
    vector = aligned_zeros(policy.layout.size)
    module = policy.bind(vector)
    obs = torch.ones(4, 5)
    with torch.no_grad():
        assert module(obs)[0].abs().sum() == 0
        vector[policy.layout.offsets[policy.layout.names.index("mean.bias")]] = 3.0
        assert module(obs)[0][0].tolist() == [3.0, 0.0]


def test_bound_buffers_alternate_and_may_be_read_only():
    policy = FlatPolicy(make())
    vectors = [init_params(make, seed) for seed in (1, 2)]
    for vector in vectors:
        vector.flags.writeable = False
    expected = [policy.bind(vector)(torch.ones(1, 5))[2].item() for vector in vectors]
    again = [policy.bind(vector)(torch.ones(1, 5))[2].item() for vector in vectors]
    assert expected == again
    assert expected[0] != expected[1]


def test_gradients_land_in_the_flat_vector_and_gaps_stay_zero():
    policy = FlatPolicy(make())
    policy.bind(init_params(make, 0))
    gradient = aligned_zeros(policy.layout.size)
    policy.bind_gradient(gradient)
    mean, log_std, value = policy.module(torch.ones(3, 5))
    (mean.sum() + log_std.sum() + value.sum()).backward()
    used = np.zeros(policy.layout.size, bool)
    for offset, shape in zip(policy.layout.offsets, policy.layout.shapes, strict=True):
        used[offset : offset + int(np.prod(shape))] = True
    assert not gradient[~used].any()
    first = policy.layout.offsets[policy.layout.names.index("log_std")]
    assert gradient[first : first + 2].tolist() == [1.0, 1.0]


def test_release_lets_go_of_buffers_and_keeps_the_values():
    policy = FlatPolicy(make())
    vector = init_params(make, 3)
    policy.bind(vector)
    policy.release()
    kept = vector.copy()
    vector[:] = 0.0
    assert np.array_equal(policy.read(), kept)


def test_initial_parameters_depend_on_the_seed_alone():
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = init_params(make, 5)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    assert np.array_equal(first, init_params(make, 5))
    assert not np.array_equal(first, init_params(make, 6))


@settings(deadline=None)
@given(st.integers(1, 200), st.integers(1, 20))
def test_segments_cover_the_vector_once_at_aligned_cuts(blocks, pieces):
    pieces = min(pieces, blocks)
    bounds = segment_bounds(blocks * ALIGN, pieces)
    assert bounds[0][0] == 0
    assert bounds[-1][1] == blocks * ALIGN
    assert all(a[1] == b[0] for a, b in pairwise(bounds))
    sizes = [end - first for first, end in bounds]
    assert all(size % ALIGN == 0 for size in sizes)
    assert 0 < min(sizes) <= max(sizes) <= min(sizes) + ALIGN


def test_layout_aligns_every_parameter_and_counts_multiply_adds():
    layout = parameter_layout(make())
    assert all(offset % ALIGN == 0 for offset in (*layout.offsets, layout.size))
    assert multiply_adds(layout) == 5 * 7 + 7 * 3 + 3 * 2 + 3 * 1
    assert aligned_zeros(10).ctypes.data % 64 == 0


def test_too_many_segments_are_refused():
    with pytest.raises(ConfigError, match=r"num_segments is 3, but the 32 parameters .* 1 to 2"):
        segment_bounds(32, 3)


class Wrong(nn.Module):
    def __init__(self, mean=2, log_std=(2,), value=()):
        super().__init__()
        self.layer = nn.Linear(5, mean)
        self.log_std = torch.zeros(log_std)
        self.extra = value

    def forward(self, obs):
        return self.layer(obs), self.log_std, torch.zeros(len(obs), *self.extra)


class NoTuple(nn.Linear):
    def __init__(self):
        super().__init__(5, 2)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Wrong(mean=3), r"mean for 2 observations has shape \[2, 3\], but must have \[2, 2\]"),
        (Wrong(log_std=(3,)), r"log_std .* must have \[2\] or \[2, 2\]"),
        (Wrong(value=(1,)), r"value .* has shape \[2, 1\], but must have \[2\]"),
        (NoTuple(), "must return the tuple"),
        (ActorCritic(9, 2, (4,), 0.0), r"cannot read observations \[2, 5\]"),
    ],
)
def test_a_wrong_network_is_refused(module, message):
    with pytest.raises(ConfigError, match=message):
        check_policy(module, 5, 2)


def test_networks_that_cannot_be_trained_here_are_refused():
    with pytest.raises(ConfigError, match="no parameters"):
        parameter_layout(nn.ELU())
    with pytest.raises(
        ConfigError, match=r"'weight' must be float32 on the cpu, not torch.float64"
    ):
        parameter_layout(nn.Linear(2, 2).double())


def test_threads_that_make_modules_together_get_those_of_their_seeds():
    """As devices of one process do; without a lock they draw from each other's generator."""
    alone = [init_params(make, seed) for seed in range(8)]
    for _ in range(20):
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda seed: init_params(make, seed), range(8)))
        assert all(np.array_equal(one, other) for one, other in zip(alone, together, strict=True))
