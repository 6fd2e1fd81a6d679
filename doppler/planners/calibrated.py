"""Several predictions as one, each with the weight that the simulations of this run ask for.

The logarithm of the prediction is a weighted mean of those of the timelines. Weights are fitted by
least squares to the plans that were simulated, the shorter half of them, because walks go on from
these; few plans leave the weights near equal (ridge regression towards equal weights). How well
predictions order the shorter half says whether they may choose what is simulated next.

Sources: Hoerl & Kennard 1970 (ridge regression); Goel et al. 2007 (weighted means of surrogates);
Spearman 1904 (rank correlation).

Legend: B plans, V ops, K timelines, P simulated plans.
"""

from collections.abc import Sequence

import numpy as np
from scipy.stats import spearmanr

from doppler.core.costs import Costs
from doppler.core.problem import Problem
from doppler.core.runtime import INFEASIBLE_NS
from doppler.planners.mask import Ints
from doppler.planners.predicted import TimelineScorer
from doppler.planners.tables import Floats

RIDGE = 1e-3
"""Ten plans whose predictions scatter by a percent weigh as much as the equal weights do."""

FEWEST = 30
"""Plans that a fit is of, where so many have been simulated."""

MOST = 512
"""Plans that are kept, the last ones."""

LEAST_WEIGHT = 0.05
"""A timeline of less weight is left out, for it costs as much time as the others."""


class CalibratedScorer:
    """A `Scorer` that predicts by the timelines which agree with the simulator.

    Attributes:
        problem, costs: What is predicted.
        num_calls: Plans predicted so far.
        weights: Of the timelines, their sum is 1; K.
    """

    def __init__(self, timelines: Sequence[TimelineScorer]) -> None:
        self.problem: Problem = timelines[0].problem
        self.costs: Costs = timelines[0].costs
        self.num_calls = 0
        self._timelines = tuple(timelines)
        self.weights: Floats = np.full(len(timelines), 1.0 / len(timelines))
        self._logs_PK = np.empty((0, len(timelines)))
        self._values_P = np.empty(0)

    def score(self, placements_BV: Ints, priorities_BV: Ints, bounds_B: Ints | None = None) -> Ints:
        """Returns the predicted makespan of each plan in ns, int64[B]; bounds are not needed."""
        del bounds_B
        self.num_calls += len(placements_BV)
        log_B = np.zeros(len(placements_BV))
        for timeline, weight in zip(self._timelines, self.weights.tolist(), strict=True):
            if weight > 0.0:
                log_B += weight * _logs(timeline.score(placements_BV, priorities_BV))
        return np.rint(np.exp(log_B)).astype(np.int64)

    def in_order_of_start(self, placements_BV: Ints, priorities_BV: Ints) -> Ints:
        """Returns priorities by the starts of the timeline of most weight, earliest first."""
        best = self._timelines[int(self.weights.argmax())]
        return best.in_order_of_start(placements_BV, priorities_BV)

    def observe(self, placements_BV: Ints, priorities_BV: Ints, values_B: Ints) -> None:
        """Takes simulated values in ns, and weighs the timelines anew; who does not fit is out."""
        fits = values_B < INFEASIBLE_NS
        if not fits.any():
            return
        logs_BK = np.stack(
            [
                _logs(timeline.score(placements_BV[fits], priorities_BV[fits]))
                for timeline in self._timelines
            ],
            axis=1,
        )
        self._logs_PK = np.concatenate([self._logs_PK, logs_BK])[-MOST:]
        self._values_P = np.concatenate([self._values_P, _logs(values_B[fits])])[-MOST:]
        near = self._near()
        self.weights = fit_weights(self._logs_PK[near], self._values_P[near])

    @property
    def num_observed(self) -> int:
        """Simulated plans that the weights are of."""
        return len(self._near())

    def agreement(self) -> float:
        """Returns the rank correlation of prediction and simulation over the shorter plans.

        0 where there are fewer than two, or all are the same.
        """
        near = self._near()
        predicted_P, values_P = self._logs_PK[near] @ self.weights, self._values_P[near]
        if len(near) < 2 or np.ptp(predicted_P) == 0.0 or np.ptp(values_P) == 0.0:
            return 0.0
        return float(spearmanr(predicted_P, values_P).statistic)

    def _near(self) -> Ints:
        count = min(len(self._values_P), max(FEWEST, len(self._values_P) // 2))
        return np.argsort(self._values_P, kind="stable")[:count]


def fit_weights(logs_PK: Floats, values_P: Floats) -> Floats:
    """Returns non-negative weights of sum 1 by ridge regression towards equal ones, K.

    Args:
        logs_PK: Logarithms of predictions.
        values_P: Logarithms of simulated values.
    """
    num = logs_PK.shape[1]
    equal = np.full(num, 1.0 / num)
    apart_PK = logs_PK - logs_PK.mean(axis=0)
    moments = apart_PK.T @ apart_PK + RIDGE * np.eye(num)
    found = np.linalg.solve(moments, apart_PK.T @ (values_P - values_P.mean()) + RIDGE * equal)
    weights = np.maximum(found, 0.0)
    if weights.sum() <= 0.0:
        return equal
    weights[weights < LEAST_WEIGHT * weights.sum()] = 0.0
    result: Floats = weights / weights.sum()
    return result


def _logs(values: Ints) -> Floats:
    logs: Floats = np.log(np.maximum(1, values).astype(np.float64))
    return logs
