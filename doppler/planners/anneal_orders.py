"""Annealing over orders: HEFT places the ops of an order, the runtime's own rule scores the plan.

Finds good plans of layered graphs quickly; explicit devices (`annealing`) find those that no order
leads to.

Source: Kirkpatrick et al. 1983; Topcuoglu et al. 2002; moves as in the project's portfolio study.
"""

import numpy as np

from doppler.planners.evaluator import Evaluator
from doppler.planners.list_schedule import ListScheduler, Schedule
from doppler.planners.mask import Ints
from doppler.planners.tables import Floats

KEY_SHIFT = 0.15


def walk_orders(
    lists: ListScheduler,
    evaluator: Evaluator,
    rng: np.random.Generator,
    calls: int,
    hot: float,
    cold: float,
) -> tuple[int, Ints, Ints] | None:
    """Returns (value, device per unit, priority per op) of the best order met, or None.

    Moves: two keys swapped, or one key shifted by 0.15 max(keys) N(0, 1), half each.

    Args:
        lists: Places orders; the walk starts from upward ranks.
        evaluator: Scores.
        rng: The only source of randomness.
        calls: Plans that may be scored.
        hot: First temperature as a part of the best value so far.
        cold: Last temperature, likewise.
    """
    ops = np.flatnonzero(lists.mask.unit_V >= 0)
    last_call = evaluator.remaining - calls
    if calls < 1 or evaluator.remaining < 1 or len(ops) < 2:
        return None
    keys_V = lists.ranks_V.copy()
    first = _decoded(lists, keys_V)
    if first is None:
        return None
    value = int(_score(lists, evaluator, first)[0])
    best = (value, first.devices_U, first.priority_V)
    span, steps = KEY_SHIFT * float(keys_V.max()), max(1, calls - 2)
    scale = float(evaluator.best_ns)
    for step in range(calls - 1):
        if evaluator.remaining <= max(0, last_call):
            break
        temperature = scale * hot * (cold / hot) ** (step / steps)
        bound = value - temperature * np.log(1.0 - rng.random())
        trial_V = _moved(keys_V, ops, span, rng)
        schedule = _decoded(lists, trial_V)
        if schedule is None:
            continue
        (found,) = _score(lists, evaluator, schedule, int(bound)).tolist()
        if found <= bound:
            keys_V, value = trial_V, found
            if found < best[0]:
                best = (found, schedule.devices_U, schedule.priority_V)
    return best


def _moved(keys_V: Floats, ops: Ints, span: float, rng: np.random.Generator) -> Floats:
    trial_V = keys_V.copy()
    one, other = ops[rng.integers(len(ops), size=2)]
    if rng.random() < 0.5:
        trial_V[one], trial_V[other] = keys_V[other], keys_V[one]
    else:
        trial_V[one] += span * rng.standard_normal()
    return trial_V


def _decoded(lists: ListScheduler, keys_V: Floats) -> Schedule | None:
    devices_BU, priority_BV, placed_B = lists.decode(keys_V[None])
    if not placed_B[0]:
        return None
    return Schedule(devices_U=devices_BU[0], priority_V=priority_BV[0], makespan_ns=np.nan)


def _score(
    lists: ListScheduler, evaluator: Evaluator, schedule: Schedule, bound: int | None = None
) -> Ints:
    return evaluator.score(
        lists.mask.placement(schedule.devices_U)[None],
        schedule.priority_V[None],
        None if bound is None else [bound],
    )
