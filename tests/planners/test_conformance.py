"""Every registered planner passes the conformance suite."""

import pytest

from doppler.planners.registry import BUILT_IN
from simulator.scorer import CompiledScorer
from tests.planners.conformance import check_planner

NAMES = sorted(BUILT_IN)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("learned")])
def test_planner_conforms(name):
    check_planner(name)


# The ablations differ in their policies only: all cases with small ones in test_ablations.
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("learned_")])
def test_planner_conforms_with_the_compiled_scorer(name):
    check_planner(name, CompiledScorer)
