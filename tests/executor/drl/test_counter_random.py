"""Randomness by coordinates."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.drl.counter_random import CounterRandom, Stream


@settings(deadline=None)
@given(
    st.integers(0, 2**62),
    st.integers(0, 1000),
    st.integers(0, 50),
    st.integers(1, 40),
    st.integers(1, 25),
)
def test_any_slice_of_the_normal_table_is_the_same(seed, iteration, first, rows, columns):
    whole = CounterRandom(seed).normals(Stream.action, iteration, 3, 0, (first + rows, columns))
    part = CounterRandom(seed).normals(Stream.action, iteration, 3, first, (rows, columns))
    assert whole[first:].tobytes() == part.tobytes()


def test_normals_are_standard_normal_and_coordinates_matter():
    random = CounterRandom(1)
    table = random.normals(Stream.action, 0, 0, 0, (4000, 7))
    assert abs(float(table.mean())) < 0.02
    assert abs(float(table.std()) - 1.0) < 0.02
    assert np.abs(np.corrcoef(table.T) - np.eye(7)).max() < 0.06
    for stream, a, b in ((Stream.reset, 0, 0), (Stream.action, 1, 0), (Stream.action, 0, 1)):
        assert not np.array_equal(table, random.normals(stream, a, b, 0, (4000, 7)))


def test_a_generator_does_not_depend_on_earlier_draws():
    random = CounterRandom(5)
    first = random.generator(Stream.reset, 2, 7).uniform(size=4)
    random.normals(Stream.action, 0, 0, 0, (3, 3))
    random.generator(Stream.permutation, 2, 7).permutation(9)
    assert np.array_equal(first, random.generator(Stream.reset, 2, 7).uniform(size=4))
