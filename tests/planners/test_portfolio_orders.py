"""The portfolio anneals keys only where orders are not far behind devices."""

import numpy as np
import pytest

from doppler.planners import anneal_orders, portfolio
from doppler.planners.base import Budget
from simulator.scorer import CompiledScorer
from tests.planners.test_annealing import join_of_eight


@pytest.mark.parametrize(("transfer_ns", "anneals_keys"), [(1, True), (10, False)])
def test_keys_are_annealed_unless_orders_are_far_behind(monkeypatch, transfer_ns, anneals_keys):
    """Eight ops and a join: orders need 3 ns and a transfer, one device needs 9 ns."""
    begun = []
    anneal_keys = anneal_orders.plan

    def spy(*arguments):
        begun.append(arguments)
        return anneal_keys(*arguments)

    monkeypatch.setattr(anneal_orders, "plan", spy)
    problem, costs = join_of_eight(transfer_ns)
    scorer = CompiledScorer(problem, costs)
    found = portfolio.search(problem, scorer, Budget(2_000), np.random.default_rng(0))
    assert bool(begun) == anneals_keys
    assert scorer.score_plans([found])[0] == min(9, 3 + transfer_ns)
