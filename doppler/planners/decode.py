# ruff: noqa: N815 - shape suffixes (devices_BU) are upper case
"""Orders as keys: HEFT with insertion places them, the scorer says what the plans are worth.

Arrays: `B` orders, `V` ops, `U` units.
"""

from dataclasses import dataclass

import numpy as np

from doppler.core.runtime import INFEASIBLE_NS
from doppler.planners.evaluator import Evaluator
from doppler.planners.list_schedule import Fit, ListScheduler
from doppler.planners.mask import Ints
from doppler.planners.tables import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """Plans of a batch of orders.

    Attributes:
        values_B: Values; `INFEASIBLE_NS` for dead ends and for rows beyond the budget.
        devices_BU, priority_BV: The plans.
    """

    values_B: Ints
    devices_BU: Ints
    priority_BV: Ints


def score_keys(
    lists: ListScheduler,
    evaluator: Evaluator,
    keys_BV: Floats,
    fit: Fit = Fit.none,
    bounds_B: Ints | None = None,
) -> Decoded:
    """Decodes and scores orders, largest key first; dead ends cost no call.

    Args:
        lists: Places.
        evaluator: Scores, within the budget.
        keys_BV: One key per op.
        fit: What a device's memory must hold together.
        bounds_B: A plan above its bound may get any value above the bound.
    """
    devices_BU, priority_BV, placed_B = lists.decode(keys_BV, fit)
    values_B = np.full(len(keys_BV), INFEASIBLE_NS, dtype=np.int64)
    rows = np.flatnonzero(placed_B)
    found = evaluator.score(
        lists.mask.placement(devices_BU[rows]),
        priority_BV[rows],
        None if bounds_B is None else bounds_B[rows],
    )
    values_B[rows[: len(found)]] = found
    return Decoded(values_B=values_B, devices_BU=devices_BU, priority_BV=priority_BV)


def first_fit(lists: ListScheduler, evaluator: Evaluator, keys_BV: Floats) -> tuple[Fit, Decoded]:
    """Returns the least strict `Fit` under which one of the orders fits in memory, and the plans.

    `Fit.all` and its plans if none does.
    """
    for fit in (Fit.none, Fit.live):
        decoded = score_keys(lists, evaluator, keys_BV, fit)
        if decoded.values_B.min() < INFEASIBLE_NS or evaluator.remaining <= 0:
            return fit, decoded
    return Fit.all, score_keys(lists, evaluator, keys_BV, Fit.all)
