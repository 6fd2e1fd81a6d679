"""Moments: merging shards equals measuring all rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.drl.normalizer import (
    initial_moments,
    measure_moments,
    merge_moments,
    normalize,
    standard_deviation,
)


@settings(deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(0, 2**31))
def test_merged_shards_have_the_moments_of_all_rows(lengths, seed):
    rows = np.random.default_rng(seed).normal(3.0, 2.0, (sum(lengths), 4)).astype(np.float32)
    parts = np.split(rows, np.cumsum(lengths)[:-1])
    merged = merge_moments([measure_moments(part) for part in parts])
    np.testing.assert_allclose(merged, measure_moments(rows), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(standard_deviation(merged), rows.std(0, dtype=float), atol=1e-6)


def test_moments_by_hand():
    # Rows 1, 3: mean 2, squared deviations 1 + 1.
    assert measure_moments(np.array([[1.0], [3.0]], np.float32)).tolist() == [2.0, 2.0, 2.0]


def test_normalize_by_hand_and_clipped():
    moments = np.array([4.0, 1.0, 16.0])  # mean 1, variance 4
    obs = np.array([[3.0], [1000.0]], np.float32)
    out = np.empty_like(obs)
    np.testing.assert_allclose(normalize(obs, moments, out), [[1.0], [10.0]], rtol=1e-5)


def test_the_first_normaliser_changes_nothing():
    obs = np.array([[0.5, -2.0]], np.float32)
    np.testing.assert_allclose(
        normalize(obs, initial_moments(2), np.empty_like(obs)), obs, rtol=1e-5
    )


def test_merging_nothing_is_an_error():
    with pytest.raises(ValueError, match="needs at least one part"):
        merge_moments([])
