"""Interval lists behave like sets of integers."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from doppler.report.intervals import intersect, length, subtract, union

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted).map(tuple))


def _points(intervals):
    return {point for begin, end in intervals for point in range(begin, end)}


@given(left=SPANS, right=SPANS)
def test_operations_are_those_of_sets(left, right):
    a, b = union(left), union(right)
    assert _points(a) == _points(left)
    assert all(one[1] < two[0] for one, two in itertools.pairwise(a))
    assert _points(subtract(a, b)) == _points(a) - _points(b)
    assert _points(intersect(a, b)) == _points(a) & _points(b)
    assert length(a) == len(_points(a))
