"""Every registered planner passes the conformance suite."""

import pytest

from doppler.planners.registry import BUILT_IN
from simulator.scorer import CompiledScorer
from tests.planners.conformance import check_planner

NAMES = sorted(BUILT_IN)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "learned"])
def test_planner_conforms(name):
    check_planner(name)


@pytest.mark.parametrize("name", NAMES)
def test_planner_conforms_with_the_compiled_scorer(name):
    check_planner(name, CompiledScorer)
