"""Every registered planner passes the conformance suite."""

import importlib.util

import pytest

from doppler.planners.registry import BUILT_IN
from simulator.scorer import CompiledScorer
from tests.planners.conformance import check_planner

NAMES = [
    name
    for name, target in BUILT_IN.items()
    if importlib.util.find_spec(target.partition(":")[0]) is not None and name != "learned"
]


@pytest.mark.parametrize("name", NAMES)
def test_planner_conforms(name):
    check_planner(name)


@pytest.mark.parametrize("name", NAMES)
def test_planner_conforms_with_the_compiled_scorer(name):
    check_planner(name, CompiledScorer)
