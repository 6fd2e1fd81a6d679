"""Checkpoints as flat tables of arrays: they come back, and damaged ones are named."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler.core.errors import FormatError
from executor.checkpoint import Checkpoint

NAMES = st.text(min_size=1, max_size=4)
ARRAYS = st.lists(st.floats(allow_nan=False), max_size=3).map(np.array)


@given(
    iteration=st.integers(0, (1 << 63) - 1),
    groups=st.dictionaries(NAMES, st.dictionaries(NAMES, ARRAYS, min_size=1), max_size=3),
    tokens=st.dictionaries(
        st.tuples(NAMES, st.integers(0, 9), st.integers(-9, 9)), ARRAYS, max_size=3
    ),
)
def test_checkpoints_come_back_whatever_the_names(iteration, groups, tokens):
    """Names may hold slashes and percent signs, which part the keys of the table."""
    made = Checkpoint(graph_digest="d", iteration=iteration, groups=groups, tokens=tokens)
    found = Checkpoint.from_arrays(made.to_arrays())
    assert (found.graph_digest, found.iteration) == ("d", iteration)
    assert {
        name: {key: value.tolist() for key, value in state.items()}
        for name, state in found.groups.items()
    } == {
        name: {key: value.tolist() for key, value in state.items()}
        for name, state in groups.items()
    }
    assert {token: value.tolist() for token, value in found.tokens.items()} == {
        token: value.tolist() for token, value in tokens.items()
    }


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"iteration": np.zeros(0, np.int64)}, r"one integer, and this one has int64\[0\]"),
        ({"iteration": np.array([1, 2])}, r"one integer, and this one has int64\[2\]"),
        ({"iteration": np.array([np.nan])}, r"one integer, and this one has float64\[1\]"),
        ({"weights": np.zeros(1)}, "and this one holds 'weights'"),
        ({"token/a/0/²": np.zeros(1)}, "and this one holds 'token/a/0/²'"),
        ({"token/a/--1/0": np.zeros(1)}, "and this one holds 'token/a/--1/0'"),
        ({"token/a/0": np.zeros(1)}, "and this one holds 'token/a/0'"),
    ],
)
def test_damaged_tables_are_named(fields, message):
    whole = {"graph_digest": np.frombuffer(b"d", np.uint8), "iteration": np.array([1])}
    with pytest.raises(FormatError, match=message):
        Checkpoint.from_arrays(whole | fields)


@pytest.mark.parametrize("key", ["graph_digest", "iteration"])
def test_what_is_missing_is_named(key):
    whole = {"graph_digest": np.frombuffer(b"d", np.uint8), "iteration": np.array([1])}
    del whole[key]
    with pytest.raises(FormatError, match=f"holds '{key}', and this one does not"):
        Checkpoint.from_arrays(whole)
