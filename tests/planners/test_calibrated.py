import numpy as np
import pytest

from doppler.core.runtime import INFEASIBLE_NS
from doppler.planners.calibrated import CalibratedScorer, fit_weights


class Predicted:
    """A timeline that predicts one column of the placements."""

    problem = costs = None

    def __init__(self, column):
        self.column = column

    def score(self, placements_BV, priorities_BV):
        return placements_BV[:, self.column]

    def in_order_of_start(self, placements_BV, priorities_BV):
        return priorities_BV + self.column


def plans_of(*columns):
    placements = np.array(columns, dtype=np.int64).T
    return placements, np.zeros_like(placements)


def noisy(count, scatter, seed):
    rng = np.random.default_rng(seed)
    values = 10_000 * np.exp(rng.uniform(0.0, 0.5, count))
    other = values * np.exp(scatter * rng.standard_normal(count))
    return values.astype(np.int64), other.astype(np.int64)


def test_the_timeline_that_agrees_gets_the_weight():
    values, other = noisy(60, 0.4, 0)
    scorer = CalibratedScorer([Predicted(0), Predicted(1)])
    assert scorer.weights.tolist() == [0.5, 0.5]
    plans = plans_of(other, values)
    scorer.observe(*plans, values)
    assert scorer.weights[1] > 0.9
    assert scorer.weights.sum() == pytest.approx(1.0)
    assert scorer.agreement() > 0.9
    assert (scorer.in_order_of_start(*plans) == 1).all()


def test_few_plans_move_the_weights_little():
    values, other = noisy(60, 0.02, 1)
    weights = [
        fit_weights(np.log(np.stack([other, values], axis=1)[:count]), np.log(values[:count]))
        for count in (2, 60)
    ]
    assert weights[0][1] < 0.7 < weights[1][1]


def test_a_timeline_that_says_the_opposite_is_left_out():
    values, _ = noisy(60, 0.0, 2)
    logs = np.log(np.stack([values, 100_000_000 // values], axis=1))
    assert fit_weights(logs, np.log(values)).tolist() == [1.0, 0.0]
    assert fit_weights(logs[:, 1:], np.log(values)).tolist() == [1.0]


def test_the_prediction_is_the_weighted_mean_of_the_logarithms():
    scorer = CalibratedScorer([Predicted(0), Predicted(1)])
    plans = plans_of([100, 400], [400, 900])
    assert scorer.score(*plans).tolist() == [200, 600]
    scorer.weights = np.array([0.0, 1.0])
    assert scorer.score(*plans).tolist() == [400, 900]
    assert scorer.num_calls == 4


def test_plans_that_do_not_fit_are_no_evidence():
    values, other = noisy(60, 0.4, 3)
    scorer = CalibratedScorer([Predicted(0), Predicted(1)])
    scorer.observe(*plans_of(other, values), np.full(60, INFEASIBLE_NS))
    assert scorer.weights.tolist() == [0.5, 0.5]
    assert scorer.agreement() == 0.0


def test_the_shorter_half_decides():
    values, other = noisy(100, 0.4, 4)
    order = np.argsort(values)
    first, second = values.copy(), values.copy()
    first[order[:50]] = other[order[:50]]  # wrong where plans are short
    second[order[50:]] = other[order[50:]]
    scorer = CalibratedScorer([Predicted(0), Predicted(1)])
    scorer.observe(*plans_of(first, second), values)
    assert scorer.weights[1] > 0.9
